"""Validation of the records in a batch, as bytes: nothing is decoded, and no object is made for a record.

    check_fields     each field of each record
    check_lengths    the lengths of the records fill the bytes in exactly the number of steps that the header counts

A batch of at most FEW_RECORDS is checked by fields. For more records `flakelog.validate.records` decides. Lengths alone
are much cheaper, because a run of records of one length is compared at once: a record costs 10 to 90 ns instead of a
microsecond. A batch whose lengths are right may still have wrong fields inside, if someone makes it so on purpose.

Integers are read as Kafka reads them (org.apache.kafka.common.utils.ByteUtils): a varint has at most five bytes, and a
varlong ten. Like Kafka, the check accepts an encoding with more bytes than needed, and header names of any bytes.
Unlike Kafka, it refuses a varint of more than 32 bits, a negative length other than -1, and wrong offset deltas in
uncompressed batches, because clients read such records in different ways.
"""

import struct

from broker.record.batch import CorruptBatch
from broker.record.compression import Codec, TooLarge
from broker.wire.primitives import Buffer

FEW_RECORDS = 16
UNIT_NS = 100
"""The time that one unit of a budget stands for: one step of the plain walk."""
FIELDS_UNITS = 10  # to check all fields of a record

_PROBE_RECORDS = 32  # the first guess at how many records have the same length
_PROBE_FACTOR = 8  # the next guess, if the last one was right
_WALKED_RECORDS = 256  # before the next such guess, where lengths vary
_RUN_RECORDS_MIN = 8  # a shorter run is no reason to expect another one
_RECORDS_PER_UNIT = 16  # of a run
_LONG_UNITS = 10  # for a length of more than two bytes, which short records may have too
_VARINT_BYTES_MAX = 5
_VARLONG_BYTES_MAX = 10
_LAST_BYTE_MAX = 0x0F  # of a varint with five bytes: 32 bits
_LAST_LONG_BYTE_MAX = 0x01  # of a varlong with ten bytes: 64 bits
_first_bytes = struct.Struct("7B").unpack_from  # of a record, which has no fewer


class OverBudget(Exception):
    """The work costs more than may be done in the reactor thread; nothing was changed."""


class _CutLength(CorruptBatch):
    """The bytes end inside the length of a record."""

    def __init__(self, position: int) -> None:
        super().__init__(f"a record's length at byte {position} is cut off")


class Budget:
    """The units of work that are left; `spend` raises OverBudget when there are too few. None has no limit."""

    __slots__ = ("units",)

    def __init__(self, units: int | None) -> None:
        self.units = units

    @property
    def is_limited(self) -> bool:
        return self.units is not None

    def spend(self, units: int) -> None:
        if self.units is not None:
            self.units -= units
            if self.units < 0:
                raise OverBudget


# --- lengths -----------------------------------------------------------------------------------------------------


def check_lengths(data: Buffer, count: int, budget: Budget) -> None:
    """Raise CorruptBatch unless the lengths of `count` records fill `data`; OverBudget if that takes too long."""
    position, records_left = _walk(data, count, budget)
    if records_left or position != len(data):
        raise CorruptBatch(_unfilled(position, count - records_left, count, len(data)))


def check_prefix(data: Buffer, count: int, max_bytes: int, codec: Codec, budget: Budget) -> None:
    """Check the beginning of a batch's unpacked records by their lengths, so that a compression bomb ends early.

    Raise CorruptBatch if the records end before `data` does, TooLarge if they go past `max_bytes`.
    """
    try:
        position, records_left = _walk(data, count, budget)
    except _CutLength:
        return  # the buffer was full inside the length of a record
    if not records_left and position <= len(data):
        raise CorruptBatch(f"{codec.name.lower()} records unpack to more bytes than the {count} records have")
    if position > max_bytes:
        raise TooLarge(codec, max_bytes)


def _walk(data: Buffer, count: int, budget: Budget) -> tuple[int, int]:
    """Step from record to record. Return where the last step ended, which may be past the end, and how many are left.

    Raise CorruptBatch for a length that is negative or no varint.
    """
    view = memoryview(data)
    end = len(view)
    position, records_left, guess = 0, count, _PROBE_RECORDS
    while records_left and position < end:
        alike, tried, position = _run(view, position, min(records_left, guess))
        records_left -= alike
        budget.spend(1 + alike // _RECORDS_PER_UNIT)
        if alike == tried:
            guess *= _PROBE_FACTOR
            continue
        guess = _PROBE_RECORDS
        if alike < _RUN_RECORDS_MIN:
            walked, position, long = _steps(view, position, min(records_left, _WALKED_RECORDS))
            records_left -= walked
            budget.spend(walked + long * _LONG_UNITS)
    return position, records_left


def _run(view: memoryview, position: int, most: int) -> tuple[int, int, int]:
    """Step over records that have the length of the one at `position`. Return (records, records tried, position)."""
    first = view[position]
    if first < 0x80:
        size, two_bytes = (first >> 1) + 1, False
    else:
        length, begin = _length(view, position)
        size, two_bytes = length + begin - position, begin - position == 2
        if not two_bytes:
            return 0, 1, position  # long records are few
    if first & 1:
        raise CorruptBatch(f"a record at byte {position} has a negative length")
    end = len(view)
    tried = min(most, (end - position) // size)
    if tried < 2:
        return 1, 1, position + size
    stop = position + tried * size
    column = view[position:stop:size].tobytes()
    alike = tried - len(column.lstrip(column[:1]))
    if two_bytes:
        column = view[position + 1 : stop : size].tobytes()
        alike = min(alike, tried - len(column.lstrip(column[:1])))
    return alike, tried, position + alike * size


def _steps(view: memoryview, position: int, most: int) -> tuple[int, int, int]:
    """Step over `most` records one by one, or up to the end. Return (records, position, records with long lengths)."""
    begin, end, seen, number, long = position, len(view), 0, 0, 0
    try:
        for number in range(most):
            byte = view[position]
            if byte < 0x80:
                seen |= byte
                position += (byte >> 1) + 1
            elif (second := view[position + 1]) < 0x80:
                seen |= byte
                position += (second << 6) + (byte >> 1) - 62  # 2 bytes of the length itself, less bit 7 of `byte`
            else:
                length, position = _length(view, position)
                position += length
                long += 1
        number = most
    except IndexError:
        if position < end:
            raise _CutLength(position) from None
    if seen & 1:
        raise CorruptBatch(f"a record between bytes {begin} and {position} has a negative length")
    return number, position, long


def _length(view: memoryview, position: int) -> tuple[int, int]:
    """Return the length of the record at `position` and where the record begins after it."""
    try:
        length, begin = _varint(view, position)
    except IndexError:
        raise _CutLength(position) from None
    if length < 0:
        raise CorruptBatch(f"a record at byte {position} has a negative length, {length}")
    return length, begin


def _unfilled(position: int, stepped: int, count: int, size: int) -> str:
    if position > size:
        return f"record {stepped - 1} of {count} ends at byte {position}, and the records have {size} bytes"
    if stepped < count:
        return f"the header counts {count} records, and the bytes have {stepped}"
    return f"{size - position} bytes follow the last of {count} records"


# --- fields ------------------------------------------------------------------------------------------------------


def check_fields(data: Buffer, count: int, headers_max: int, budget: Budget) -> None:
    """Raise CorruptBatch unless `data` is exactly `count` records with valid fields and offset deltas 0, 1, 2 ...

    Raise OverBudget if that takes too long.
    """
    view = memoryview(data)
    position = 0
    budget.spend(count * FIELDS_UNITS)
    for index in range(count):
        try:
            end = end_of_usual_record(view, position, index << 1) if index < 64 else 0
            position = end or _check_record(view, position, index, headers_max, budget)
        except IndexError:
            raise CorruptBatch(f"record {index} of {count} is cut off at byte {len(view)}") from None
    if position != len(view):
        raise CorruptBatch(f"{len(view) - position} bytes follow the last of {count} records")


def end_of_usual_record(view: memoryview, position: int, delta: int) -> int:
    """Return the end of a valid record of the usual form: short integers and no headers. Return 0 for any other record.

    `delta` is the byte of the record's offset delta. This is `_check_record` at half its price.
    """
    try:
        # With a length of one byte, the attributes are `second`, and all fields are a byte earlier. A length of two
        # bytes is ((second << 7) + size - 128) >> 1, as it is zigzag-encoded: (second << 6) + (size >> 1) - 64. The two
        # bytes themselves make it -62.
        size, second, third, fourth, fifth, key, _ = _first_bytes(view, position)
        if size < 0x80:
            end = position + 1 + (size >> 1)
            position += 5
            time, record_delta, key = third, fourth, fifth
        elif second < 0x80:
            end = position + (second << 6) + (size >> 1) - 62
            position += 6
            time, record_delta = fourth, fifth
        else:
            return 0
        if size & 1 or time > 0x7F or record_delta != delta:
            return 0
        if key != 1:
            if key >= 0x80 or key & 1:
                return 0
            position += key >> 1
        value = view[position]
        if value < 0x80:
            position += 1 + (value >> 1)
        elif (second := view[position + 1]) < 0x80:
            position += (second << 6) + (value >> 1) - 62
        else:
            return 0
        return end if position + 1 == end and not view[position] and not value & 1 else 0
    except (IndexError, struct.error):
        return 0


def _check_record(view: memoryview, position: int, index: int, headers_max: int, budget: Budget) -> int:
    """Check the record at `position`; return its end."""
    size = view[position]
    if size < 0x80 and not size & 1:
        size, begin = size >> 1, position + 1
    else:
        size, begin = _length(view, position)
    end = begin + size
    if end > len(view):
        raise CorruptBatch(f"record {index} says {size} bytes, {len(view) - begin} are left")
    position = begin + 1  # the attributes, which are unused
    position = position + 1 if view[position] < 0x80 else _after_varlong(view, position)
    if view[position] == index << 1 and index < 64:
        position += 1
    else:
        delta, position = _varint(view, position)
        if delta != index:
            raise CorruptBatch(f"record {index} has the offset delta {delta}")
    position = _after_bytes(view, position, end, "key")
    position = _after_bytes(view, position, end, "value")
    if position < end and not view[position]:
        position += 1
    else:
        position = _after_headers(view, position, end, headers_max, budget)
    if position != end:
        raise CorruptBatch(f"record {index} ends at byte {position}, its length says {end}")
    return end


def _after_bytes(view: memoryview, position: int, end: int, field: str) -> int:
    """Return the position after a field with a length, of which -1 is null."""
    size = view[position]
    if size < 0x80 and not size & 1:
        size, position = size >> 1, position + 1
    elif size == 1:
        return position + 1
    else:
        size, position = _varint(view, position)
        if size == -1:
            return position
    if not 0 <= size <= end - position:
        raise CorruptBatch(f"a {field} at byte {position} says {size} bytes, the record has {end - position} left")
    return position + size


def _after_headers(view: memoryview, position: int, end: int, headers_max: int, budget: Budget) -> int:
    """Return the position after a record's headers; their count is at `position`."""
    count, position = _varint(view, position)
    if not 0 <= count <= end - position:
        raise CorruptBatch(f"a record says {count} headers, {end - position} bytes are left for them")
    if count > headers_max:
        raise CorruptBatch(f"a record has {count} headers, flakelog.max.record.headers is {headers_max}")
    budget.spend(count * FIELDS_UNITS // 2)
    for _ in range(count):
        before = position
        position = _after_bytes(view, position, end, "header's name")
        if _varint(view, before)[0] < 0:
            raise CorruptBatch(f"a header at byte {before} has no name")
        position = _after_bytes(view, position, end, "header's value")
    return position


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    """Return (value, position after it) of a varint with at most 32 bits. Raise IndexError past the end."""
    value = shift = 0
    for number in range(_VARINT_BYTES_MAX):
        byte = view[position + number]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number == _VARINT_BYTES_MAX - 1 and byte > _LAST_BYTE_MAX:
                break
            return (value >> 1) ^ -(value & 1), position + number + 1
        shift += 7
    raise CorruptBatch(f"a varint at byte {position} has more than 32 bits")


def _after_varlong(view: memoryview, position: int) -> int:
    for number in range(_VARLONG_BYTES_MAX):
        byte = view[position + number]
        if byte < 0x80:
            if number == _VARLONG_BYTES_MAX - 1 and byte > _LAST_LONG_BYTE_MAX:
                break
            return position + number + 1
    raise CorruptBatch(f"a varlong at byte {position} has more than 64 bits")
