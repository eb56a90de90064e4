"""Decoding of record batches to Arrow, one column at a time (record layout: broker.record.records).

The starts of the records come first (spark_bridge.reading.record_starts). Numpy then decodes the varints of each field
for all records at once. Keys and values are not copied one by one: the bytes of the records become an Arrow binary
array whose slots are gap, key, gap, key, ..., and `take` selects the odd slots. Several batches are unpacked into one
buffer first, so that small batches cost little more than large ones.

The result equals that of `decode_records` (a test compares them), and a batch that `decode_records` rejects is passed
to `on_poison`. However, the bytes of headers are read only if the column is requested.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.record.batch import BatchHeader, CorruptBatch
from broker.record.compression import DECOMPRESSED_BYTES_MAX, TooLarge
from broker.record.id_header import id_of
from broker.record.records import Headers, read_headers, records_data
from broker.wire.id_entries import IdEntry
from broker.wire.primitives import Buffer
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.record_starts import PADDING_BYTES, record_starts
from spark_bridge.reading.row import ARROW, arrow_schema

Ints: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]

GROUP_BYTES = 16 << 20
"""Approximate bytes of records in one Arrow batch. Beyond about ten thousand rows Spark gains nothing more."""

_LENGTH_VARINT_BYTES_MAX = 5
_DELTA_VARINT_BYTES_MAX = 10
_PADDING = bytes(PADDING_BYTES)  # for a varint read that starts at the very end; the check after the read rejects it
_BYTES_AT_ONCE_MAX = (1 << 31) - 1 - len(_PADDING)  # offsets into a binary array have 32 bits
_MS_MAX = (1 << 63) // 1000 - 1  # the value in microseconds must fit 64 bits


_ONE_BYTE = np.array([byte >> 1 ^ -(byte & 1) for byte in range(128)], np.int64)  # the values of one-byte varints


class PlacedBatch(NamedTuple):
    """A complete batch with a verified CRC, in the buffer it was received in."""

    data: Buffer
    position: int
    header: BatchHeader


class _Unpacked(NamedTuple):
    header: BatchHeader
    records: Buffer


OnPoison: TypeAlias = Callable[[BatchHeader, CorruptBatch], None]


def fail_on_poison(header: BatchHeader, error: CorruptBatch) -> None:
    """Raise the error of a batch that cannot be decoded."""
    raise error


_DecodeGroup: TypeAlias = Callable[[Sequence[BatchHeader], Sequence[int], bytes], pa.RecordBatch]
NO_TURN = nullcontext()
"""The turn of a program that reads in one thread."""


class MissingId(ValueError):
    """A broker that keeps ids gave no id for a record."""


@dataclass(frozen=True, slots=True)
class _Fields:
    """The fields of each record: absolute offset and time, and byte positions in `plain`; length -1 means null."""

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
    on_poison: OnPoison = fail_on_poison,
    large_turn: AbstractContextManager[object] = NO_TURN,
) -> Iterator[pa.RecordBatch]:
    """Yield the records whose offsets are in `within`, as Arrow batches with `columns` of spark_bridge.reading.row.

    `batches` must not include control batches. If `ids` is None, the broker keeps no ids: the column has those of
    headers `flakelog-id`, else null. An Arrow batch holds at most about `group_bytes` of records, and a record batch
    at most `max_bytes`. A batch that cannot be decoded is passed to `on_poison`, and left out if that returns. Raise
    MissingId if `ids` lacks an offset.

    A record batch that unpacks to more than `group_bytes` is unpacked within `large_turn`, and the turn lasts until the
    caller asks for the next Arrow batch. Threads that share a lock as their turn unpack one such batch at a time.
    """
    decode_group = partial(_arrow_batch, within=within, columns=columns, ids=ids)
    for group in _grouped(batches, max_bytes, group_bytes, on_poison):
        if isinstance(group, PlacedBatch):
            with large_turn:
                yield from _large(group, max_bytes, decode_group, on_poison)
        else:
            yield from _decoded(group, decode_group, on_poison)


def _decoded(group: Sequence[_Unpacked], decode_group: _DecodeGroup, on_poison: OnPoison) -> Iterator[pa.RecordBatch]:
    """Yield the group as one Arrow batch, or batch by batch if one of its batches cannot be decoded."""
    headers = [batch.header for batch in group]
    sizes = [len(batch.records) for batch in group]
    try:
        made = decode_group(headers, sizes, b"".join((*(batch.records for batch in group), _PADDING)))
    except CorruptBatch as error:
        if len(group) == 1:
            on_poison(group[0].header, error)
            return
    else:
        yield made
        return
    for batch in group:
        yield from _decoded([batch], decode_group, on_poison)


def _large(
    batch: PlacedBatch, max_bytes: int, decode_group: _DecodeGroup, on_poison: OnPoison
) -> Iterator[pa.RecordBatch]:
    """Yield a batch that is larger than a group. No name holds its unpacked records longer than they are needed."""
    try:
        plain = b"".join((records_data(batch.data, batch.header, batch.position, max_bytes), _PADDING))
        made = decode_group([batch.header], [len(plain) - len(_PADDING)], plain)
    except CorruptBatch as error:
        on_poison(batch.header, error)
    else:
        del plain
        yield made


def _arrow_batch(
    headers: Sequence[BatchHeader],
    sizes: Sequence[int],
    plain: bytes,
    within: OffsetRange,
    columns: Sequence[str],
    ids: Sequence[IdEntry] | None,
) -> pa.RecordBatch:
    fields = _fields(headers, sizes, plain)
    inside = (fields.offset >= within.start) & (fields.offset < within.end)
    if not inside.all():
        fields = fields.only(inside)
    arrays = [_COLUMNS[name](fields, within, ids) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def _grouped(
    batches: Iterable[PlacedBatch], max_bytes: int, group_bytes: int, on_poison: OnPoison
) -> Iterator[list[_Unpacked] | PlacedBatch]:
    """Yield groups of unpacked batches, each group of about `group_bytes` for one pass of numpy.

    A larger batch is yielded alone, and packed.
    """
    group: list[_Unpacked] = []
    size = 0
    for batch in batches:
        try:
            records = records_data(batch.data, batch.header, batch.position, min(max_bytes, group_bytes))
            is_large = len(records) > group_bytes
        except CorruptBatch as error:
            is_large = isinstance(error, TooLarge) and group_bytes < max_bytes
            if not is_large:
                on_poison(batch.header, error)
                continue
        if group and (is_large or size + len(records) > group_bytes):
            yield group
            group, size = [], 0
        if is_large:
            yield batch
            continue
        group.append(_Unpacked(batch.header, records))
        size += len(records)
    if group:
        yield group


# --- positions of fields ----------------------------------------------------------------------------------------------


def _fields(headers: Sequence[BatchHeader], sizes: Sequence[int], plain: bytes) -> _Fields:
    """Return the fields of the records of batches that have these headers and sizes. `plain` ends with padding."""
    size = sum(sizes)
    if size > _BYTES_AT_ONCE_MAX:
        raise CorruptBatch(f"{size} bytes of records in one batch; Arrow holds {_BYTES_AT_ONCE_MAX}")
    counts = [header.record_count for header in headers]
    at = np.frombuffer(plain, np.uint8)
    start = record_starts(plain, sizes, counts)
    length, position = _varints(at, start, _LENGTH_VARINT_BYTES_MAX)
    end = position + length
    if (end > size).any():  # chains of records end at the last byte, whatever length the last record says
        raise CorruptBatch("the last record says a length past the end of the batch")
    time_delta, position = _checked(at, position + 1, end, _DELTA_VARINT_BYTES_MAX)
    offset_delta, position = _checked(at, position, end, _LENGTH_VARINT_BYTES_MAX)
    _check_deltas(offset_delta, headers)
    key_length, key = _checked(at, position, end, _LENGTH_VARINT_BYTES_MAX)
    value_length, value = _checked(at, key + np.maximum(key_length, 0), end, _LENGTH_VARINT_BYTES_MAX)
    after = value + np.maximum(value_length, 0)
    header_count, header_bytes = _checked(at, after, end, _LENGTH_VARINT_BYTES_MAX)
    if ((header_count < 0) | ((header_count == 0) & (header_bytes != end))).any():
        raise CorruptBatch("a record does not end where its length says")
    _check_times(time_delta, headers)
    log_time = _per_record([header.is_log_append_time for header in headers], counts)
    time = np.where(
        log_time,
        _per_record([header.max_timestamp for header in headers], counts),
        _per_record([header.base_timestamp for header in headers], counts) + time_delta,
    )
    offset = _per_record([header.base_offset for header in headers], counts) + offset_delta
    return _Fields(plain, offset, time, log_time, key, key_length, value, value_length, after, end)


def _per_record(values: Sequence[int], counts: Sequence[int]) -> Ints:
    """Repeat each batch's value once for each of its records."""
    return np.repeat(np.array(values, np.int64), counts)


def _varints(at: Bytes, position: Ints, bytes_max: int) -> tuple[Ints, Ints]:
    """Decode the zigzag varints at all positions. Return their values and the positions after them.

    Raise CorruptBatch for a varint longer than `bytes_max`.
    """
    byte = at[position]
    after = position + 1
    more = np.flatnonzero(byte >= 0x80)  # indexes of varints with more bytes
    if not more.size:
        return _ONE_BYTE[byte], after
    value = (byte & 0x7F).astype(np.int64)
    for number in range(1, bytes_max):
        which: Any = slice(None) if more.size == position.size else more  # all of them without an index is faster
        byte = at[after[which]]
        value[which] |= (byte & 0x7F).astype(np.int64) << 7 * number
        after[which] += 1
        more = more[byte >= 0x80]
        if not more.size:
            return (value.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(value & 1), after
    raise CorruptBatch(f"a varint of a record is longer than {bytes_max} bytes")


def _checked(at: Bytes, position: Ints, end: Ints, bytes_max: int) -> tuple[Ints, Ints]:
    """Decode varints as `_varints`. Raise CorruptBatch if one does not lie inside its record."""
    if (position >= end).any():
        raise CorruptBatch("a field of a record runs past the record's end")
    value, after = _varints(at, position, bytes_max)
    if (after > end).any():
        raise CorruptBatch("a varint of a record runs past the record's end")
    return value, after


def _check_deltas(deltas: Ints, headers: Sequence[BatchHeader]) -> None:
    """Raise CorruptBatch unless the deltas ascend inside each batch, from 0 to its last offset delta.

    The same check as broker.record.records.check_deltas.
    """
    counts = [header.record_count for header in headers]
    last = _per_record([header.last_offset_delta for header in headers], counts)
    first = np.zeros(len(deltas), bool)
    first[np.cumsum([0, *counts])[:-1][np.array(counts) > 0]] = True
    rises = np.ones(len(deltas), bool)
    rises[1:] = np.diff(deltas) > 0
    if ((deltas < 0) | (deltas > last) | ~(rises | first)).any():
        raise CorruptBatch("offset deltas of the records do not rise from 0 to the batch's last")


def _check_times(deltas: Ints, headers: Sequence[BatchHeader]) -> None:
    """Raise CorruptBatch unless the sums of base time and delta have at most 64 bits, as in record.records.check_times.
    """
    counts = [header.record_count for header in headers]
    base = _per_record([header.base_timestamp for header in headers], counts)
    counted = ~_per_record([header.is_log_append_time for header in headers], counts).astype(bool)
    with np.errstate(over="ignore"):
        sums = base + deltas
    if (counted & (((deltas > 0) & (sums < base)) | ((deltas < 0) & (sums > base)))).any():
        raise CorruptBatch("timestamps of the records have more than 64 bits")


# --- columns -----------------------------------------------------------------------------------------------------

_Column: TypeAlias = Callable[[_Fields, OffsetRange, Sequence[IdEntry] | None], Any]


def _binary(plain: bytes, position: Ints, length: Ints) -> pa.Array:
    """Return the slices of `plain`, null for a negative length, with one `take` from an array over the whole buffer."""
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
    rows = [
        [{"key": name, "value": value} for name, value in _read_headers(fields.plain, position, end)] or None
        for position, end in zip(fields.headers.tolist(), fields.end.tolist(), strict=True)
    ]
    return pa.array(rows, ARROW["headers"])


def _read_headers(plain: bytes, position: int, end: int) -> Headers:
    try:
        headers, after = read_headers(plain, position, end)
    except (IndexError, UnicodeDecodeError) as error:
        raise CorruptBatch(f"the headers of a record: {error}") from None
    if after != end:
        raise CorruptBatch("a record does not end where its length says")
    return headers


def _ids(fields: _Fields, within: OffsetRange, ids: Sequence[IdEntry] | None) -> pa.Array:
    offset = fields.offset
    if ids is None:
        return _header_ids(fields)
    if not len(offset):
        return pa.nulls(0, pa.int64())
    first = np.array([run.offset for run in ids], np.int64)
    slot = np.searchsorted(first, offset, side="right") - 1
    inside = slot >= 0
    if inside.all():
        ends = first + np.array([run.length for run in ids], np.int64)
        inside = offset < ends[slot]
    if not inside.all():
        raise MissingId(f"the broker gave no id for offset {offset[~inside][0]} of {within.name}")
    return pa.array(np.array([run.first_id for run in ids], np.int64)[slot] + (offset - first[slot]))


def _header_ids(fields: _Fields) -> pa.Array:
    """Return the ids in the headers `flakelog-id`, which producers add for brokers that keep no ids; else null."""
    ids: list[int | None] = [None] * len(fields.offset)
    counts = np.frombuffer(fields.plain, np.uint8)[fields.headers] if ids else np.zeros(0, np.uint8)
    for at in np.flatnonzero(counts).tolist():
        ids[at] = id_of(_read_headers(fields.plain, int(fields.headers[at]), int(fields.end[at])))
    return pa.array(ids, pa.int64())


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
