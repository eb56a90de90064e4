"""The keys of a batch's records, read in place: what the cleaner asks of most records of a log.

Decoding a record makes an object of each field and takes a microsecond. `keys_of` makes an object of the key only:

    runs     neighbours of one size and layout, such as ids or measured values: by strided slices, all at once
    usual    all other records whose integers are short: one loop, with or without headers, value and key
    unusual  a record with a longer integer: `span_at`

A batch that has anything else is decoded record by record by `spans_in`, which also names what is wrong. So `keys_of`
raises CorruptBatch for exactly the batches that a reader rejects.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from struct import Struct
from typing import NamedTuple

from broker.record.batch import COMPRESSION_MASK, HEADER_BYTES, LENGTH_END, BatchHeader, CorruptBatch
from broker.record.compression import codec_of, decompress
from broker.record.records import RECORD_BYTES_MIN, check_count, check_deltas, check_times, read_headers
from broker.record.varint import read_varint

_BASE_TIMESTAMP_MAX = 1 << 62  # so that the sum with a delta has 64 bits, if the delta is smaller than this too
_RUN_RECORDS_MIN = 32  # a shorter run costs more than the loop
_RUN_FACTOR = 8  # the next guess at the length of a run, if the last one was right
_LOOPED_RECORDS = 1024  # before the next look for a run
_ROWS = 64  # of one unpacking
_DELTAS = 1 << 15  # a table has that many of each width
_new = tuple.__new__  # makes a named tuple at half the price
_LOW, _HIGH = bytes(range(0x80)), bytes(range(0x80, 0x100))


class Body(NamedTuple):
    """The unpacked records of a batch: data[begin:end]."""

    data: bytes
    begin: int
    end: int


class Keys(NamedTuple):
    """The keys of a batch's records, in order."""

    keys: list[bytes]
    """The key of each record, empty for a record without one."""
    deltas: Sequence[int]
    """The offset delta of each record: a range if no offset is missing."""
    tombstones: list[int]
    """Numbers of the records without a value, from 0 on."""
    nulls: list[int]
    """Numbers of the records without a key."""


class RecordSpan(NamedTuple):
    """The position of a record in the unpacked bytes of its batch, and the fields that the cleaner needs."""

    end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    is_tombstone: bool


def body_of(data: bytes, position: int, header: BatchHeader) -> Body:
    """Return the records of the batch at `position`. Raise CorruptBatch if they cannot be unpacked."""
    check_count(header)
    if not header.attributes & COMPRESSION_MASK:
        return _new(Body, (data, position + HEADER_BYTES, position + LENGTH_END + header.batch_length))
    packed = memoryview(data)[position + HEADER_BYTES : position + header.size]
    unpacked = bytes(decompress(codec_of(header.compression), packed))
    return Body(unpacked, 0, len(unpacked))


def keys_of(body: Body, header: BatchHeader) -> Keys:
    """Return the keys of a batch's records. Raise CorruptBatch for all that a reader rejects, except for its CRC."""
    return _keys(body, header) or _keys_one_by_one(body, header)


def _keys_one_by_one(body: Body, header: BatchHeader) -> Keys:
    spans = spans_in(body.data[body.begin : body.end], header)
    tombstones = [number for number, span in enumerate(spans) if span.is_tombstone]
    nulls = [number for number, span in enumerate(spans) if span.key is None]
    return Keys([span.key or b"" for span in spans], [span.offset_delta for span in spans], tombstones, nulls)


class _Gathered:
    """The keys and deltas of the records that were read so far."""

    __slots__ = ("keys", "deltas", "zigzag", "tombstones", "nulls")

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.deltas: list[Sequence[int]] = []
        """The offset deltas, piece by piece."""
        self.zigzag = 0
        """The smallest offset delta that may come next, as its zigzag: twice the delta."""
        self.tombstones: list[int] = []
        self.nulls: list[int] = []

    def joined(self) -> Sequence[int]:
        if len(self.deltas) == 1:
            return self.deltas[0]
        pieces = [piece for piece in self.deltas if piece]
        first, end = pieces[0][0], pieces[-1][-1] + 1
        if end - first == len(self.keys):
            return range(first, end)
        return list(chain.from_iterable(pieces))


def _keys(body: Body, header: BatchHeader) -> Keys | None:
    """Return the keys of a batch's records, None if one of them is damaged or its time needs a check."""
    data, position, end = body
    count = header.record_count
    if not 0 < count <= (end - position) // RECORD_BYTES_MIN or abs(header.base_timestamp) >= _BASE_TIMESTAMP_MAX:
        return None
    gathered = _Gathered()
    keys = gathered.keys
    guess = _RUN_RECORDS_MIN
    while (records_left := count - len(keys)) > 0:
        if records_left >= _RUN_RECORDS_MIN and (run_end := _run(body, position, min(records_left, guess), gathered)):
            position = run_end
            guess *= _RUN_FACTOR
            continue
        guess = _RUN_RECORDS_MIN
        most = min(records_left, _LOOPED_RECORDS)
        position = _usual(data, position, most, gathered)
        if count - len(keys) > records_left - most:
            unusual = _unusual(data, position, gathered)
            if unusual is None:
                return None
            position = unusual
    if position != end or gathered.zigzag > 2 * (header.last_offset_delta + 1):
        return None
    return _new(Keys, (keys, gathered.joined(), gathered.tombstones, gathered.nulls))


def _usual(data: bytes, position: int, most: int, gathered: _Gathered) -> int:
    """Read records with a key and with short integers, `most` at most. Return the end of the last one."""
    keys, tombstones = gathered.keys, gathered.tombstones
    put_key = keys.append
    first = zigzag = gathered.zigzag
    try:
        for _ in range(most):
            size = data[position]
            if size < 0x80:
                at = position + 2
                end = position + 1 + (size >> 1)
            elif (second := data[position + 1]) < 0x80:
                at = position + 3
                end = position + (second << 6) + (size >> 1) - 62  # 2 bytes of the length itself, less bit 7 of `size`
            else:
                break
            if data[at] > 0x7F:  # the timestamp delta
                at += 1 if data[at + 1] < 0x80 else 2
                if data[at] > 0x7F:
                    break
            delta = data[at + 1]
            at += 2
            if delta > 0x7F:
                delta += (data[at] << 7) - 0x80
                at += 1
                if delta > 0x3FFF:
                    delta += (data[at] << 14) - 0x4000
                    at += 1
                    if delta > 0x1FFFFF:
                        break
            if delta != zigzag:
                if delta < zigzag or delta & 1:
                    break
                gathered.deltas.append(range(first >> 1, zigzag >> 1))
                first = zigzag = delta
            byte = data[at]  # the length of the key
            begin = at + 1
            if byte > 0x7F:
                byte += (data[begin] << 7) - 0x80
                begin += 1
            at = begin + (byte >> 1)
            if (byte | size) & 1 or byte > 0x3FFF:
                break
            key = data[begin:at]
            byte = data[at]  # the length of the value
            if byte < 0x80:
                at += 1 if byte & 1 else 1 + (byte >> 1)
            elif (second := data[at + 1]) < 0x80 and not byte & 1:
                at += (second << 6) + (byte >> 1) - 62
            else:
                break
            if (at + 1 if not data[at] else _after_headers(data, at)) != end:
                break
            if byte & 1:
                tombstones.append(len(keys))
            put_key(key)
            zigzag += 2
            position = end
    except IndexError:
        pass
    gathered.deltas.append(range(first >> 1, zigzag >> 1))
    gathered.zigzag = zigzag
    return position


def _after_headers(data: bytes, at: int) -> int:
    """Return the position after a record's headers, whose count is at `at`. Return 0 if one of them is unusual."""
    count = data[at]
    if count & 0x81:
        return 0
    at += 1
    for _ in range(count >> 1):
        size = data[at]
        if size & 0x81:
            return 0
        at += 1 + (size >> 1)
        size = data[at]
        if size < 0x80:
            at += 1 if size & 1 else 1 + (size >> 1)
        elif (second := data[at + 1]) < 0x80 and not size & 1:
            at += (second << 6) + (size >> 1) - 62
        else:
            return 0
    return at


def _unusual(data: bytes, position: int, keys: _Gathered) -> int | None:
    """Read one record with any integers. Return its end, None if it is damaged or its time needs a check."""
    try:
        span = span_at(data, position)
    except (CorruptBatch, IndexError, UnicodeDecodeError):
        return None
    delta = span.offset_delta
    if 2 * delta < keys.zigzag or abs(span.timestamp_delta) >= _BASE_TIMESTAMP_MAX:
        return None
    if span.key is None:
        keys.nulls.append(len(keys.keys))
    if span.is_tombstone:
        keys.tombstones.append(len(keys.keys))
    keys.keys.append(span.key or b"")
    keys.deltas.append(range(delta, delta + 1))
    keys.zigzag = 2 * (delta + 1)
    return span.end


# --- runs --------------------------------------------------------------------------------------------------------


class _Layout(NamedTuple):
    """The positions of the fields in the first record of a run, from the record's begin, and its size."""

    begin: int
    """The position after the record's length."""
    delta: int
    """The position of the offset delta, which follows the timestamp delta."""
    key_length: int
    key: int
    key_end: int
    value: int
    """After the value's length."""
    size: int

    @classmethod
    def of(cls, data: bytes, at: int) -> "_Layout | None":
        """Return the layout of the record at a position, None if it is of no usual form."""
        begin = _varint_bytes(data, at)
        delta = begin + 1 + _varint_bytes(data, at + begin + 1)
        key_length = delta + _varint_bytes(data, at + delta)
        key = key_length + _varint_bytes(data, at + key_length)
        if begin > 2 or delta - begin > 4 or key_length - delta > 3 or key - key_length > 2:
            return None
        length, key_size = _zigzag(data[at : at + begin]), _zigzag(data[at + key_length : at + key])
        key_end = key + (key_size >> 1)
        value = key_end + _varint_bytes(data, at + key_end)
        value_size = _zigzag(data[at + key_end : at + value])
        size = begin + (length >> 1)
        fits = value - key_end <= 2 and value + (value_size >> 1) + 1 == size
        return cls(begin, delta, key_length, key, key_end, value, size) if fits else None

    @property
    def fixed(self) -> tuple[int, ...]:
        """Return the positions that have the same byte in each record of a run: lengths, and the number of headers."""
        lengths = range(self.begin), range(self.key_length, self.key), range(self.key_end, self.value)
        return *chain.from_iterable(lengths), self.size - 1


def _run(body: Body, at: int, most: int, keys: _Gathered) -> int | None:
    """Read the next records if they have one layout, a value and no headers.

    Return the end of the last one; None, with none read, if they are few.
    """
    data, _, end = body
    if at + 2 > end:
        return None
    first = data[at]
    size = 1 + (first >> 1) if first < 0x80 else (data[at + 1] << 6) + (first >> 1) - 62
    if first & 1 or at + _RUN_RECORDS_MIN * size > end or data[at + size : at + size + 1] != data[at : at + 1]:
        return None
    layout = _Layout.of(data, at)
    if layout is None or layout.size != size:
        return None
    most = min(most, (end - at) // size)
    for index in layout.fixed:
        column = data[at + index : at + most * size : size]
        if index == size - 1 and column[:1] != b"\0" or column[0] & 1 and index in (layout.key_length, layout.key_end):
            return None
        most -= len(column.lstrip(column[:1]))
    for field_begin, field_end in ((layout.begin + 1, layout.delta), (layout.delta, layout.key_length)):
        for index in range(field_begin, field_end):
            column = data[at + index : at + most * size : size]
            most -= len(column.lstrip(_LOW if index == field_end - 1 else _HIGH))
    if most < _RUN_RECORDS_MIN:
        return None
    deltas = _deltas([data[at + index : at + most * size : size] for index in range(layout.delta, layout.key_length)])
    if deltas is None or 2 * deltas[0] < keys.zigzag:
        return None
    keys.deltas.append(deltas)
    keys.zigzag = 2 * (deltas[-1] + 1)
    keys.keys += _run_keys(memoryview(data)[at : at + most * size], layout)
    return at + most * size


def _varint_bytes(data: bytes, position: int) -> int:
    """Return the number of bytes of a varint; at most 5, as longer ones are of no usual form."""
    size = 1
    while size < 5 and data[position + size - 1 : position + size] >= b"\x80":
        size += 1
    return size


def _zigzag(varint: bytes) -> int:
    return sum((byte & 0x7F) << 7 * index for index, byte in enumerate(varint))


def _deltas(columns: list[bytes]) -> Sequence[int] | None:
    """Return the offset deltas of a run, given their bytes by index. Return None unless they rise from 0 or more on."""
    number = len(columns[0])
    first = _zigzag(bytes([column[0] for column in columns]))
    tables = _varints(len(columns))
    begin = (first >> 1) - _first_of(len(columns))
    if not first & 1 and 0 <= begin <= len(tables[0]) - number:
        if all(column == table[begin : begin + number] for column, table in zip(columns, tables, strict=True)):
            return range(first >> 1, (first >> 1) + number)
    zigzags = [0] * number
    for index, column in enumerate(columns):
        zigzags = [zigzag | (byte & 0x7F) << 7 * index for zigzag, byte in zip(zigzags, column, strict=True)]
    if any(zigzag & 1 for zigzag in zigzags) or any(b <= a for a, b in pairwise(zigzags)):
        return None
    return [zigzag >> 1 for zigzag in zigzags]


def _first_of(size: int) -> int:
    """Return the smallest offset delta whose varint has this many bytes."""
    return 0 if size == 1 else 1 << 7 * (size - 1) - 1


@lru_cache
def _varints(size: int) -> list[bytes]:
    """Return the bytes of the varints of `size` bytes, by index, for rising offset deltas."""
    first = _first_of(size)
    deltas = range(first, min(_first_of(size + 1), first + _DELTAS))
    return [
        bytes([delta << 1 >> 7 * index & 0x7F | (0x80 if index < size - 1 else 0) for delta in deltas])
        for index in range(size)
    ]


@lru_cache(maxsize=64)
def _unpacker(size: int, key: int, key_end: int, rows: int) -> Struct:
    return Struct(f"{key}x{key_end - key}s{size - key_end}x" * rows)


def _run_keys(rows: memoryview, layout: _Layout) -> Iterator[bytes]:
    size, number = layout.size, len(rows) // layout.size
    whole = (number - number % _ROWS) * size
    many, one = (_unpacker(size, layout.key, layout.key_end, row_count) for row_count in (_ROWS, 1))
    yield from chain.from_iterable(many.iter_unpack(rows[:whole]))
    yield from chain.from_iterable(one.iter_unpack(rows[whole:]))


# --- record by record --------------------------------------------------------------------------------------------


def spans_in(data: bytes, header: BatchHeader) -> list[RecordSpan]:
    """Return the records in their unpacked bytes. Raise CorruptBatch."""
    if not 0 <= header.record_count <= len(data) // RECORD_BYTES_MIN:
        raise CorruptBatch(f"the header counts {header.record_count} records, {len(data)} bytes cannot hold them")
    spans = list(_spans(data, header.record_count))
    if (spans[-1].end if spans else 0) != len(data):
        raise CorruptBatch(f"{header.record_count} records do not fill the {len(data)} bytes of their batch")
    check_deltas([span.offset_delta for span in spans], header.last_offset_delta)
    check_times(header, [span.timestamp_delta for span in spans])
    return spans


def _spans(data: bytes, count: int) -> Iterator[RecordSpan]:
    position = 0
    for number in range(count):
        try:
            span = span_at(data, position)
        except (IndexError, UnicodeDecodeError):
            raise CorruptBatch(f"record {number} of {count} at byte {position} of {len(data)} is cut off") from None
        position = span.end
        yield span


def span_at(data: bytes, start: int) -> RecordSpan:
    """Return the record at a position. Raise CorruptBatch or IndexError."""
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
    return RecordSpan(end, timestamp_delta, offset_delta, key, value_size < 0)
