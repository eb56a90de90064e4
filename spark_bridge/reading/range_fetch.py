"""Reading one range from a cluster: the sequence of requests, and the handling of each answer.

The next fetch is sent before the current answer is decoded. Fetch versions are negotiated. Ids need v12 (Kafka 2.7),
which is the first version that can ask Flakelog for them (broker.wire.tags). From v13 on a fetch names the topic by its
id (KIP-516), so a client that has read a partition of the topic needs no metadata for the next: a broker refuses the id
of a topic that was made again.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple
from uuid import UUID

import pyarrow as pa

from broker.client.core import EARLIEST, LATEST, fetch_exchange
from broker.client.errors import BrokerError, ClientError, Unreachable, no_leader
from broker.client.leaders import Leader
from broker.record.batch import BatchHeader, CorruptBatch
from broker.wire import fetch
from broker.wire.errors import ErrorCode, WireError
from broker.wire.fetch import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from broker.wire.id_entries import IdEntry, read_entries
from broker.wire.primitives import Buffer
from coordination.errors import FlakelogError
from spark_bridge.reading.arrow_decode import NO_TURN, MissingId, PlacedBatch, decode
from spark_bridge.reading.cluster import is_final
from spark_bridge.reading.fetch_size import fetch_size
from spark_bridge.reading.id_time import columns_to_decode, with_id_time
from spark_bridge.reading.network import Address, ReadClient
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.range_cursor import OnLost, RangeCursor
from spark_bridge.reading.settings import ReadSettings as ReadSettings
from spark_bridge.reading.skipped import SKIPPED_MAX, SkippedBatch


class ReadFailed(FlakelogError):
    """The range could not be read, for a reason that may be transient; Spark may run the task again."""


class Unanswered(ReadFailed):
    """No broker answered in all attempts without progress."""


class _NothingThere(ClientError):
    """The broker has no records at an offset of the range."""


class _LogEnded(_NothingThere):
    """The log ends inside the range: it was truncated, or is not what the range was made of."""


class _NoneLeft(_NothingThere):
    """A compacted log that is longer than the range has no records in the rest of it.

    Compaction removes old tombstones, also the last records of a log. A broker that reads old segments from elsewhere
    (KIP-405) answers like this too while it waits for them, so the reader asks again first.
    """


class _FetchTarget(NamedTuple):
    """Where a partition is read: its leader, the version of Fetch, and the topic as that version names it."""

    leader: Address
    leader_epoch: int
    version: int
    topic: str | UUID


class RangeFetch:
    """The records of `within` as Arrow batches: complete, or an exception.

    DataLoss, CorruptBatch and MissingId mean that this log does not have the range as it was; a retry does not help.
    ReadFailed means a refused request, or no leader, connection or answer in `settings.patience.attempts` attempts
    without progress. If the last attempt found no broker, it is Unanswered.

    A batch that cannot be decoded is CorruptBatch. With `settings.skip_poison` it is left out and passed to
    `on_skipped`, up to SKIPPED_MAX batches. If `settings.fail_on_data_loss` is false, missing offsets are passed to
    `on_lost` instead of DataLoss; a deleted topic and a log that ends early are missing offsets too.

    A record batch that unpacks to more than an Arrow batch holds is unpacked within `large_turn` (arrow_decode.decode).
    `on_wait` is called with the reason before each pause between two attempts.

    With `settings.read_committed`, records of aborted transactions are left out. Their offsets count, as do those of
    control records: the range ends by position.
    """

    def __init__(
        self,
        within: OffsetRange,
        columns: Sequence[str],
        client: ReadClient,
        settings: ReadSettings = ReadSettings(),
        topic_id: str | None = None,
        on_skipped: Callable[[SkippedBatch], object] | None = None,
        on_lost: OnLost | None = None,
        large_turn: AbstractContextManager[object] = NO_TURN,
        on_wait: Callable[[str], object] = lambda reason: None,
    ) -> None:
        self._within = within
        self._columns = columns
        self._client = client
        self._settings = settings
        self._topic_id = topic_id
        self._on_skipped = on_skipped
        self._skipped = 0
        self._large_turn = large_turn
        self._on_wait = on_wait
        self._isolation = READ_COMMITTED if settings.read_committed else READ_UNCOMMITTED
        self._may_lack_offsets = settings.may_lack_offsets(within.topic)
        self._cursor = RangeCursor(
            within,
            compacted=self._may_lack_offsets,
            on_lost=None if settings.fail_on_data_loss else on_lost or _ignored,
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records once; a second call yields nothing."""
        failures = 0
        while not self._cursor.done:
            before = self._cursor.position
            try:
                yield from self._read_from_leader()
            except (ClientError, WireError) as error:
                if isinstance(error, ClientError) and is_final(error):
                    raise self._failed("", error) from error
                failures = failures + 1 if self._cursor.position == before else 1
                self._pause_or_give_up(failures, error)

    def _pause_or_give_up(self, failures: int, error: Exception) -> None:
        patience = self._settings.patience
        if failures < patience.attempts:
            self._on_wait(str(error))
            self._client.pause(patience.pause_after(failures))
        elif isinstance(error, _NoneLeft):
            self._cursor.skip_rest()
        elif not self._settings.fail_on_data_loss and _is_loss(error):
            self._cursor.lose(self._within.end, str(error))
        else:
            raise self._failed(f" in {failures} attempts; the last", error) from error

    def _failed(self, attempts: str, error: Exception) -> ReadFailed:
        kind = Unanswered if isinstance(error, Unreachable) else ReadFailed
        return kind(f"{self._within} could not be read past offset {self._cursor.position}{attempts}: {error}")

    def _read_from_leader(self) -> Iterator[pa.RecordBatch]:
        target = self._known_target() or self._find_target()
        if target is None:
            return
        try:
            self._send_fetch(target)
            while not self._cursor.done:
                answer = self._fetched(target)
                batches = [] if answer is None else self._accepted(target.leader, answer)
                broken = None if self._cursor.done else self._send_ahead(target)
                if answer is not None:
                    yield from self._decoded(batches, answer)
                if broken:
                    raise broken
        finally:
            self._client.give_up(target.leader)

    def _accepted(self, leader: Address, answer: FetchedPartition) -> list[PlacedBatch]:
        before = self._cursor.position
        batches = self._cursor.accept(_bytes(answer), answer.aborted or ())
        if self._cursor.position == before:
            kind, end = _NothingThere, f"its log ends at {answer.high_watermark}"
            if answer.high_watermark <= before:
                kind = _LogEnded
            elif self._settings.read_committed:
                end = f"a transaction is open since {answer.last_stable_offset}, the last stable offset"
            if self._may_lack_offsets and self._within.end <= self._readable(answer):
                kind = _NoneLeft
            raise kind(f"{leader} has no records at offset {before}; {end}")
        return batches

    def _readable(self, answer: FetchedPartition) -> int:
        return answer.last_stable_offset if self._settings.read_committed else answer.high_watermark

    def _known_target(self) -> _FetchTarget | None:
        """Return the target that the client knows from an earlier range of the topic, or None if it must ask."""
        core, within = self._client.core, self._within
        id, leader = core.known_id(within.topic), core.known_leader(within.topic, within.partition)
        if id is None or leader is None or (self._topic_id and str(id) != self._topic_id):
            return None
        target = self._target(leader, id)
        return target if target.topic == id else None  # a name alone may be another topic's by now

    def _target(self, leader: Leader, id: UUID | None) -> _FetchTarget:
        core, newest = self._client.core, fetch.TOPIC_IDS if id else None
        version = self._client.run(core.version(leader.address, fetch.API_KEY, newest))
        return _FetchTarget(*leader, version, id if id and version >= fetch.TOPIC_IDS else self._within.topic)

    def _find_target(self) -> _FetchTarget | None:
        """Ask for the target. Return None if the partition was deleted and its offsets were reported as lost."""
        name, partition = self._within.topic, self._within.partition
        (topic,) = self._client.run(self._client.core.metadata([name]))
        if self._topic_id and topic.id and str(topic.id) != self._topic_id:
            self._cursor.lose(
                self._within.end,
                f"topic {name!r} is not the one the manifest was made of: its id is {topic.id}, "
                f"the manifest's {self._topic_id}. It was deleted and made again",
            )
            return None
        if partition not in topic.leaders:
            self._cursor.lose(self._within.end, f"topic {name!r} has no partition {partition}")
            return None
        leader = self._client.core.known_leader(name, partition)
        if leader is None:
            raise no_leader(name, partition)
        return self._target(leader, topic.id)

    def _send_fetch(self, target: _FetchTarget) -> None:
        within, settings, cursor = self._within, self._settings, self._cursor
        seen = cursor.passed_offsets, cursor.passed_bytes, cursor.largest_batch_bytes
        size = fetch_size(cursor.left, *seen, settings.fetch_bytes)
        wanted = FetchPartition(target.topic, within.partition, cursor.position, size, target.leader_epoch)
        request = FetchRequest(
            settings.fetch_wait_ms, 1, size, [wanted], isolation_level=self._isolation, wants_ids=True
        )
        self._client.send(fetch_exchange(target.leader, target.version, request))

    def _send_ahead(self, target: _FetchTarget) -> ClientError | None:
        """Send the next request before the current answer is decoded. Return an error instead of raising it.

        The cursor has already passed the current batches, so the caller must yield them before it raises the error.
        """
        try:
            self._send_fetch(target)
        except ClientError as error:
            return error
        return None

    def _fetched(self, target: _FetchTarget) -> FetchedPartition | None:
        """Return the partition's answer. Return None if its first offsets were deleted, and reported as lost."""
        response = self._once_not_held_back(target)
        within, core = self._within, self._client.core
        core.check(within.topic, within.partition, response.error_code)
        if len(response.partitions) != 1:
            raise WireError(f"one partition asked for, {len(response.partitions)} answered")
        (fetched,) = response.partitions
        if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._lose_out_of_range()
            return None
        core.check(within.topic, within.partition, fetched.error_code)
        return fetched

    def _lose_out_of_range(self) -> None:
        """Report the offsets that the log does not have. Ask for its bounds, because Kafka's answer does not say them.
        """
        key, core = (self._within.topic, self._within.partition), self._client.core
        first = self._client.run(core.list_offsets([key], EARLIEST))[key]
        end = self._client.run(core.list_offsets([key], LATEST))[key]
        position = self._cursor.position
        if first is None or end is None or first <= position <= end:
            raise BrokerError(ErrorCode.OFFSET_NOT_AVAILABLE, f"{self._within.name} at offset {position}")
        self._cursor.lose(
            first if position < first else self._within.end,
            f"{self._within.name} does not have offset {position} of {self._within} (out of range): "
            f"its log starts at {first} and ends at {end}",
        )

    def _once_not_held_back(self, target: _FetchTarget) -> FetchResponse:
        """Return the answer. A reader over its quota first receives no data but a time to wait (KIP-219), so retry."""
        response = fetch.decode_response(target.version, self._client.receive(target.leader), 0)
        for _ in range(self._settings.patience.attempts):
            if not response.is_held_back:
                break
            self._client.pause(response.throttle_ms)
            self._send_fetch(target)
            response = fetch.decode_response(target.version, self._client.receive(target.leader), 0)
        return response

    def _decoded(self, batches: list[PlacedBatch], answer: FetchedPartition) -> Iterator[pa.RecordBatch]:
        ids = _ids(answer)
        if batches and ids is None and self._settings.require_ids:
            raise MissingId(f"the broker gave no ids with the records of {self._within}")
        needed = columns_to_decode(self._columns)
        decoded = decode(batches, self._within, needed, ids, on_poison=self._skip, large_turn=self._large_turn)
        # `map` lets go of an Arrow batch before it asks for the next one, a loop's variable does not.
        yield from map(lambda batch: with_id_time(batch, self._columns, self._settings.id_clock), decoded)

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


def _is_loss(error: Exception) -> bool:
    """Return True if an error that lasts means that the log no longer has the rest of the range."""
    if isinstance(error, BrokerError):
        return error.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
    return isinstance(error, _LogEnded)


def _ignored(within: OffsetRange, reason: str) -> None:
    """Drop a report of lost offsets, because the caller passed no `on_lost`."""


def _bytes(answer: FetchedPartition) -> Buffer:
    assert isinstance(answer.records, (bytes, bytearray, memoryview))  # a decoded answer holds no file regions
    return answer.records


def _ids(answer: FetchedPartition) -> list[IdEntry] | None:
    if answer.ids is None:
        return None
    assert isinstance(answer.ids.entries, (bytes, bytearray))
    return list(read_entries(answer.ids.entries, answer.ids.base_offset))
