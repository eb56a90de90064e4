"""A batch after compaction removed some of its records (https://kafka.apache.org/documentation/#compaction).

The remaining records keep their offsets, times and bytes. The batch keeps its first and last offset and its sequence,
so that a reader knows its range and the producer's next sequence follows. An emptied batch is a header alone. A delete
horizon (KIP-534) replaces the base timestamp, and the records' timestamp deltas count from it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from broker.record.batch import (
    COMPRESSION_MASK,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    NO_TIMESTAMP,
    BatchHeader,
    CorruptBatch,
)
from broker.record.columns import Columns, columns_of
from broker.record.compression import DECOMPRESSED_BYTES_MAX, codec_of, compress
from broker.record.records import LONG_MAX, RECORD_BYTES_MIN, check_deltas, check_times, read_headers, records_data
from broker.record.varint import read_varint, varint

COLUMNS_RECORDS_MIN = 16  # fewer records are as fast to decode


class Span(NamedTuple):
    """The position of a record in the unpacked bytes of its batch, and the fields that the cleaner needs."""

    start: int
    attributes: int
    """Position of the attributes, after the length."""
    rest: int
    """Position after the timestamp delta."""
    end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    is_tombstone: bool


class Spans(NamedTuple):
    """The unpacked bytes of a batch's records, and the span of each."""

    data: bytes
    spans: list[Span]


def unpacked(batch: bytes, header: BatchHeader) -> bytes:
    """Return the bytes of a batch's records. Raise CorruptBatch if they cannot be unpacked."""
    return bytes(records_data(batch, header, 0, DECOMPRESSED_BYTES_MAX))


def opened(batch: bytes, header: BatchHeader) -> Columns | Spans:
    """Return the records of a batch, as columns if they have one of the usual layouts. Raise as `spans_of`."""
    data = unpacked(batch, header)
    columns = columns_of(data, header) if header.record_count >= COLUMNS_RECORDS_MIN else None
    return spans_in(data, header) if columns is None else columns


def spans_of(batch: bytes, header: BatchHeader) -> Spans:
    """Return the records of a batch. Raise CorruptBatch for all that `decode_records` rejects, except a wrong CRC."""
    return spans_in(unpacked(batch, header), header)


def spans_in(data: bytes, header: BatchHeader) -> Spans:
    """Return the records in their unpacked bytes. Raise CorruptBatch."""
    if not 0 <= header.record_count <= len(data) // RECORD_BYTES_MIN:
        raise CorruptBatch(f"the header counts {header.record_count} records, {len(data)} bytes cannot hold them")
    spans = list(_spans(data, header.record_count))
    if (spans[-1].end if spans else 0) != len(data):
        raise CorruptBatch(f"{header.record_count} records do not fill the {len(data)} bytes of their batch")
    check_deltas([span.offset_delta for span in spans], header.last_offset_delta)
    check_times(header, [span.timestamp_delta for span in spans])
    return Spans(data, spans)


def _spans(data: bytes, count: int) -> Iterator[Span]:
    position = 0
    for number in range(count):
        try:
            span = _span(data, position)
        except (IndexError, UnicodeDecodeError):
            raise CorruptBatch(f"record {number} of {count} at byte {position} of {len(data)} is cut off") from None
        position = span.end
        yield span


def _span(data: bytes, start: int) -> Span:
    size, attributes = read_varint(data, start)
    end = attributes + size
    timestamp_delta, rest = read_varint(data, attributes + 1)
    offset_delta, position = read_varint(data, rest)
    key_size, position = read_varint(data, position)
    key = None
    if key_size >= 0:
        key = data[position : position + key_size]
        position += key_size
    value_size, position = read_varint(data, position)
    position += max(value_size, 0)
    if size < 0 or end > len(data) or position >= end:
        raise CorruptBatch(f"a record at byte {start} goes past the {size} bytes it says it has")
    after = position + 1 if not data[position] else read_headers(data, position, end)[1]
    if after != end:
        raise CorruptBatch(f"a record at byte {start} does not end where its length says")
    return Span(start, attributes, rest, end, timestamp_delta, offset_delta, key, value_size < 0)


def retain(
    batch: bytes, header: BatchHeader, records: Spans, kept: list[Span], horizon_ms: int, always_horizon: bool = False
) -> bytes | None:
    """Return the batch reduced to the records `kept`: `batch` itself if nothing changes, None if `kept` is empty.

    If the batch has no delete horizon and keeps a tombstone or `always_horizon` is set, `horizon_ms` becomes its delete
    horizon, unless the horizon or a time counted from it has more than 64 bits.
    """
    if not kept:
        return None
    data = records.data
    moved = header.base_timestamp - horizon_ms
    wants_horizon = header.delete_horizon_ms is None and (always_horizon or any(span.is_tombstone for span in kept))
    if not wants_horizon or not _fits(kept, moved, horizon_ms):
        if len(kept) == len(records.spans):
            return batch
        return _write(header, _newest(kept), len(kept), b"".join(data[span.start : span.end] for span in kept))
    kept = [span._replace(timestamp_delta=span.timestamp_delta + moved) for span in kept]
    horizon = header._replace(base_timestamp=horizon_ms, attributes=header.attributes | DELETE_HORIZON_BIT)
    return _write(horizon, _newest(kept), len(kept), b"".join(_retimed(data, span) for span in kept))


def retain_columns(batch: bytes, header: BatchHeader, records: Columns, wanted: bytes) -> bytes | None:
    """Return the batch reduced to the records with a 1 in `wanted`: `batch` itself if all have, None if none has."""
    number = wanted.count(1)
    if number == len(wanted):
        return batch
    return _write(header, records.newest(wanted), number, records.kept(wanted)) if number else None


def _newest(kept: Sequence[Span]) -> int:
    return max(span.timestamp_delta for span in kept)


def _fits(kept: list[Span], moved: int, horizon_ms: int) -> bool:
    """Return True if the horizon, and each time counted from it, has 64 bits.

    A delete.retention.ms without end, or a crafted time, has more.
    """
    return horizon_ms <= LONG_MAX and all(-LONG_MAX <= span.timestamp_delta + moved <= LONG_MAX for span in kept)


def _retimed(data: bytes, span: Span) -> bytes:
    body = data[span.attributes : span.attributes + 1] + varint(span.timestamp_delta) + data[span.rest : span.end]
    return varint(len(body)) + body


def _write(header: BatchHeader, newest_delta: int, number: int, records: bytes) -> bytes:
    newest = header.max_timestamp if header.is_log_append_time else header.base_timestamp + newest_delta
    packed = compress(codec_of(header.compression), records)
    return _sealed(header._replace(max_timestamp=newest, record_count=number), bytes(packed))


def emptied(header: BatchHeader) -> bytes:
    """Return the batch as a header alone, which keeps its offsets, its last sequence and its newest time."""
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT)
    return _sealed(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b"")


def _sealed(header: BatchHeader, records: bytes) -> bytes:
    """Return the whole batch, with its length and CRC set."""
    header = header._replace(batch_length=HEADER_BYTES - LENGTH_END + len(records))
    batch = bytearray(HEADER.pack(*header)) + records
    crc = crc32c(memoryview(batch)[CRC_START:])
    HEADER.pack_into(batch, 0, *header._replace(crc=crc))
    return bytes(batch)
