"""Looking for an offset in a log by time or by id, in one of three ways.

    AT_ONCE   in the thread that serves everybody, where nobody may wait: NotNow where the disk would have to be waited
              for, or a batch of very many records be opened
    ASIDE     by another thread, with files of its own
    WAITING   however long it takes
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from broker.log.glance import Glanced, NotNow
from broker.log.segment import Segment
from broker.record.batch import NO_TIMESTAMP, BatchHeader
from broker.record.records import times_of

OPENED_AT_ONCE = 10_000  # records, which takes some milliseconds
NOT_COUNTED = -1, 0, NO_TIMESTAMP

Found = tuple[int, int]
"""(offset, its timestamp)."""
Counted = tuple[int, int, int]
"""(log start offset, position, largest timestamp): what the first segment's batches from the log's start on have, as
far as they were looked at."""


class Way(NamedTuple):
    """How a segment is looked into, and of how many records a batch may be that is opened."""

    see: Callable[[Segment], Any]
    records_max: int | None = None


AT_ONCE = Way(Glanced, OPENED_AT_ONCE)
ASIDE = Way(Segment.apart)
WAITING = Way(lambda segment: segment)


class Search(NamedTuple):
    """A log as it was at one moment; what has been appended since is not found."""

    segments: tuple[Segment, ...]
    newest: Sequence[int]
    """Of each segment but the last, the largest timestamp up to it."""
    start: int
    """The log's start offset: nothing below it is found."""
    end_position: int
    """Of the last segment's log."""
    counted: Counted

    def of_id(self, id: int, way: Way) -> int | None:
        """The first offset whose id is not below `id`; None where all are. StorageError."""
        is_empty = not self.end_position
        low, high = 0, len(self.segments) - is_empty
        while low < high:
            middle = (low + high) // 2
            if (way.see(self.segments[middle]).ids.last_id() or 0) < id:
                low = middle + 1
            else:
                high = middle
        return way.see(self.segments[low]).ids.offset_of_id(id) if low < len(self.segments) - is_empty else None

    def of_time(self, timestamp_ms: int, way: Way) -> Found | None:
        """The first record not older than `timestamp_ms`; None where all are (KIP-33).

        The batch that holds it is opened: CorruptBatch where a producer filled it with what are no records.
        """
        for segment in self.segments[bisect_left(self.newest, timestamp_ms) :]:
            if segment.max_timestamp_ms < timestamp_ms:
                continue
            seen = way.see(segment)
            start = max(seen.times.offset_before(timestamp_ms), self.start - segment.base_offset)
            for at, header in seen.batches(seen.offsets.position_before(start), self._end_of(segment)):
                if header.max_timestamp < timestamp_ms or header.last_offset < self.start:
                    continue
                for offset, time_ms in _opened(segment, seen, at, header, way):
                    if time_ms >= timestamp_ms and offset >= self.start:
                        return offset, time_ms
        return None

    def of_newest(self, way: Way) -> tuple[Found | None, Counted]:
        """The first record with the largest timestamp of those that are left (KIP-734), None where none has a time;
        and what was counted for it. Errors as of `of_time`."""
        first = self.segments[0]
        newest, counted = max((self.segments[-1].max_timestamp_ms, *self.newest[-1:])), self.counted
        if first.max_timestamp_ms >= newest and self.start > first.base_offset:
            later = max((each.max_timestamp_ms for each in self.segments[1:]), default=NO_TIMESTAMP)
            counted = self._count(first, way)
            newest = max(later, counted[2])
        return None if newest < 0 else self.of_time(newest, way), counted

    def _count(self, first: Segment, way: Way) -> Counted:
        """The largest timestamp of the first segment from the log's start on: of what is below it nothing is told."""
        known, position, newest = self.counted
        seen, start = way.see(first), self.start
        if known != start:
            position, newest = seen.offsets.position_before(start - first.base_offset), NO_TIMESTAMP
        for position, header in seen.batches(position, self._end_of(first)):
            if header.base_offset < start <= header.last_offset:
                times = _opened(first, seen, position, header, way)
                newest = max((newest, *(time_ms for offset, time_ms in times if offset >= start)))
            elif header.base_offset >= start and header.record_count:
                newest = max(newest, header.max_timestamp)
        return start, position, newest  # where it goes on when more has been appended

    def _end_of(self, segment: Segment) -> int | None:
        """Where a segment's log ended; None for one that is not appended to."""
        return self.end_position if segment is self.segments[-1] else None


def _opened(segment: Segment, seen: Any, position: int, header: BatchHeader, way: Way) -> Any:
    if way.records_max is not None and header.record_count > way.records_max:
        raise NotNow(f"the batch at {header.base_offset} of {segment.directory} has {header.record_count} records")
    return times_of(seen.log.read(position, header.size))
