"""The records of a batch as columns: keys, offset deltas and places, read from all records at once.

The cleaner reads each record twice, and decoding one takes a microsecond. Nearly all records of a log have one of a few
layouts, so this module compares strided slices of bytes instead:

    two bytes before the body | attributes | timestamp delta | offset delta | key length | key | value length ...
    |<------------------------------- one row for each record, all of one width -------------------------------->|

`columns_of` returns None for a batch with another layout: headers, null keys, tombstones, long varints, or damage.
`retained.spans_of` decodes such a batch record by record. Where `columns_of` returns columns, both read the same.
"""

import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, compress, pairwise
from struct import Struct
from typing import NamedTuple

from broker.record.batch import BatchHeader

_BEFORE_BODY = 2  # a row begins with the length, or with the last byte of the record before and a length of one byte
_VALUE_LENGTH_BYTES = 2  # as records are shorter than 8 KiB
_DELTAS = 1 << 15  # of each width, a table has that many
_TIMESTAMP_BYTES_MAX = 3
_BASE_TIMESTAMP_MAX = 1 << 62
_RUN_RECORDS = 16  # records of one size, at least, to be read without a walk
_WALKED_RECORDS = 1024  # before the next look for such a run
_STRETCH_RECORDS, _STRETCHES_FEW = 16, 4  # where layouts change more often, decoding is as fast
_ROWS = 64  # of one unpacking
_SIZES_KEPT, _PLACES_KEPT = 100_000, 64
_SIZES_BYTES = 4
_LOW, _HIGH = bytes(range(0x80)), bytes(range(0x80, 0x100))
_KEPT = re.compile(b"\x01+")


class Columns(NamedTuple):
    """The records of a batch: no tombstones, and a key in each."""

    data: bytes
    """The unpacked bytes of the records."""
    keys: list[bytes]
    deltas: Sequence[int]
    """The offset delta of each record."""
    starts: Sequence[int]
    """The position of each record in `data`."""
    times: list[list[bytes]]
    """For each stretch of records with one layout: the bytes of their timestamp deltas, by place."""

    def kept(self, wanted: bytes) -> bytes:
        """Return the bytes of some records; `wanted` has a 1 for each of them, and a 0 for each other record."""
        ends = (*self.starts[1:], len(self.data))
        return b"".join([self.data[self.starts[m.start()] : ends[m.end() - 1]] for m in _KEPT.finditer(wanted)])

    def newest(self, wanted: bytes) -> int:
        """Return the largest timestamp delta of these records."""
        found, at = [], 0
        for columns in self.times:
            some = wanted[at : at + len(columns[0])]
            at += len(columns[0])
            zigzags = compress(_zigzags(columns), some)
            found.append(max(((zigzag >> 1) ^ -(zigzag & 1) for zigzag in zigzags), default=None))
        return max(each for each in found if each is not None)


def columns_of(data: bytes, header: BatchHeader) -> Columns | None:
    """Return the records of a batch from their unpacked bytes, None if they have another layout or are damaged."""
    count = header.record_count
    if not 0 < count <= len(data) or abs(header.base_timestamp) >= _BASE_TIMESTAMP_MAX:
        return None
    padded = b"\0" + data + bytes(_BEFORE_BODY)  # rows may go past both ends
    keys: list[bytes] = []
    deltas: list[Sequence[int]] = []
    starts: list[int] = []
    times = []
    position = stretches = 0
    while len(starts) < count:
        some = _run(data, position, count - len(starts)) or _walk(data, position, count - len(starts))
        if some is None:
            return None
        starts += some.starts
        position = some.end
        number = 0
        while number < len(some.bodies):
            stretch = _stretch(padded, some, number)
            if stretch is None or stretches > count // _STRETCH_RECORDS + _STRETCHES_FEW:
                return None
            stretches += 1
            keys += stretch.keys
            deltas.append(stretch.deltas)
            times.append(stretch.times)
            number += len(stretch.keys)
    if position != len(data):
        return None
    joined = _joined(deltas)
    if not isinstance(joined, range) and any(b <= a for a, b in pairwise(joined)):
        return None
    return Columns(data, keys, joined, starts, times) if joined[-1] <= header.last_offset_delta else None


def _joined(deltas: list[Sequence[int]]) -> Sequence[int]:
    """Return the offset deltas of all stretches, as a range if no offset is missing."""
    first, last = deltas[0], deltas[-1]
    if all(isinstance(each, range) for each in deltas) and all(a[-1] + 1 == b[0] for a, b in pairwise(deltas)):
        return range(first[0], last[-1] + 1)
    return list(chain.from_iterable(deltas))


class _Places(NamedTuple):
    """Where consecutive records and their bodies begin, and the size of each if all have the same, else 0."""

    starts: Sequence[int]
    bodies: Sequence[int]
    size: int
    end: int


def _run(data: bytes, position: int, most: int) -> _Places | None:
    """Return the next records if they have one size and no headers; None if they are too few."""
    length = data[position : position + _BEFORE_BODY]
    if len(length) < _BEFORE_BODY or length[0] & 1:
        return None
    begin = 1 if length[0] < 0x80 else 2
    if begin == 2 and length[1] > 0x7F:
        return None
    size = begin + (_zigzag(length[:begin]) >> 1)
    number = min(most, (len(data) - position) // size)
    if number < _RUN_RECORDS or data[position + size : position + size + begin] != length[:begin]:
        return None
    for at in range(begin):
        column = data[position + at : position + at + (number - 1) * size + 1 : size]
        number = number - len(column.lstrip(column[:1]))
    if number < _RUN_RECORDS:
        return None
    end = position + number * size
    if data[position + size - 1 : end : size].count(0) < number:
        return None
    return _Places(range(position, end, size), range(position + begin, end, size), size, end)


def _walk(data: bytes, position: int, most: int) -> _Places | None:
    """Return some of the next records, one by one; None if one is damaged or has headers."""
    starts, bodies = [], []
    odd = last = 0
    try:
        for _ in range(min(most, _WALKED_RECORDS)):
            starts.append(position)
            byte = data[position]
            odd |= byte
            if byte < 0x80:
                position += 1
                bodies.append(position)
                position += byte >> 1
            else:
                second = data[position + 1]
                if second > 0x7F:
                    return None
                position += 2
                bodies.append(position)
                position += (second << 6) | (byte >> 1 & 0x3F)
            last |= data[position - 1]
    except IndexError:
        return None
    return None if odd & 1 or last else _Places(starts, bodies, 0, position)


class _Layout(NamedTuple):
    """The places of the fields in a row, from the first row."""

    delta: int
    """Place of the offset delta."""
    key_length: int
    key: int
    key_bytes: int
    value_length: int

    @property
    def width(self) -> int:
        return self.value_length + _VALUE_LENGTH_BYTES

    def records_max(self, data: bytes, row: int) -> int:
        """Return how many records from this row on can have an offset delta of as many bytes."""
        size = self.key_length - self.delta
        return max(_first_of(size + 1) - (_zigzag(data[row + self.delta : row + self.key_length]) >> 1), 1)

    @classmethod
    def of(cls, data: bytes, row: int) -> "_Layout | None":
        """Return the layout of the row at a position, None if it is of no usual form."""
        delta = _BEFORE_BODY + 1 + _varint_bytes(data, row + _BEFORE_BODY + 1)
        key_length = delta + _varint_bytes(data, row + delta)
        key = key_length + _varint_bytes(data, row + key_length)
        if key - key_length > 2 or key_length - delta > 3 or delta - _BEFORE_BODY - 1 > _TIMESTAMP_BYTES_MAX:
            return None
        zigzag = _zigzag(data[row + key_length : row + key])
        if zigzag & 1:
            return None
        return cls(delta, key_length, key, zigzag >> 1, key + (zigzag >> 1))


def _varint_bytes(data: bytes, position: int) -> int:
    size = 1
    while size < 5 and data[position + size - 1 : position + size] >= b"\x80":
        size += 1
    return size


def _zigzag(varint: bytes) -> int:
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(varint))


class _Stretch(NamedTuple):
    """Consecutive records of one layout."""

    keys: list[bytes]
    deltas: Sequence[int]
    times: list[bytes]


class _Rows(NamedTuple):
    """The rows of consecutive records."""

    data: bytes
    width: int
    number: int

    def column(self, place: int) -> bytes:
        """Return the byte at one place of each row. A place past the row's end is in the next row."""
        return self.data[place : place + (self.number - 1) * self.width + 1 : self.width]

    def first(self, number: int) -> "_Rows":
        return self._replace(number=number)


def _stretch(padded: bytes, places: _Places, number: int) -> _Stretch | None:
    """Read the next records with the layout of record `number`. Return None if columns cannot have this layout."""
    bodies, size = places.bodies, places.size
    begin = bodies[number] - _BEFORE_BODY + 1  # one byte of padding is before the records
    layout = _Layout.of(padded, begin)
    if layout is None:
        return None
    most = min(len(bodies) - number, layout.records_max(padded, begin))
    if size:
        if layout.value_length >= size:
            return None
        rows = _Rows(padded[begin : begin + most * size + _VALUE_LENGTH_BYTES], size, most)
    else:
        width = layout.width
        some = bodies[number : number + most]
        rows = _Rows(b"".join([padded[at - 1 : at - 1 + width] for at in some]) + bytes(width), width, most)
        if len(rows.data) != (most + 1) * width:
            return None  # the last records are shorter than a row
    rows = _alike(rows, layout)
    deltas = _deltas(rows, layout) if rows.number and _values_fill(rows, layout) else None
    if deltas is None:
        return None
    times = [rows.column(place) for place in range(_BEFORE_BODY + 1, layout.delta)]
    return _Stretch(_keys(rows, layout), deltas, times)


def _alike(rows: _Rows, layout: _Layout) -> _Rows:
    """Return the first rows with the layout of the first one."""
    for begin, end in ((_BEFORE_BODY + 1, layout.delta), (layout.delta, layout.key_length)):
        for place in range(begin, end):
            column = rows.column(place)
            if place == end - 1 and not column.isascii():
                rows = rows.first(rows.number - len(column.lstrip(_LOW)))
            elif place < end - 1 and column.translate(None, _HIGH):
                rows = rows.first(rows.number - len(column.lstrip(_HIGH)))
    for place in range(layout.key_length, layout.key):
        column = rows.column(place)
        if column.count(column[:1]) < rows.number:
            rows = rows.first(rows.number - len(column.lstrip(column[:1])))
    return rows


def _zigzags(columns: list[bytes]) -> list[int]:
    """Return the varints in some rows, given their bytes by place."""
    if len(columns) == 1:
        return list(columns[0])
    if len(columns) == 2:
        return [low & 0x7F | high << 7 for low, high in zip(*columns, strict=True)]
    return [low & 0x7F | (middle & 0x7F) << 7 | high << 14 for low, middle, high in zip(*columns, strict=True)]


def _deltas(rows: _Rows, layout: _Layout) -> Sequence[int] | None:
    """Return the offset deltas; None if one is negative."""
    columns = [rows.column(place) for place in range(layout.delta, layout.key_length)]
    first = _zigzags([column[:1] for column in columns])[0]
    tables = _varints(len(columns))
    begin = (first >> 1) - _first_of(len(columns))
    if not first & 1 and 0 <= begin <= len(tables[0]) - rows.number:
        if all(column == table[begin : begin + rows.number] for column, table in zip(columns, tables, strict=True)):
            return range(first >> 1, (first >> 1) + rows.number)
    zigzags = _zigzags(columns)
    return None if any(zigzag & 1 for zigzag in zigzags) else [zigzag >> 1 for zigzag in zigzags]


def _first_of(size: int) -> int:
    """Return the smallest offset delta whose varint has this many bytes."""
    return 0 if size == 1 else 1 << 7 * (size - 1) - 1


@lru_cache
def _varints(size: int) -> list[bytes]:
    """Return the bytes of the varints of `size` bytes, by place, for rising offset deltas."""
    first = _first_of(size)
    deltas = range(first, min(_first_of(size + 1), first + _DELTAS))
    return [
        bytes([delta << 1 >> 7 * place & 0x7F | (0x80 if place < size - 1 else 0) for delta in deltas])
        for place in range(size)
    ]


@lru_cache(maxsize=64)
def _unpacker(width: int, key: int, key_bytes: int, rows: int) -> Struct:
    return Struct(f"{key}x{key_bytes}s{width - key - key_bytes}x" * rows)


def _keys(rows: _Rows, layout: _Layout) -> list[bytes]:
    width, whole = rows.width, rows.number - rows.number % _ROWS
    view = memoryview(rows.data)
    many, one = (_unpacker(width, layout.key, layout.key_bytes, each) for each in (_ROWS, 1))
    keys = list(chain.from_iterable(many.iter_unpack(view[: whole * width])))
    keys += chain.from_iterable(one.iter_unpack(view[whole * width : rows.number * width]))
    return keys


_sound_sizes: dict[int, set[int]] = {}
"""By the place of the value's length: rows' lengths of record and value, as one integer, that were found to agree."""


def _values_fill(rows: _Rows, layout: _Layout) -> bool:
    """Return True if each row has a value that leaves one byte of the record, for the number of headers."""
    sizes = bytearray(_SIZES_BYTES * rows.number)
    for at, place in enumerate((0, 1, layout.value_length, layout.value_length + 1)):
        sizes[at::_SIZES_BYTES] = rows.column(place)
    sound = _sound_sizes.setdefault(layout.value_length, set())
    new = set(memoryview(sizes).cast("I")) - sound
    if not all(_agree(size.to_bytes(_SIZES_BYTES, sys.byteorder), layout.value_length) for size in new):
        return False
    if len(_sound_sizes) > _PLACES_KEPT or len(sound) + len(new) > _SIZES_KEPT:
        _sound_sizes.clear()
    else:
        sound |= new
    return True


def _agree(sizes: bytes, value_length: int) -> bool:
    """Return True if a record of this length has a value of this length at its place, and one more byte."""
    first, second, low, high = sizes
    length = first & 0x7F | second << 7 if first > 0x7F else second
    zigzag, value = (low, value_length + 1) if low < 0x80 else (low & 0x7F | high << 7, value_length + 2)
    if zigzag & 1 or (low > 0x7F and high > 0x7F):
        return False
    return value + (zigzag >> 1) + 1 == _BEFORE_BODY + (length >> 1)
