"""A coordinator's records, which it writes as batches to a partition of its topic and reads back at start.

The batches have Kafka's format, uncompressed, so Kafka's tools read them: `kafka-dump-log --offsets-decoder` for
groups, `--transaction-log-decoder` for transactions. Only offsets committed in a transaction have a producer.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from broker.log import log_appender, log_reader
from broker.log.log_appender import IdSource
from broker.log.partition_log import PartitionLog
from broker.now import Now
from broker.record.batch import HEADER_BYTES, BatchHeader, CorruptBatch, read_header, walk
from broker.record.control import decode_marker
from broker.record.records import BatchRecord, decode_records, encode_batch
from broker.steps import Pace, Steps
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.frame import FileRegion

READ_BYTES = 1 << 18  # per read while loading; a larger batch is read whole
ITEM_BYTES = 100  # of a value, that take as long as one more record to load
_RECORD_OVERHEAD_BYTES = 32  # maximum of lengths, deltas, attributes and header count


class KeyedRecord(Protocol):
    """A record to write; a value of None makes it a tombstone."""

    @property
    def key(self) -> bytes: ...

    @property
    def value(self) -> bytes | None: ...


class Replayed(NamedTuple):
    """A record that is read back. In a transaction it has the producer's id, and counts once that commits."""

    key: bytes
    value: bytes | None
    producer_id: int | None = None


class Ended(NamedTuple):
    """The end of a producer's transaction."""

    producer_id: int
    commit: bool


def append_records(
    log: PartitionLog,
    appends: Iterable[KeyedRecord],
    ids: IdSource,
    now: Now,
    producer: tuple[int, int] | None = None,
) -> None:
    """Append records in their order, in as few batches as `max.message.bytes` allows.

    `producer` is the (id, epoch) in whose transaction they are written. Raise ApiError MESSAGE_TOO_LARGE for a single
    record above that limit, or IdError; earlier records stay written.
    """
    for records in _batches(appends, log.config.max_message_bytes):
        batch = _encode(records, now, producer)
        if len(batch) > log.config.max_message_bytes:
            wanted = f"max.message.bytes of {log.topic} is {log.config.max_message_bytes}"
            raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, f"a record has {len(batch)} bytes, {wanted}")
        log_appender.append(log, memoryview(batch), read_header(batch), ids, now)


def _encode(records: list[BatchRecord], now: Now, producer: tuple[int, int] | None) -> bytearray:
    if producer is None:
        return encode_batch(records, base_timestamp_ms=now.wall_ms)
    producer_id, epoch = producer
    return encode_batch(
        records, base_timestamp_ms=now.wall_ms, producer_id=producer_id, producer_epoch=epoch, transactional=True
    )


def _batches(appends: Iterable[KeyedRecord], max_bytes: int) -> Iterator[list[BatchRecord]]:
    records: list[BatchRecord] = []
    size = HEADER_BYTES
    for append in appends:
        record_bytes = len(append.key) + len(append.value or b"") + _RECORD_OVERHEAD_BYTES
        if records and size + record_bytes > max_bytes:
            yield records
            records, size = [], HEADER_BYTES
        records.append(BatchRecord(len(records), 0, append.key, append.value))
        size += record_bytes
    if records:
        yield records


def replay(
    log: PartitionLog, offset: int, load: Callable[[Replayed | Ended], None], pace: Pace, now: Now
) -> Steps[tuple[int, Now]]:
    """Pass every record and every end of a transaction from an offset on to `load`, oldest first, in slices.

    Return the offset after the last batch of the log, and the time. Consumers may not see that batch yet. Batches that
    are appended between the slices are replayed too. Raise CorruptBatch if the log has a gap or a damaged batch,
    ApiError if it cannot be read, and the errors of `load`.
    """
    for following, entries in _batches_of(log, offset):
        for entry in entries:
            load(entry)
            if pace.is_over(_items_of(entry)):
                now = yield
        offset = following
        if pace.is_over():
            now = yield
    return offset, now


def _items_of(entry: Replayed | Ended) -> int:
    """Return how many items an entry counts as in a slice: many if it is large, such as a group of many members."""
    return 1 + (len(entry.value or b"") // ITEM_BYTES if isinstance(entry, Replayed) else 0)


def _batches_of(log: PartitionLog, offset: int) -> Iterator[tuple[int, list[Replayed | Ended]]]:
    """Yield the records or the end of a transaction in each batch, with the offset of the following batch.

    The log may grow or lose its oldest records meanwhile.
    """
    while (offset := max(offset, log.log_start_offset)) < log.log_end_offset:
        start = offset
        records = log_reader.read(log, offset, READ_BYTES, at_least_one=True, upto=log.log_end_offset).records
        if isinstance(records, FileRegion):
            with log_reader.reading(log):
                data = records.file.read(records.position, records.length)
            for position, header in walk(data):
                offset = header.last_offset + 1
                yield offset, _entries(data, position, header)
        if offset == start:
            raise CorruptBatch(f"{log.name} has no batch at offset {offset}, before its end ({log.log_end_offset})")


def _entries(data: bytes, position: int, header: BatchHeader) -> list[Replayed | Ended]:
    if not header.is_control:
        return list(_pairs(data, position, header.producer_id if header.is_transactional else None))
    marker = decode_marker(data, position)
    return [] if marker is None else [Ended(header.producer_id, marker.commit)]


def _pairs(data: bytes, position: int, producer_id: int | None) -> Iterator[Replayed]:
    for record in decode_records(data, position):
        if record.key is not None:
            yield Replayed(record.key, record.value, producer_id)
