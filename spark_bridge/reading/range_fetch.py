"""Reading one range from a cluster: the sequence of requests, and the handling of each answer.

It uses Fetch v12, which Kafka serves from 2.7 on and which is the first version that can ask Flakelog for ids
(broker.wire.tags). The next request is sent before the current answer is decoded.
"""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from broker.record.batch import BatchHeader, CorruptBatch
from broker.wire import fetch
from broker.wire.errors import ErrorCode, WireError
from broker.wire.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from broker.wire.id_entries import IdEntry, read_entries
from broker.wire.primitives import Buffer
from spark_bridge.reading.arrow_decode import MissingId, PlacedBatch, decode
from spark_bridge.reading.cluster import FETCH_VERSION, describe
from spark_bridge.reading.network import Address, Conversation, Network, Refused, TryAgain, check
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.range_cursor import DataLoss, RangeCursor
from spark_bridge.reading.settings import ReadSettings as ReadSettings
from spark_bridge.reading.skipped import SKIPPED_MAX, SkippedBatch


class ReadFailed(Exception):
    """The range could not be read, for a reason that may be transient; Spark may run the task again."""


class RangeFetch:
    """The records of `within` as Arrow batches: complete, or an exception.

    DataLoss, CorruptBatch and MissingId mean that this log does not have the range as it was; a retry does not help.
    ReadFailed means a refused request, or no leader, connection or answer in `settings.patience.attempts` attempts
    without progress.

    A batch that cannot be decoded is CorruptBatch. With `settings.skip_poison` it is left out and passed to
    `on_skipped`, up to SKIPPED_MAX batches.
    """

    def __init__(
        self,
        within: OffsetRange,
        columns: Sequence[str],
        servers: Sequence[Address],
        network: Network,
        settings: ReadSettings = ReadSettings(),
        topic_id: str | None = None,
        on_skipped: Callable[[SkippedBatch], object] | None = None,
        on_lost: Callable[[OffsetRange, str], object] | None = None,
    ) -> None:
        self._within = within
        self._columns = columns
        self._servers = servers
        self._network = network
        self._settings = settings
        self._topic_id = topic_id
        self._on_skipped = on_skipped
        self._on_lost = on_lost
        self._skipped = 0
        self._cursor = RangeCursor(within, compacted=settings.compacted)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records once; a second call yields nothing."""
        failures = 0
        while not self._cursor.done:
            before = self._cursor.position
            try:
                yield from self._read_from_leader()
            except Refused as error:
                raise ReadFailed(f"{self._within} could not be read past {self._cursor.position}: {error}") from error
            except (TryAgain, OSError, WireError) as error:
                failures = failures + 1 if self._cursor.position == before else 1
                self._pause_or_give_up(failures, error)

    def _pause_or_give_up(self, failures: int, error: Exception) -> None:
        patience = self._settings.patience
        if failures >= patience.attempts:
            raise ReadFailed(
                f"{self._within} could not be read past offset {self._cursor.position} "
                f"in {failures} attempts; the last: {error}"
            ) from error
        self._network.pause(patience.pause_after(failures))

    def _read_from_leader(self) -> Iterator[pa.RecordBatch]:
        leader = self._find_leader()
        conversation = Conversation(self._network.connect(leader))
        try:
            self._send_fetch(conversation)
            while not self._cursor.done:
                before = self._cursor.position
                answer = self._fetched(conversation)
                batches = self._cursor.accept(_bytes(answer))
                if self._cursor.position == before:
                    log_end = answer.high_watermark
                    raise TryAgain(f"{leader} has no records at offset {before}; its log ends at {log_end}")
                broken = None if self._cursor.done else self._send_ahead(conversation)
                yield from self._decoded(batches, answer)
                if broken:
                    raise broken
        finally:
            conversation.close()

    def _find_leader(self) -> Address:
        name, partition = self._within.topic, self._within.partition
        topic = describe([name], self._servers, self._network).topics[name]
        if self._topic_id and topic.id and topic.id != self._topic_id:
            raise DataLoss(
                f"topic {name!r} is not the one the manifest was made of: its id is {topic.id}, "
                f"the manifest's {self._topic_id}. It was deleted and made again"
            )
        if partition not in topic.leaders:
            raise DataLoss(f"topic {name!r} has no partition {partition}")
        leader = topic.leaders[partition]
        if leader is None:
            raise TryAgain(f"{self._within.name} has no leader")
        return leader

    def _send_fetch(self, conversation: Conversation) -> None:
        within, settings = self._within, self._settings
        wanted = FetchPartition(within.topic, within.partition, self._cursor.position, settings.fetch_bytes)
        request = FetchRequest(settings.fetch_wait_ms, 1, settings.fetch_bytes, [wanted], wants_ids=True)
        conversation.send(fetch.API_KEY, FETCH_VERSION, fetch.encode_request(FETCH_VERSION, request))

    def _send_ahead(self, conversation: Conversation) -> OSError | None:
        """Send the next request before the current answer is decoded. Return an error instead of raising it.

        The cursor has already passed the current batches, so the caller must yield them before it raises the error.
        """
        try:
            self._send_fetch(conversation)
        except OSError as error:
            return error
        return None

    def _fetched(self, conversation: Conversation) -> FetchedPartition:
        response = self._once_not_held_back(conversation)
        what = f"{self._within.name} at offset {self._cursor.position}"
        check(response.error_code, what)
        if len(response.partitions) != 1:
            raise WireError(f"one partition asked for, {len(response.partitions)} answered")
        (fetched,) = response.partitions
        if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise DataLoss(
                f"{self._within.name} does not have offset {self._cursor.position} of {self._within} (out of range): "
                f"its log starts at {_known(fetched.log_start_offset)} and ends at {_known(fetched.high_watermark)}"
            )
        check(fetched.error_code, what)
        return fetched

    def _once_not_held_back(self, conversation: Conversation) -> FetchResponse:
        """Return the answer. A reader over its quota first receives no data but a time to wait (KIP-219), so retry."""
        response = fetch.decode_response(FETCH_VERSION, *conversation.receive())
        for _ in range(self._settings.patience.attempts):
            if not response.is_held_back:
                break
            self._network.pause(response.throttle_ms)
            self._send_fetch(conversation)
            response = fetch.decode_response(FETCH_VERSION, *conversation.receive())
        return response

    def _decoded(self, batches: list[PlacedBatch], answer: FetchedPartition) -> Iterator[pa.RecordBatch]:
        ids = _ids(answer)
        if batches and ids is None and self._settings.require_ids:
            raise MissingId(f"the broker gave no ids with the records of {self._within}")
        return decode(batches, self._within, self._columns, ids, on_poison=self._skip)

    def _skip(self, header: BatchHeader, error: CorruptBatch) -> None:
        within = self._within
        batch = SkippedBatch(within.topic, within.partition, header.base_offset, header.last_offset, str(error))
        if not self._settings.skip_poison:
            raise CorruptBatch(f"{batch}; a read with onPoison=skip leaves such batches out") from None
        self._skipped += 1
        if self._skipped > SKIPPED_MAX:
            raise CorruptBatch(f"{batch}; {within} has more than {SKIPPED_MAX} such batches") from None
        if self._on_skipped is not None:
            self._on_skipped(batch)


def _bytes(answer: FetchedPartition) -> Buffer:
    assert isinstance(answer.records, (bytes, bytearray, memoryview))  # a decoded answer holds no file regions
    return answer.records


def _ids(answer: FetchedPartition) -> list[IdEntry] | None:
    if answer.ids is None:
        return None
    assert isinstance(answer.ids.entries, (bytes, bytearray))
    return list(read_entries(answer.ids.entries, answer.ids.base_offset))


def _known(offset: int) -> str:
    return "an unknown offset" if offset < 0 else str(offset)
