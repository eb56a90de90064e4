"""A batch after compaction removed some of its records (https://kafka.apache.org/documentation/#compaction).

The remaining records keep their offsets, times and bytes. The batch keeps its first and last offset and its sequence,
so that a reader knows its range and the producer's next sequence follows. An emptied batch is a header alone. A delete
horizon (KIP-534) replaces the base timestamp, and the records' timestamp deltas count from it.
"""

import re
from collections.abc import Sequence
from itertools import compress as chosen
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
from broker.record.compression import codec_of, compress
from broker.record.keyed import Body
from broker.record.records import LONG_MAX
from broker.record.varint import read_varint, varint
from broker.wire.primitives import Buffer

_KEPT = re.compile(b"\x01+")
_RUN_RECORDS_MIN = 32
_RUN_FACTOR = 8
_WALKED_RECORDS = 256  # before the next look for records of one size


class Written(NamedTuple):
    """A batch and its header."""

    header: BatchHeader
    data: Buffer


def reduced(header: BatchHeader, body: Body, wanted: Buffer, horizon_ms: int | None = None) -> Written | None:
    """Return the batch with the records that have a 1 in `wanted`; all others have a 0.

    `horizon_ms` becomes its delete horizon, unless the horizon or a time counted from it has more than 64 bits. Return
    None if nothing changes. The records were read by `keys_of`. Raise CorruptBatch if they have changed since.
    """
    starts = starts_of(body, header.record_count)
    kept = list(chosen(starts, wanted))
    if horizon_ms is not None:
        moved = header.base_timestamp - horizon_ms
        times = [time + moved for time in _times(body.data, kept)]
        if horizon_ms <= LONG_MAX and -LONG_MAX <= min(times) and max(times) <= LONG_MAX:
            records = _retimed(body.data, kept, times)
            attributes = header.attributes | DELETE_HORIZON_BIT
            return _write(header._replace(base_timestamp=horizon_ms, attributes=attributes), max(times), kept, records)
    if len(kept) == len(starts):
        return None
    newest = 0 if header.is_log_append_time else max(_times(body.data, kept))
    starts.append(body.end)
    pieces = [body.data[starts[m.start()] : starts[m.end()]] for m in _KEPT.finditer(wanted)]
    return _write(header, newest, kept, b"".join(pieces))


def starts_of(body: Body, count: int) -> list[int]:
    """Return the position of each record. Raise CorruptBatch if the records do not fill the body."""
    data, position, end = body
    starts: list[int] = []
    guess = _RUN_RECORDS_MIN
    try:
        while (records_left := count - len(starts)) > 0:
            if records_left >= _RUN_RECORDS_MIN and (run := _of_one_size(body, position, min(records_left, guess))):
                starts += run
                position = run.stop
                guess *= _RUN_FACTOR
            else:
                position = _walk(data, position, min(records_left, _WALKED_RECORDS), starts)
                guess = _RUN_RECORDS_MIN
    except IndexError:
        position = -1
    if position != end:
        raise CorruptBatch(f"{count} records do not fill the {end - body.begin} bytes of their batch any more")
    return starts


def _of_one_size(body: Body, position: int, most: int) -> range:
    """Return the positions of the next records, as long as their lengths are the same."""
    data, _, end = body
    length = data[position : position + 1] if data[position] < 0x80 else data[position : position + 2]
    size = len(length) + ((length[0] & 0x7F | (length[-1] << 7 if len(length) == 2 else 0)) >> 1)
    most = min(most, (end - position) // size)
    if len(length) == 2 and length[1] > 0x7F or data[position + size : position + size + 1] != length[:1]:
        return range(0)
    for index in range(len(length)):
        most -= len(data[position + index : position + most * size : size].lstrip(length[index : index + 1]))
    return range(position, position + most * size, size) if most >= _RUN_RECORDS_MIN else range(0)


def _walk(data: bytes, position: int, most: int, starts: list[int]) -> int:
    """Note the positions of the next records one by one. Return the end of the last one."""
    put = starts.append
    for _ in range(most):
        put(position)
        size = data[position]
        if size < 0x80:
            position += 1 + (size >> 1)
        elif (second := data[position + 1]) < 0x80:
            position += (second << 6) + (size >> 1) - 62  # 2 bytes of the length itself, less bit 7 of `size`
        else:
            length, position = read_varint(data, position)
            position += length
    return position


def _times(data: bytes, starts: Sequence[int]) -> list[int]:
    """Return the timestamp deltas of the records at these positions."""
    times = []
    for at in starts:
        at += 2 if data[at] < 0x80 else 3 if data[at + 1] < 0x80 else read_varint(data, at)[1] - at + 1
        byte = data[at]
        times.append(byte >> 1 if byte < 0x80 and not byte & 1 else read_varint(data, at)[0])
    return times


def _retimed(data: bytes, starts: Sequence[int], times: Sequence[int]) -> bytes:
    """Return the records at these positions with other timestamp deltas."""
    written = {time: varint(time) for time in set(times)}
    pieces: list[bytes] = []
    for at, time in zip(starts, times, strict=True):
        size, at = read_varint(data, at)
        rest = at + 2 if data[at + 1] < 0x80 else read_varint(data, at + 1)[1]
        new = written[time]
        pieces += (varint(size + at + 1 + len(new) - rest), data[at : at + 1], new, data[rest : at + size])
    return b"".join(pieces)


def _write(header: BatchHeader, newest_delta: int, kept: Sequence[int], records: bytes) -> Written:
    newest = header.max_timestamp if header.is_log_append_time else header.base_timestamp + newest_delta
    packed = compress(codec_of(header.compression), records)
    return _sealed(header, packed, header.attributes, header.base_timestamp, newest, len(kept))


def emptied(header: BatchHeader) -> Written:
    """Return the batch as a header alone, which keeps its offsets, its last sequence and its newest time."""
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT)
    return _sealed(header, b"", attributes, NO_TIMESTAMP, header.max_timestamp, 0)


def _sealed(
    header: BatchHeader, records: Buffer, attributes: int, base_timestamp: int, max_timestamp: int, count: int
) -> Written:
    """Return the whole batch with these records and fields; its length and CRC are set, all else is as in `header`."""
    prefix, sequence = (header.base_offset, len(records) + HEADER_BYTES - LENGTH_END, *header[2:4]), header[9:12]
    fields = attributes, header.last_offset_delta, base_timestamp, max_timestamp, *sequence, count
    crc = crc32c(records, crc32c(HEADER.pack(*prefix, 0, *fields)[CRC_START:]))
    written = BatchHeader._make((*prefix, crc, *fields))
    return Written(written, b"".join((HEADER.pack(*written), records)))
