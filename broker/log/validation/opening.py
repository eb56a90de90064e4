"""Validation of a batch's records, before the batch is staged: `broker.log.validation.batch` has checked its header.

    flakelog.validate.records=header     the records stay closed, unless a rule of the topic needs them
                              lengths    at most 16 records: all fields; more: their lengths fill the batch
                              full       all fields of all records

Compressed records are decompressed once for everything that needs them: the check, the rules of the topic, and the
headers with ids. The output is bounded by `flakelog.max.unpacked.batch.bytes`. When a buffer of it is full, the lengths
of the records so far must fit the count that the header has; so a compression bomb ends after the first buffer.

The reactor thread does as much of this as its budget allows, because a worker thread costs more than a small batch.
`OverBudget` leaves everything as it was; a thread then does the same again without a budget
(broker.produce.batch_opening).
"""

from collections.abc import Sequence
from typing import NamedTuple

from broker.log.validation.record_check import (
    FEW_RECORDS,
    Budget,
    OverBudget,
    check_fields,
    check_lengths,
    check_prefix,
)
from broker.log.validation.topic_rules import (
    Openable,
    Opened,
    apply_topic_rules,
    check_openable,
    needs_opening,
    with_id_headers,
)
from broker.record.batch import COMPRESSION_MASK, HEADER_BYTES, BatchHeader, CorruptBatch, seal
from broker.record.compression import Codec, TooLarge, check_lz4_frame, decompress
from broker.record.records import check_deltas, read_records
from broker.settings.config import FULL, HEADER, PRODUCER, BrokerConfig, TopicConfig
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.primitives import Buffer
from idgen.worker import IdRun

INLINE_UNITS: int | None = 20_000
"""The work on the records of one request in the reactor thread, some 2 ms: as long as a turn (TURN_NS)."""
INLINE_PACKED_BYTES_MAX = 64 << 10  # larger compressed batches are opened by a thread
INLINE_OPENED_BYTES_MAX = 512 << 10  # ... and batches that unpack to more; below, passing them to a thread costs more
_BYTES_PER_UNIT = 64  # of output: gzip, the slowest codec, decompresses about 64 bytes in UNIT_NS
_PACKED_BYTES_PER_UNIT = {Codec.GZIP: 1, Codec.SNAPPY: 64, Codec.LZ4: 8, Codec.ZSTD: 64}
"""Bytes of input for one unit. A gzip input may have thousands of empty members, an LZ4 input thousands of blocks."""
_TRY_UNITS = 50  # of each buffer, as snappy may have a hundred thousand of them
_DECODE_UNITS = 15  # to decode a record as objects
_COMPRESS_BYTES_PER_UNIT = 8
_ZSTD_FAST_LEVEL_MAX = 6  # the levels above it take many times as long


class Limits(NamedTuple):
    """The broker's limits on records."""

    openable: Openable
    headers_max: int
    """`flakelog.max.record.headers`."""


def limits_of(config: BrokerConfig) -> Limits:
    openable = Openable(config.max_unpacked_batch_bytes, config.max_opened_batch_records)
    return Limits(openable, config.max_record_headers)


class IdHeaders:
    """Adds to the records of an opened batch a header with their ids (broker.log.log_appender.Rewrite).

    `runs` are the ids that a thread has added already. They are used if they are still above the log's last id.
    """

    def __init__(self, topic: TopicConfig, opened: Opened) -> None:
        self._topic = topic
        self._opened = opened
        self._stamped: tuple[memoryview, BatchHeader] | None = None
        self.runs: Sequence[IdRun] = ()

    def stamp(self, header: BatchHeader, runs: Sequence[IdRun]) -> None:
        """Add these ids now. Raise the errors of `with_id_headers`."""
        self._stamped, self.runs = with_id_headers(header, runs, self._topic, self._opened), runs

    def __call__(self, header: BatchHeader, runs: Sequence[IdRun]) -> tuple[memoryview, BatchHeader]:
        """Return the batch and its header with these ids. Raise the errors of `with_id_headers`."""
        if self._stamped is None or runs is not self.runs:
            return with_id_headers(header, runs, self._topic, self._opened)
        batch, stamped = self._stamped
        if stamped.max_timestamp != header.max_timestamp:  # the time of the append came later
            stamped = seal(batch, stamped._replace(max_timestamp=header.max_timestamp))
        return batch, stamped


class Prepared(NamedTuple):
    """A batch in the form that its topic stores, and its header. `opened` are its records if they were decoded."""

    batch: memoryview
    header: BatchHeader
    opened: Opened | None


def prepare(
    batch: memoryview, header: BatchHeader, topic: TopicConfig, name: str, wall_ms: int, limits: Limits, budget: Budget
) -> Prepared:
    """Check the records of a batch with a valid header, and apply the rules of the topic for records.

    `name` is the partition's. Raise ApiError INVALID_RECORD for bytes that are no records, the errors of
    `apply_topic_rules`, and OverBudget.
    """
    opened = None
    if needs_opening(header, topic, wall_ms):
        opened = _open(batch, header, topic, limits, budget)
    else:
        check_records(batch, header, topic, limits, budget)
    batch, header = apply_topic_rules(batch, header, topic, name, wall_ms, opened)
    return Prepared(batch, header, opened)


def check_records(
    batch: memoryview, header: BatchHeader, topic: TopicConfig, limits: Limits, budget: Budget
) -> None:
    """Check the records as `flakelog.validate.records` of the topic says. Raise as `prepare` does."""
    if topic.validate_records == HEADER:
        return
    count = header.record_count
    try:
        data: Buffer = batch[HEADER_BYTES:]
        if header.attributes & COMPRESSION_MASK:
            data = _records_of(batch, header, topic, limits, budget)
        if count <= FEW_RECORDS or topic.validate_records == FULL:
            check_fields(data, count, limits.headers_max, budget)
        else:
            check_lengths(data, count, budget)
    except CorruptBatch as error:
        raise _refusal(error) from None


def _open(batch: memoryview, header: BatchHeader, topic: TopicConfig, limits: Limits, budget: Budget) -> Opened:
    """Decode all records of a batch."""
    check_openable(header, limits.openable)
    budget.spend(header.record_count * _DECODE_UNITS)
    try:
        data = _records_of(batch, header, topic, limits, budget)
        if topic.compression_type != PRODUCER or topic.id_header:
            slow = topic.compression_zstd_level > _ZSTD_FAST_LEVEL_MAX
            budget.spend(len(data) // (1 if slow else _COMPRESS_BYTES_PER_UNIT))
        if topic.validate_records != HEADER:
            check_fields(data, header.record_count, limits.headers_max, budget)
        records = read_records(data, header.record_count)
        check_deltas([record.offset_delta for record in records], header.last_offset_delta)
    except CorruptBatch as error:
        raise _refusal(error) from None
    return Opened(data, records)


def _refusal(error: CorruptBatch) -> ApiError:
    """Return the answer to a batch whose records are at fault. The CRC was valid, so the fault is the producer's."""
    if isinstance(error, TooLarge):
        return ApiError(ErrorCode.MESSAGE_TOO_LARGE, f"{error} (flakelog.max.unpacked.batch.bytes)")
    return ApiError(ErrorCode.INVALID_RECORD, str(error))


def _records_of(
    batch: memoryview, header: BatchHeader, topic: TopicConfig, limits: Limits, budget: Budget
) -> Buffer:
    """Return the decompressed bytes of the records."""
    packed = batch[HEADER_BYTES:]
    codec = Codec(header.compression)
    if codec is Codec.NONE:
        return packed
    if budget.is_limited and len(packed) > INLINE_PACKED_BYTES_MAX:
        raise OverBudget
    budget.spend(len(packed) // _PACKED_BYTES_PER_UNIT[codec])
    if codec is Codec.LZ4 and topic.validate_records != HEADER:
        check_lz4_frame(packed)
    max_bytes = limits.openable.bytes_max
    return decompress(codec, packed, max_bytes, _Bounds(codec, header.record_count, max_bytes, budget))


class _Bounds:
    """Bounds a decompression by the budget and by the number of records (broker.record.compression.Watch)."""

    def __init__(self, codec: Codec, count: int, max_bytes: int, budget: Budget) -> None:
        self._codec, self._count, self._max_bytes, self._budget = codec, count, max_bytes, budget
        self._bytes = 0

    def next_try(self, size: int) -> None:
        """Spend what the decompression of `size` bytes costs."""
        self._bytes += size
        if self._budget.is_limited and self._bytes > INLINE_OPENED_BYTES_MAX:
            raise OverBudget
        self._budget.spend(_TRY_UNITS + size // _BYTES_PER_UNIT)

    def filled(self, begin: Buffer) -> None:
        """Check the records in the part that is decompressed."""
        check_prefix(begin, self._count, self._max_bytes, self._codec, self._budget)
