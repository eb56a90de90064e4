"""The coordinator's records in a log: written as batches to a partition of `__consumer_offsets`, read back at start.

The batches are Kafka's own (uncompressed, no producer), so its tools read them: `kafka-dump-log --offsets-decoder`.
"""

from collections.abc import Iterable, Iterator

from broker.group.outbox import Append
from broker.log.partition_log import IdSource, PartitionLog
from broker.now import Now
from broker.record.batch import HEADER_BYTES, CorruptBatch, read_header, walk
from broker.record.records import Record, decode_records, encode_batch
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.frame import FileRegion

READ_BYTES = 1 << 20  # at a time, while loading; a larger batch comes whole
_RECORD_OVERHEAD_BYTES = 32  # lengths, deltas, attributes and the count of headers, at their longest


def append_records(log: PartitionLog, appends: Iterable[Append], ids: IdSource, now: Now) -> None:
    """Append the records in their order, in as few batches as `max.message.bytes` allows.

    ApiError (MESSAGE_TOO_LARGE for one record that is larger than that) or IdError; what came before it is written.
    """
    for records in _batches(appends, log.config.max_message_bytes):
        batch = encode_batch(records, base_timestamp_ms=now.wall_ms)
        if len(batch) > log.config.max_message_bytes:
            wanted = f"max.message.bytes of {log.topic} is {log.config.max_message_bytes}"
            raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, f"a record of a group has {len(batch)} bytes, {wanted}")
        log.append(memoryview(batch), read_header(batch), ids, now)


def _batches(appends: Iterable[Append], max_bytes: int) -> Iterator[list[Record]]:
    records: list[Record] = []
    size = HEADER_BYTES
    for append in appends:
        record_bytes = len(append.key) + len(append.value or b"") + _RECORD_OVERHEAD_BYTES
        if records and size + record_bytes > max_bytes:
            yield records
            records, size = [], HEADER_BYTES
        records.append(Record(len(records), 0, append.key, append.value))
        size += record_bytes
    if records:
        yield records


def read_back(log: PartitionLog) -> Iterator[tuple[bytes, bytes | None]]:
    """(key, value) of every record, oldest first; those of transactions and control batches are passed over.

    CorruptBatch where the log does not hold what it should, ApiError where it cannot be read.
    """
    offset = log.log_start_offset
    while offset < log.high_watermark:
        start = offset
        records = log.read(offset, READ_BYTES, at_least_one=True).records
        if isinstance(records, FileRegion):
            data = records.file.read(records.position, records.length)
            for position, header in walk(data):
                offset = header.last_offset + 1
                if not (header.is_control or header.is_transactional):
                    yield from _pairs(data, position)
        if offset == start:
            raise CorruptBatch(f"{log.name} has no batch at offset {offset}, before its end ({log.high_watermark})")


def _pairs(data: bytes, position: int) -> Iterator[tuple[bytes, bytes | None]]:
    for record in decode_records(data, position):
        if record.key is not None:
            yield record.key, record.value
