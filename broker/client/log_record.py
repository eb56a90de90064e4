"""A record as a reader gets it, and the fast decoder of a usual batch.

The general decoder (broker.record.records) makes three tuples for each record and calls a function for each varint. The
decoder here reads all fields of a record in one loop and makes its Record at once. For a batch that is not usual it
returns None. Then the general decoder reads the batch, or names the error.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from broker.record.batch import BatchHeader, CorruptBatch
from broker.record.records import LONG_MAX, RECORD_BYTES_MIN, Headers, read_headers
from broker.record.varint import read_varint

_NUMBER_MAX = LONG_MAX >> 1
"""A usual base timestamp and delta are at most this, so that no time has more than 64 bits."""


class Record(NamedTuple):
    """A record. Times are in ms since 1970.

    `id` is its Snowflake id. A broker other than Flakelog sends none; then `id` is that of a header `flakelog-id`
    (`Producer(ids="header")`), None without one. `codec` is the compression of the record's batch: 0 none, 1 gzip,
    2 snappy, 3 lz4, 4 zstd.
    """

    offset: int
    id: int | None
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    codec: int = 0
    topic: str = ""
    partition: int = -1


_new = tuple.__new__  # as Record(...), at a third of its time


class RecordIds(NamedTuple):
    """A run of ids in a batch: up to the offset delta `end`, exclusive, an id is `first_id` plus the offset delta.

    None stands for no ids.
    """

    end: int
    first_id: int | None


NO_IDS = (RecordIds(1 << 31, None),)


def usual_records(
    data: bytes, header: BatchHeader, runs: Sequence[RecordIds], topic: str = "", partition: int = -1
) -> list[Record] | None:
    """Return the records of a batch from its unpacked `data`, or None if the batch is not usual.

    The `runs` are the ids of the batch's offsets, or NO_IDS. A batch whose records have not all an id is not usual.
    """
    if not 0 < header.record_count <= len(data) // RECORD_BYTES_MIN or abs(header.base_timestamp) > _NUMBER_MAX:
        return None
    try:
        records, end = _read(data, header, iter(runs), topic, partition)
    except (IndexError, CorruptBatch):
        return None
    return records if end == len(data) and records[-1].offset <= header.last_offset else None


def _read(
    data: bytes, header: BatchHeader, runs: Iterator[RecordIds], topic: str, partition: int
) -> tuple[list[Record], int]:
    """Return the records, and the end of the last. Raise CorruptBatch or IndexError if one of them is not usual.

    Varints of one and two bytes are read in place, because a call for each takes longer than all the rest. They stay in
    zigzag form: twice the number, or odd if it is negative, as the length of a null is.
    """
    base_offset, base_timestamp, codec = header.base_offset, header.base_timestamp, header.compression
    append_time = header.max_timestamp if header.is_log_append_time else None
    records: list[Record] = []
    append, end, before = records.append, 0, -1
    run_end, first_id = RecordIds(0, None)
    for _ in range(header.record_count):
        if (size := data[end]) < 0x80:
            position = end + 1
        elif (high := data[end + 1]) < 0x80:
            size, position = size + (high << 7) - 0x80, end + 2
        else:
            size, position = _long(data, end)
        end, position = position + (size >> 1), position + 1  # past the attributes, which the protocol does not use
        if (time := data[position]) < 0x80:
            position += 1
        elif (high := data[position + 1]) < 0x80:
            time, position = time + (high << 7) - 0x80, position + 2
        else:
            time, position = _long(data, position)
        if (delta := data[position]) < 0x80:
            position += 1
        elif (high := data[position + 1]) < 0x80:
            delta, position = delta + (high << 7) - 0x80, position + 2
        else:
            delta, position = _long(data, position)
        key: bytes | None = None
        if (length := data[position]) < 0x80:
            position += 1
        elif (high := data[position + 1]) < 0x80:
            length, position = length + (high << 7) - 0x80, position + 2
        else:
            length, position = _long(data, position)
        if not length & 1:
            start, position = position, position + (length >> 1)
            key = data[start:position]
        value: bytes | None = None
        if (length := data[position]) < 0x80:
            position += 1
        elif (high := data[position + 1]) < 0x80:
            length, position = length + (high << 7) - 0x80, position + 2
        else:
            length, position = _long(data, position)
        if not length & 1:
            start, position = position, position + (length >> 1)
            value = data[start:position]
        headers: Headers = ()
        if data[position]:
            headers, position = read_headers(data, position, end)
        else:
            position += 1
        if position != end or delta <= before or (size | delta) & 1:
            raise CorruptBatch("not usual")
        before, delta = delta, delta >> 1
        time_ms = base_timestamp + ((time >> 1) ^ -(time & 1)) if append_time is None else append_time
        if delta >= run_end:
            run_end, first_id = _run_of(delta, runs)
        id = None if first_id is None else first_id + delta
        append(_new(Record, (base_offset + delta, id, time_ms, key, value, headers, codec, topic, partition)))
    return records, end


def _run_of(delta: int, runs: Iterator[RecordIds]) -> RecordIds:
    for run in runs:
        if delta < run.end:
            return run
    raise CorruptBatch("not usual")


def _long(data: bytes, position: int) -> tuple[int, int]:
    """Return a varint of any length in zigzag form, and its end. Raise CorruptBatch for a number that is too large."""
    value, position = read_varint(data, position)
    if abs(value) > _NUMBER_MAX:
        raise CorruptBatch("not usual")
    return (value << 1) ^ (value >> 63), position
