"""Produces that differ from one before them in no more than each must: the fastest of the short way.

A producer whose records are of one size sends frames of which all is the same but the correlation id, the CRC, times
and sequence of the batch's header, and what comes after that header. Where the rest is that of a frame whose batch was
judged good (broker.log.judge), this one's is too, if its CRC holds: the rules need not be asked once more.
"""

import struct
from typing import TypeAlias

from crc32c import crc32c

from broker.record.batch import CRC_START, HEADER_BYTES, NO_PRODUCER_ID, BatchHeader
from broker.shortcut import Taken

Asked: TypeAlias = tuple[Taken, int, memoryview, BatchHeader]
"""A request that was read: its correlation id, batch and header. The batch is a view into the frame."""

# Base offset, batch length, leader epoch and magic, attributes and last offset delta, producer id and epoch, and the
# count are bytes to be compared; between them are the CRC, two times, and the sequence.
_BEFORE_CRC_BYTES = 17
_HEADER = "sI6sqq10si4s"


class Alike:
    """Made of a whole frame, without its length, whose batch lies from `start` to `end`, and is good, with `header`."""

    __slots__ = ("size", "_unpack", "_same", "_start", "_end", "_idempotent", "_header")

    def __init__(self, frame: memoryview, start: int, end: int, header: BatchHeader) -> None:
        self.size = len(frame)
        """Of the frames that may be alike."""
        records, tail = end - start - HEADER_BYTES, len(frame) - end
        envelope = start - 8 + _BEFORE_CRC_BYTES
        self._unpack = struct.Struct(f">4si{envelope}{_HEADER}{records}x{tail}s").unpack_from
        request, _, before, _, kind, _, _, producer, _, count, after = self._unpack(frame)
        self._same = request, before, kind, producer, count, after
        self._start, self._end = start, end
        self._idempotent = header.producer_id > NO_PRODUCER_ID
        self._header = header

    def read(self, taken: Taken, newest_max_ms: int) -> Asked | None:
        """What a frame of `size` bytes asks for; None for one that is not alike, or whose newest time is later."""
        frame = taken[2]
        request, correlation_id, before, crc, kind, base_ms, newest_ms, producer, sequence, count, after = (
            self._unpack(frame)
        )
        if (request, before, kind, producer, count, after) != self._same:
            return None
        if newest_ms > newest_max_ms or (sequence < 0 and self._idempotent):
            return None
        batch = frame[self._start : self._end]
        if crc32c(batch[CRC_START:]) != crc:
            return None
        offset, length, leader, magic, _, attributes, delta, _, _, producer_id, epoch, _, number = self._header
        fields = (
            offset, length, leader, magic, crc, attributes, delta, base_ms, newest_ms, producer_id, epoch, sequence,
            number,
        )  # fmt: skip
        return taken, correlation_id, batch, tuple.__new__(BatchHeader, fields)  # as `_make`, at half its price
