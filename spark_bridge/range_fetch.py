"""Reading one range from a cluster, as a conversation: which request next, what each answer means.

The network is a port: `Network.connect(address)` gives a `Connection` that sends a frame and receives a frame (without
their length), and `Network.pause(ms)` waits. The next request is on its way before the answer before it is decoded.

Fetch v12 is spoken: Kafka from 2.7 on serves it, and it is the first that may ask Flakelog for ids (broker.wire.tags).
The leader is looked up by Metadata v10, the first that names topics' ids: a topic that was deleted and made again under
the same name is not the one the manifest was made of.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, Protocol
from uuid import UUID

import pyarrow as pa

from broker.wire import fetch
from broker.wire.errors import ErrorCode, WireError
from broker.wire.fetch import FetchedPartition, FetchPartition, FetchRequest
from broker.wire.frame import request_header
from broker.wire.id_entries import IdEntry, read_entries
from broker.wire.primitives import I32, Buffer, skip_tags
from spark_bridge.arrow_decode import MissingId, PlacedBatch, decode
from spark_bridge.offset_range import OffsetRange
from spark_bridge.range_cursor import DataLoss, RangeCursor

FETCH_VERSION = 12
METADATA, METADATA_VERSION = 3, 10
CLIENT_ID = "flakelog-spark"

LEADER_MOVED = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
"""Answers to which a consumer looks the leader up again and tries once more."""


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Connection(Protocol):
    """One connection to a broker. Both verbs block, and raise OSError where it is broken or too slow."""

    def send(self, frame: bytes) -> None: ...

    def receive(self) -> memoryview:
        """The next frame, in order."""
        ...

    def close(self) -> None: ...


class Network(Protocol):
    def connect(self, address: Address) -> Connection: ...

    def pause(self, ms: int) -> None: ...


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How a task reads. Bytes bound a task's memory, attempts and waits how long it may be without any progress."""

    fetch_bytes: int = 4 << 20  # past some ten thousand rows of 100 bytes a fetch, Spark gains nothing
    fetch_wait_ms: int = 500  # Kafka's fetch.max.wait.ms
    attempts: int = 8  # with the pauses below, a new leader has some 12 s to be found
    pause_ms: int = 100  # Kafka's retry.backoff.ms; doubled by each attempt
    pause_ms_max: int = 5_000
    compacted: bool = False
    require_ids: bool = False  # where false, a broker that keeps no ids leaves the column null


class ReadFailed(Exception):
    """The range could not be read for a reason that may pass; Spark may run the task again."""


class RangeFetch:
    """The records of `within` as Arrow batches; complete, or an exception.

    Raises DataLoss, CorruptBatch, MissingId: this log does not have the range as it was; a retry does not help.
    ReadFailed, after `settings.attempts` without progress: no leader, no connection, no answer.
    """

    def __init__(
        self,
        within: OffsetRange,
        columns: Sequence[str],
        servers: Sequence[Address],
        network: Network,
        settings: ReadSettings = ReadSettings(),
        topic_id: str | None = None,
    ) -> None:
        self._within = within
        self._columns = columns
        self._servers = servers
        self._network = network
        self._settings = settings
        self._topic_id = topic_id
        self._cursor = RangeCursor(within, compacted=settings.compacted)
        self._correlation_id = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Reads once; a second call gives nothing."""
        failures = 0
        while not self._cursor.done:
            before = self._cursor.position
            try:
                yield from self._read_from_leader()
            except (_TryAgain, OSError, WireError) as error:
                failures = failures + 1 if self._cursor.position == before else 1
                self._pause_or_give_up(failures, error)

    def _pause_or_give_up(self, failures: int, error: Exception) -> None:
        if failures >= self._settings.attempts:
            raise ReadFailed(
                f"{self._within} could not be read past offset {self._cursor.position} "
                f"in {failures} attempts; the last: {error}"
            ) from error
        self._network.pause(min(self._settings.pause_ms << (failures - 1), self._settings.pause_ms_max))

    def _read_from_leader(self) -> Iterator[pa.RecordBatch]:
        leader = self._find_leader()
        connection = self._network.connect(leader)
        try:
            self._send_fetch(connection)
            while not self._cursor.done:
                before = self._cursor.position
                answer = self._fetched(self._receive(connection))
                batches = self._cursor.accept(_memory(answer.records))
                if self._cursor.position == before:
                    log_end = answer.high_watermark
                    raise _TryAgain(f"{leader} has no records at offset {before}; its log ends at {log_end}")
                broken = None if self._cursor.done else self._send_ahead(connection)
                yield from self._decoded(batches, answer)
                if broken:
                    raise broken
        finally:
            connection.close()

    def _send_ahead(self, connection: Connection) -> OSError | None:
        """The next request, before what was read is decoded. An error must wait: the cursor has passed that already,
        so it has to be given out first."""
        try:
            self._send_fetch(connection)
        except OSError as error:
            return error
        return None

    def _decoded(self, batches: list[PlacedBatch], answer: FetchedPartition) -> Iterator[pa.RecordBatch]:
        ids = _ids(answer)
        if batches and ids is None and self._settings.require_ids:
            raise MissingId(f"the broker gave no ids with the records of {self._within}; does it keep any?")
        return decode(batches, self._within, self._columns, ids)

    # --- one request, one answer -------------------------------------------------------------------------------

    def _send_fetch(self, connection: Connection) -> None:
        settings = self._settings
        partition = FetchPartition(
            self._within.topic, self._within.partition, self._cursor.position, settings.fetch_bytes
        )
        request = FetchRequest(settings.fetch_wait_ms, 1, settings.fetch_bytes, [partition], wants_ids=True)
        self._send(connection, fetch.API_KEY, FETCH_VERSION, fetch.encode_request(FETCH_VERSION, request))

    def _send(self, connection: Connection, api_key: int, version: int, body: bytes) -> None:
        self._correlation_id += 1
        connection.send(request_header(api_key, version, self._correlation_id, CLIENT_ID, flexible=True) + body)

    def _receive(self, connection: Connection) -> tuple[memoryview, int]:
        """The answer to the latest request: its frame, and where the body begins."""
        frame = connection.receive()
        if len(frame) < 5 or I32.unpack_from(frame)[0] != self._correlation_id:
            raise WireError("the broker answered another request than was sent")
        return frame, skip_tags(frame, 4)

    def _fetched(self, answer: tuple[memoryview, int]) -> FetchedPartition:
        response = fetch.decode_response(FETCH_VERSION, *answer)
        self._check_error(response.error_code, None)
        if len(response.partitions) != 1:
            raise WireError(f"one partition asked for, {len(response.partitions)} answered")
        (fetched,) = response.partitions
        self._check_error(fetched.error_code, fetched)
        return fetched

    def _check_error(self, code: int, fetched: FetchedPartition | None) -> None:
        if code == ErrorCode.NONE:
            return
        if code == ErrorCode.OFFSET_OUT_OF_RANGE and fetched is not None:
            self._raise_out_of_range(fetched)
        name = _name_of(code)
        if code in LEADER_MOVED:
            raise _TryAgain(f"the broker answered {name}")
        raise ReadFailed(f"{self._within} at offset {self._cursor.position}: the broker answered {name}")

    def _raise_out_of_range(self, fetched: FetchedPartition) -> NoReturn:
        raise DataLoss(
            f"{self._within.name} does not have offset {self._cursor.position} of {self._within} (out of range): "
            f"its log starts at {_known(fetched.log_start_offset)} and ends at {_known(fetched.high_watermark)}"
        )

    # --- the leader --------------------------------------------------------------------------------------------

    def _find_leader(self) -> Address:
        """Where the partition's leader is, by the first of the servers that answers."""
        errors = []
        for server in self._servers:
            try:
                return self._leader_by(server)
            except (OSError, WireError) as error:
                errors.append(f"{server}: {error}")
        raise _TryAgain(f"no server answered ({'; '.join(errors)})")

    def _leader_by(self, server: Address) -> Address:
        from broker.wire import cold  # the schema of all of Kafka; a task imports it once

        asked = {"topics": [{"name": self._within.topic}], "allow_auto_topic_creation": False}
        body = cold.encode(METADATA, METADATA_VERSION, "request", asked)
        connection = self._network.connect(server)
        try:
            self._send(connection, METADATA, METADATA_VERSION, body)
            frame, position = self._receive(connection)
        finally:
            connection.close()
        answer = cold.decode(METADATA, METADATA_VERSION, "response", frame, position, METADATA_VERSION).newest
        for topic in answer.topics:
            self._check_error(int(topic.error_code), None)
            self._check_topic_id(topic.topic_id)
            for partition in topic.partitions:
                if partition.partition_index == self._within.partition:
                    return _address(answer.brokers, int(partition.leader_id))
        raise DataLoss(f"topic {self._within.topic!r} has no partition {self._within.partition}")

    def _check_topic_id(self, seen: UUID | None) -> None:
        if self._topic_id and seen and seen.int and str(seen) != self._topic_id:
            raise DataLoss(
                f"topic {self._within.topic!r} is not the one the manifest was made of: its id is {seen}, "
                f"the manifest's {self._topic_id}. It was deleted and made again"
            )


class _TryAgain(Exception):
    """What a consumer meets in passing: a moved leader, an answer that is not there yet."""


def _ids(answer: FetchedPartition) -> list[IdEntry] | None:
    if answer.ids is None:
        return None
    entries = answer.ids.entries
    assert isinstance(entries, (bytes, bytearray))  # a decoded answer holds no file regions
    return list(read_entries(entries, answer.ids.base_offset))


def _memory(records: object) -> Buffer:
    assert isinstance(records, (bytes, bytearray, memoryview))
    return records


def _name_of(code: int) -> str:
    try:
        return f"{ErrorCode(code).name} ({code})"
    except ValueError:
        return f"error {code}"


def _known(offset: int) -> str:
    return "an unknown offset" if offset < 0 else str(offset)


def _address(brokers: Sequence[object], node: int) -> Address:
    for each in brokers:
        if int(getattr(each, "node_id")) == node:
            return Address(str(getattr(each, "host")), int(getattr(each, "port")))
    raise _TryAgain(f"the leader, node {node}, is not among the brokers")
