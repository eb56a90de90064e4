"""Record batches to Arrow, a column at a time (the layout of a record: broker.record.records).

Python walks only the lengths of the records; every field's varints are then decoded for all records at once with
numpy. Keys and values are not copied one by one: the bytes of the records become an Arrow binary array whose slots
are gap, key, gap, key, ... and `take` picks the odd ones. Several batches are unpacked into one buffer first, so that
small batches cost little more than large ones.

It gives what `decode_records` gives (a test compares them) and refuses with CorruptBatch what that refuses; but the
bytes of headers are looked at only where the column is asked for.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.record.batch import BatchHeader, CorruptBatch
from broker.record.compression import DECOMPRESSED_BYTES_MAX
from broker.record.records import RECORD_BYTES_MIN, read_headers, records_data
from broker.record.varint import read_varint
from broker.wire.id_entries import IdEntry
from broker.wire.primitives import Buffer
from spark_bridge.offset_range import OffsetRange
from spark_bridge.row import ARROW, arrow_schema

Ints: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]

GROUP_BYTES = 16 << 20
"""About so many bytes of records become one Arrow batch: past some ten thousand rows Spark gains nothing more."""

_LENGTH_VARINT_BYTES_MAX = 5
_DELTA_VARINT_BYTES_MAX = 10
_PADDING = bytes(16)  # a varint read at the very end may look so far; the check after it says it went too far
_BYTES_AT_ONCE_MAX = (1 << 31) - 1 - len(_PADDING)  # offsets into a binary array have 32 bits
_MS_MAX = (1 << 63) // 1000 - 1  # as microseconds it must fit 64 bits


class PlacedBatch(NamedTuple):
    """A whole batch whose CRC was verified, in the buffer it came in."""

    data: Buffer
    position: int
    header: BatchHeader


class _Unpacked(NamedTuple):
    header: BatchHeader
    records: Buffer


class MissingId(ValueError):
    """A broker that keeps ids gave none for a record."""


@dataclass(frozen=True, slots=True)
class _Fields:
    """What is known of each record: absolute offset and time, and where in `plain` its bytes are (length -1: null)."""

    plain: bytes
    offset: Ints
    time_ms: Ints
    time_type: Ints
    key: Ints
    key_length: Ints
    value: Ints
    value_length: Ints
    headers: Ints
    end: Ints

    def only(self, mask: npt.NDArray[np.bool_]) -> "_Fields":
        columns = (getattr(self, name)[mask] for name in self.__slots__[1:])
        return _Fields(self.plain, *columns)


def decode(
    batches: Iterable[PlacedBatch],
    within: OffsetRange,
    columns: Sequence[str],
    ids: Sequence[IdEntry] | None,
    max_bytes: int = DECOMPRESSED_BYTES_MAX,
    group_bytes: int = GROUP_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The records of `batches` (no control batches) whose offsets are in `within`, as `columns` of spark_bridge.row.

    `ids` None: the broker keeps none, the column is null. Each Arrow batch holds about `group_bytes` of records at
    most, each record batch `max_bytes`. Raises CorruptBatch; MissingId where `ids` leaves one out.
    """
    for group in _unpacked(batches, max_bytes, group_bytes):
        fields = _fields(group)
        inside = (fields.offset >= within.start) & (fields.offset < within.end)
        if not inside.all():
            fields = fields.only(inside)
        arrays = [_COLUMNS[name](fields, within, ids) for name in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def _unpacked(batches: Iterable[PlacedBatch], max_bytes: int, group_bytes: int) -> Iterator[list[_Unpacked]]:
    """Batches with their records unpacked, as many together as are worth one turn of numpy."""
    group: list[_Unpacked] = []
    size = 0
    for batch in batches:
        records = records_data(batch.data, batch.header, batch.position, max_bytes)
        if group and size + len(records) > group_bytes:
            yield group
            group, size = [], 0
        group.append(_Unpacked(batch.header, records))
        size += len(records)
    if group:
        yield group


# --- where everything is -----------------------------------------------------------------------------------------


def _fields(batches: Sequence[_Unpacked]) -> _Fields:
    starts: list[int] = []
    size = 0
    for header, records in batches:
        _walk(records, header.record_count, size, starts)
        size += len(records)
    if size > _BYTES_AT_ONCE_MAX:
        raise CorruptBatch(f"{size} bytes of records in one batch; Arrow holds {_BYTES_AT_ONCE_MAX}")
    plain = b"".join((*(batch.records for batch in batches), _PADDING))
    headers = [batch.header for batch in batches]
    counts = [header.record_count for header in headers]
    at = np.frombuffer(plain, np.uint8)
    start = np.array(starts, np.int64)
    length, position = _varints(at, start, _LENGTH_VARINT_BYTES_MAX)
    end = position + length
    time_delta, position = _checked(at, position + 1, end, _DELTA_VARINT_BYTES_MAX)
    offset_delta, position = _checked(at, position, end, _LENGTH_VARINT_BYTES_MAX)
    _check_deltas(offset_delta, headers)
    key_length, key = _checked(at, position, end, _LENGTH_VARINT_BYTES_MAX)
    value_length, value = _checked(at, key + np.maximum(key_length, 0), end, _LENGTH_VARINT_BYTES_MAX)
    after = value + np.maximum(value_length, 0)
    header_count, header_bytes = _checked(at, after, end, _LENGTH_VARINT_BYTES_MAX)
    if ((header_count < 0) | ((header_count == 0) & (header_bytes != end))).any():
        raise CorruptBatch("a record does not end where its length says")
    log_time = _each([header.is_log_append_time for header in headers], counts)
    time = np.where(
        log_time,
        _each([header.max_timestamp for header in headers], counts),
        _each([header.base_timestamp for header in headers], counts) + time_delta,
    )
    offset = _each([header.base_offset for header in headers], counts) + offset_delta
    return _Fields(plain, offset, time, log_time, key, key_length, value, value_length, after, end)


def _walk(part: Buffer, count: int, base: int, starts: list[int]) -> None:
    """Add where each record of a batch begins, `base` further on; CorruptBatch unless they fill `part`.

    The one loop of Python's over all records, so it is written out: lengths of one and two bytes are most.
    """
    size = len(part)
    if not 0 <= count <= size // RECORD_BYTES_MIN:
        raise CorruptBatch(f"the header counts {count} records, {size} bytes cannot hold them")
    data = bytes(part)  # half the time of a memoryview, byte by byte
    add = starts.append
    position = 0
    try:
        for _ in range(count):
            add(base + position)
            byte = data[position]
            if byte < 0x80:
                length, position = byte, position + 1
            elif (high := data[position + 1]) < 0x80:
                length, position = byte & 0x7F | high << 7, position + 2
            else:
                signed, position = read_varint(data, position)
                length = signed << 1 if signed >= 0 else 1
            if length & 1:  # zigzag: an odd number is negative
                raise CorruptBatch("a record says a length below zero")
            position += length >> 1
    except IndexError:
        raise CorruptBatch(f"{count} records counted, the batch ends before them") from None
    if position != size:
        raise CorruptBatch(f"{count} records end at byte {position} of {size}")


def _each(values: Sequence[int], counts: Sequence[int]) -> Ints:
    """Each batch's value, once for each of its records."""
    return np.repeat(np.array(values, np.int64), counts)


def _varints(at: Bytes, position: Ints, bytes_max: int) -> tuple[Ints, Ints]:
    """Zigzag varints at all positions: (values, positions after them). CorruptBatch past `bytes_max`."""
    byte = at[position]
    value = (byte & 0x7F).astype(np.uint64)
    after = position + 1
    (more,) = np.nonzero(byte >= 0x80)  # indexes of those that go on: few, mostly
    for number in range(1, bytes_max):
        if not more.size:
            break
        byte = at[after[more]]
        value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * number)
        after[more] += 1
        more = more[byte >= 0x80]
    if more.size:
        raise CorruptBatch(f"a varint of a record is longer than {bytes_max} bytes")
    return (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64), after


def _checked(at: Bytes, position: Ints, end: Ints, bytes_max: int) -> tuple[Ints, Ints]:
    """Varints that must lie inside their records."""
    if (position >= end).any():
        raise CorruptBatch("a field of a record runs past the record's end")
    value, after = _varints(at, position, bytes_max)
    if (after > end).any():
        raise CorruptBatch("a varint of a record runs past the record's end")
    return value, after


def _check_deltas(deltas: Ints, headers: Sequence[BatchHeader]) -> None:
    """As broker.record.records.check_deltas: rising inside each batch, from 0 to its last offset delta."""
    counts = [header.record_count for header in headers]
    last = _each([header.last_offset_delta for header in headers], counts)
    first = np.zeros(len(deltas), bool)
    first[np.cumsum([0, *counts])[:-1][np.array(counts) > 0]] = True
    rises = np.ones(len(deltas), bool)
    rises[1:] = np.diff(deltas) > 0
    if ((deltas < 0) | (deltas > last) | ~(rises | first)).any():
        raise CorruptBatch("offset deltas of the records do not rise from 0 to the batch's last")


# --- columns -----------------------------------------------------------------------------------------------------

_Column: TypeAlias = Callable[[_Fields, OffsetRange, Sequence[IdEntry] | None], Any]


def _binary(plain: bytes, position: Ints, length: Ints) -> pa.Array:
    """The slices of `plain`, null where the length is negative, by one `take` from a wrapping array."""
    number = len(position)
    null = length < 0
    if number == 0 or null.all():
        return pa.nulls(number, pa.binary())
    edges = np.zeros(2 * number + 1, np.int32)
    edges[1::2] = position
    edges[2::2] = position + np.where(null, 0, length)
    valid = None
    if null.any():
        bits = np.ones(2 * number, bool)
        bits[1::2] = ~null
        valid = pa.py_buffer(np.packbits(bits, bitorder="little").tobytes())
    slots = pa.Array.from_buffers(pa.binary(), 2 * number, [valid, pa.py_buffer(edges), pa.py_buffer(plain)])
    return slots.take(pa.array(np.arange(1, 2 * number, 2, dtype=np.int32)))


def _timestamp(fields: _Fields, *_: object) -> pa.Array:
    if ((fields.time_ms > _MS_MAX) | (fields.time_ms < -_MS_MAX)).any():
        raise CorruptBatch("a timestamp of the records is out of range")
    return pa.array(fields.time_ms * 1000).view(ARROW["timestamp"])


def _headers(fields: _Fields, *_: object) -> pa.Array:
    rows = []
    for position, end in zip(fields.headers.tolist(), fields.end.tolist(), strict=True):
        try:
            headers, after = read_headers(fields.plain, position, end)
        except (IndexError, UnicodeDecodeError) as error:
            raise CorruptBatch(f"the headers of a record: {error}") from None
        if after != end:
            raise CorruptBatch("a record does not end where its length says")
        rows.append([{"key": name, "value": value} for name, value in headers] or None)
    return pa.array(rows, ARROW["headers"])


def _ids(fields: _Fields, within: OffsetRange, ids: Sequence[IdEntry] | None) -> pa.Array:
    offset = fields.offset
    if ids is None or not len(offset):
        return pa.nulls(len(offset), pa.int64())
    first = np.array([run.offset for run in ids], np.int64)
    slot = np.searchsorted(first, offset, side="right") - 1
    inside = slot >= 0
    if inside.all():
        ends = first + np.array([run.length for run in ids], np.int64)
        inside = offset < ends[slot]
    if not inside.all():
        raise MissingId(f"the broker gave no id for offset {offset[~inside][0]} of {within.name}")
    return pa.array(np.array([run.first_id for run in ids], np.int64)[slot] + (offset - first[slot]))


def _repeat(value: Any, name: str, fields: _Fields) -> pa.Array:
    return pa.repeat(pa.scalar(value, ARROW[name]), len(fields.offset))


_COLUMNS: dict[str, _Column] = {
    "key": lambda fields, *_: _binary(fields.plain, fields.key, fields.key_length),
    "value": lambda fields, *_: _binary(fields.plain, fields.value, fields.value_length),
    "topic": lambda fields, within, _: _repeat(within.topic, "topic", fields),
    "partition": lambda fields, within, _: _repeat(within.partition, "partition", fields),
    "offset": lambda fields, *_: pa.array(fields.offset),
    "timestamp": _timestamp,
    "timestampType": lambda fields, *_: pa.array(fields.time_type.astype(np.int32)),
    "headers": _headers,
    "id": _ids,
}
