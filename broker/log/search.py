"""Search for an offset in a log by time or by id, in one of three ways.

    NONBLOCKING   in the reactor thread, which must not wait: raises WouldBlock if the search would wait for the disk,
                  or would open a batch of very many records or bytes
    IN_THREAD     in a worker thread, with its own open files
    BLOCKING      in the calling thread; waits for the disk as long as necessary

A batch with a valid CRC whose records cannot be decoded has no time that a search can find. Readers skip it too.
"""

from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, NamedTuple

from broker.log.non_blocking_reader import NonBlockingReader, WouldBlock
from broker.log.segment import Segment
from broker.record.batch import NO_TIMESTAMP, BatchHeader, CorruptBatch, verify
from broker.record.compression import DECOMPRESSED_BYTES_MAX, TooLarge
from broker.record.records import times_of

OPENED_NON_BLOCKING = 10_000  # records, which takes some milliseconds
UNPACKED_NON_BLOCKING = 1 << 20  # bytes of a compressed batch, which takes a millisecond
NOT_COUNTED = -1, 0, NO_TIMESTAMP

OffsetAndTime = tuple[int, int]
"""(offset, its timestamp)."""
Counted = tuple[int, int, int]
"""(log start offset, position, largest timestamp): the largest timestamp of the first segment's records from the log's
start, counted up to the batch at the position."""


class ReadMode(NamedTuple):
    """A way to read a segment, and the largest batch that it opens, in records and in unpacked bytes."""

    see: Callable[[Segment], Any]
    records_max: int | None = None
    bytes_max: int | None = None


NONBLOCKING = ReadMode(NonBlockingReader, OPENED_NON_BLOCKING, UNPACKED_NON_BLOCKING)
IN_THREAD = ReadMode(Segment.apart)
BLOCKING = ReadMode(lambda segment: segment)


class Search(NamedTuple):
    """A log as it was at one moment. Later appends are not found."""

    segments: tuple[Segment, ...]
    newest: Sequence[int]
    """For each segment except the last, the largest timestamp up to its end."""
    start: int
    """The log's start offset. Records below it are not found."""
    end_position: int
    """End of the last segment's log."""
    counted: Counted
    unverified: Container[int] = ()
    """Base offsets of segments whose indexes an earlier process wrote, and this one has not verified."""

    def of_id(self, id: int, mode: ReadMode) -> int | None:
        """Return the first offset whose id is at least `id`, None if all ids are below it. Raise StorageError."""
        is_empty = not self.end_position
        low, high = 0, len(self.segments) - is_empty
        while low < high:
            middle = (low + high) // 2
            if (mode.see(self.segments[middle]).ids.last_id() or 0) < id:
                low = middle + 1
            else:
                high = middle
        return mode.see(self.segments[low]).ids.offset_of_id(id) if low < len(self.segments) - is_empty else None

    def of_time(self, timestamp_ms: int, mode: ReadMode) -> OffsetAndTime | None:
        """Return the first record at or after `timestamp_ms`, None if all are older (KIP-33).

        Its batch is opened. Raise CorruptBatch if a CRC on the way is wrong.
        """
        for segment in self.segments[bisect_left(self.newest, timestamp_ms) :]:
            if segment.max_timestamp_ms < timestamp_ms:
                continue
            seen = mode.see(segment)
            position, is_indexed = self._position_of(timestamp_ms, segment, seen)
            if not is_indexed and mode is NONBLOCKING:
                raise WouldBlock(f"an index of {segment.directory} is damaged, so all of the segment is searched")
            for at, header in seen.batches(position, self._end_of(segment)):
                if not is_indexed:
                    verify(seen.log.read(at, header.size), header)  # else a damaged log would pass for a damaged index
                if header.max_timestamp < timestamp_ms or header.last_offset < self.start:
                    continue
                for offset, time_ms in _opened(segment, seen, at, header, mode):
                    if time_ms >= timestamp_ms and offset >= self.start:
                        return offset, time_ms
        return None

    def _position_of(self, timestamp_ms: int, segment: Segment, seen: Any) -> tuple[int, bool]:
        """Return the position where a search by time begins in a segment; the beginning and False if an index is wrong.

        An index is never a reason for an error, because the log has all that it says. The scrub rebuilds it.
        """
        is_verified = segment.base_offset not in self.unverified
        if not is_verified and not _fits(segment, seen, timestamp_ms):
            return 0, False
        start = max(seen.times.offset_before(timestamp_ms), self.start - segment.base_offset)
        if not is_verified and not _entry_fits(segment, seen, start):
            return 0, False
        return seen.offsets.position_before(start), True

    def of_newest(self, mode: ReadMode) -> tuple[OffsetAndTime | None, Counted]:
        """Return the first record with the largest timestamp in the log (KIP-734), and the new `counted`.

        The record is None if no record has a timestamp. Raise the errors of `of_time`.
        """
        first = self.segments[0]
        newest, counted = max((self.segments[-1].max_timestamp_ms, *self.newest[-1:])), self.counted
        if first.max_timestamp_ms >= newest and self.start > first.base_offset:
            later = max((segment.max_timestamp_ms for segment in self.segments[1:]), default=NO_TIMESTAMP)
            counted = self._count(first, mode)
            newest = max(later, counted[2])
        return None if newest < 0 else self.of_time(newest, mode), counted

    def _count(self, first: Segment, mode: ReadMode) -> Counted:
        """Return the count of the first segment: its largest timestamp, without records below the log's start."""
        counted_start, position, newest = self.counted
        seen, start = mode.see(first), self.start
        if counted_start != start:
            position, newest = 0, NO_TIMESTAMP
            if first.base_offset not in self.unverified or _entry_fits(first, seen, start - first.base_offset):
                position = seen.offsets.position_before(start - first.base_offset)
            elif mode is NONBLOCKING:
                raise WouldBlock(f"an index of {first.directory} is damaged, so all of the segment is searched")
        for position, header in seen.batches(position, self._end_of(first)):
            if header.base_offset < start <= header.last_offset:
                times = _opened(first, seen, position, header, mode)
                newest = max((newest, *(time_ms for offset, time_ms in times if offset >= start)))
            elif header.base_offset >= start and header.record_count:
                newest = max(newest, header.max_timestamp)
        return start, position, newest  # the next count continues here

    def _end_of(self, segment: Segment) -> int | None:
        """Return the end of a segment's log at the moment of the search, None for a segment that is not appended to."""
        return self.end_position if segment is self.segments[-1] else None


def _fits(segment: Segment, seen: Any, timestamp_ms: int) -> bool:
    """Return True if the index entries that a search by time uses fit the batches that they name.

    A wrong entry elsewhere makes the search begin too early at worst, because the last one it uses is checked.
    """
    number = seen.times.rank(timestamp_ms - 1)
    if not number:
        return True
    time_ms, relative_offset = seen.times.near(number - 1)
    number = seen.offsets.rank(relative_offset)
    last, position = seen.offsets.near(number - 1) if number else (None, 0)
    first = True
    for at, header in seen.batches(position):
        if first and last is not None and (at, header.last_offset) != (position, segment.base_offset + last):
            break
        first = False
        if header.last_offset >= segment.base_offset + relative_offset:
            return (header.last_offset, header.max_timestamp) == (segment.base_offset + relative_offset, time_ms)
    return False


def _entry_fits(segment: Segment, seen: Any, relative_offset: int) -> bool:
    """Return True if the entry of the offset index that a search begins at names a batch."""
    number = seen.offsets.rank(relative_offset)
    if not number:
        return True
    last, position = seen.offsets.near(number - 1)
    batch = next(iter(seen.batches(position)), None)
    return batch is not None and (batch[0], batch[1].last_offset) == (position, segment.base_offset + last)


def _opened(segment: Segment, seen: Any, position: int, header: BatchHeader, mode: ReadMode) -> Iterator[OffsetAndTime]:
    """Iterate over (offset, time) of a batch's records, up to the first that cannot be decoded."""
    if mode.records_max is not None and header.record_count > mode.records_max:
        raise WouldBlock(f"the batch at {header.base_offset} of {segment.directory} has {header.record_count} records")
    batch = seen.log.read(position, header.size)
    verify(batch, header)
    try:
        yield from times_of(batch, mode.bytes_max or DECOMPRESSED_BYTES_MAX)
    except TooLarge as error:
        if mode.bytes_max is not None:
            raise WouldBlock(f"the batch at {header.base_offset} of {segment.directory}: {error}") from None
    except CorruptBatch:
        return
