"""The segments of one log, with the values about them that reads and searches need often.

A log may have ten thousand segments, and only the last one changes. So the list precomputes these values for all
segments but the last. It also closes the files of segments that are on the disk, and counts the others in the registry
of all logs' open segments (broker.log.closed_segment).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Protocol

from broker.log.closed_segment import ClosedSegment, OpenSegments, closed
from broker.log.search import NOT_COUNTED
from broker.log.segment import INDEX, TIME_INDEX, Segment, file_name, remove_files
from broker.log.storage.port import Storage, StorageError
from broker.log.unverified import Unverified


class Rebuilt(Protocol):
    """Indexes and times of a segment, as a walk over its batches found them (broker.log.integrity.region_check)."""

    index: bytes
    times: bytes
    old_index_bytes: int | None
    """Size of the index at the start, None if it has not changed."""
    old_time_bytes: int | None
    first_timestamp_ms: int
    max_timestamp_ms: int
    max_timestamp_offset: int


class SegmentList:
    """The segments of the log in a directory, oldest first. There is always one, and appends go to the last."""

    def __init__(
        self, storage: Storage, directory: str, segments: Sequence[Segment], open_segments: OpenSegments
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._open_segments = open_segments
        self._dropped: tuple[Segment, ...] = ()
        self._set(tuple(segments))
        self.unverified = {
            segment.base_offset: Unverified(segment.size, *segment.index_sizes) for segment in segments if segment.size
        }
        """The segments whose contents this process has not verified yet, by base offset."""
        self.unverified_times = set(self.unverified)
        """The segments whose time index no walk from their beginning has verified yet."""

    def _set(self, segments: tuple[Segment, ...]) -> None:
        before = segments[:-1]
        self.all = segments
        """A snapshot: a change of the list makes a new tuple and does not disturb readers of this one."""
        self.active = segments[-1]
        """The last segment, which appends go to."""
        self.bases = [segment.base_offset for segment in segments]
        self.newest = list(accumulate((segment.max_timestamp_ms for segment in before), max))
        """For each segment except the last, the largest timestamp up to its end."""
        self.aborting = [segment.base_offset for segment in before if segment.has_aborted]
        """The base offsets of the segments with aborted transactions, except the last."""
        self.counted = NOT_COUNTED
        """The count of the first segment's timestamps by the last search."""
        self._bytes_before = sum(segment.size for segment in before)

    @property
    def size(self) -> int:
        """Return the bytes of all batches."""
        return self._bytes_before + self.active.size

    def aborting_from(self, offset: int) -> Iterator[Segment]:
        """Iterate over the segments with aborted transactions, from the one with `offset` on."""
        first = self.bases[max(bisect_right(self.bases, offset) - 1, 0)]
        for number in range(bisect_left(self.aborting, first), len(self.aborting)):
            yield self.all[bisect_left(self.bases, self.aborting[number])]
        if self.active.has_aborted:
            yield self.active

    def unsynced_from(self, offset: int) -> tuple[Segment, ...]:
        """Return the segments that may contain unsynced bytes; those below `offset` are on the disk."""
        self.release_dropped(offset)
        # `offset` is in the middle of the first segment if that was begun anew below the end of the synced part.
        unsynced = self._dropped + self.all[max(bisect_right(self.bases, offset) - 1, 0) :]
        return tuple(segment for segment in unsynced if not isinstance(segment, ClosedSegment))

    # --- changes -------------------------------------------------------------------------------------------------

    def begin(self, offset: int) -> bool:
        """Seal the active segment, and add an empty one at `offset`, where the log ends.

        Return False if too many segments of all logs now wait for a sync with their files open. Raise StorageError.
        """
        last = self.active
        last.seal()
        try:
            segment = Segment(self._storage, self._directory, offset, create=True)
        except StorageError:
            remove_files(self._storage, self._directory, offset)
            raise
        # The same as `_set`, without a walk over all segments.
        self.all = (*self.all, segment)
        self.active = segment
        self.bases.append(offset)
        self.newest.append(max((last.max_timestamp_ms, *self.newest[-1:])))
        self._bytes_before += last.size
        if last.has_aborted:
            self.aborting.append(last.base_offset)
        self._open_segments.unsynced += 1
        return self._open_segments.unsynced <= self._open_segments.limit

    def begin_anew(self, base_offset: int, end_offset: int) -> None:
        """Replace the only segment, which is empty, by an empty one that begins below it and ends there.

        Raise StorageError, with the list unchanged.
        """
        old = self.active
        try:
            segment = Segment(self._storage, self._directory, base_offset, create=True)
        except StorageError:
            remove_files(self._storage, self._directory, base_offset)
            raise
        segment.next_offset = end_offset
        remove_files(self._storage, self._directory, old.base_offset)
        self._set((segment,))

    def verified(self, base_offset: int) -> None:
        """Note that a whole segment was verified or removed."""
        self.unverified.pop(base_offset, None)
        self.unverified_times.discard(base_offset)

    def close_before(self, offset: int) -> None:
        """Close the files of the segments below `offset`, which are on the disk; a reader opens them again."""
        first = synced = bisect_left(self.bases, offset)
        while first and not isinstance(self.all[first - 1], ClosedSegment):
            first -= 1
        self._open_segments.unsynced -= synced - first
        whole = [self._closed(segment) for segment in self.all[first:synced]]
        self.all = (*self.all[:first], *whole, *self.all[synced:])

    def drop(self, number: int) -> tuple[Segment, ...]:
        """Remove the oldest segments from the list, and return them. Their files stay."""
        oldest = self.all[:number]
        for segment in oldest:
            self.verified(segment.base_offset)
        self._dropped += oldest
        self._set(self.all[number :])
        self._forget(oldest)
        return oldest

    def release_dropped(self, offset: int) -> None:
        """Release the files of dropped segments below `offset`.

        Recovery reads them too, until a checkpoint has a log start after them.
        """
        self._dropped = tuple(segment for segment in self._dropped if segment.base_offset >= offset)

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Replace several consecutive segments with one that has the same offsets and ids."""
        at = self.all.index(old[0])
        new = self._closed(new)
        for segment in old:
            self.verified(segment.base_offset)
        self._set((*self.all[:at], new, *self.all[at + len(old) :]))
        self._forget(old)

    def reindex(self, base_offset: int, rebuilt: Rebuilt) -> None:
        """Replace the indexes of a segment by rebuilt ones. If this raises StorageError, the old ones stay."""
        at = bisect_left(self.bases, base_offset)
        segment = self.all[at]
        index, times = rebuilt.index, rebuilt.times
        if not isinstance(segment, ClosedSegment):  # appends have continued both indexes since the start
            old_index, old_times = rebuilt.old_index_bytes or 0, rebuilt.old_time_bytes or 0
            index += segment.offsets.file.read(old_index, segment.offsets.file.size - old_index)
            times += segment.times.file.read(old_times, segment.times.file.size - old_times)
        for suffix, data in ((INDEX, index), (TIME_INDEX, times)):
            self._storage.replace(f"{self._directory}/{file_name(base_offset, suffix)}", data)
        if not isinstance(segment, ClosedSegment):
            segment.reopen_indexes(self._storage)
            return
        facts = segment.facts._replace(
            index_bytes=len(index),
            time_index_bytes=len(times),
            first_timestamp_ms=rebuilt.first_timestamp_ms,
            max_timestamp_ms=rebuilt.max_timestamp_ms,
            max_timestamp_offset=rebuilt.max_timestamp_offset,
        )
        self.replace([segment], ClosedSegment(self._storage, self._directory, facts, self._open_segments))

    def join(self, open_segments: OpenSegments) -> None:
        """Move the list to the registry of all logs, after a thread has opened the log with one of its own."""
        before = [self._closed(segment).facts for segment in self.all[:-1]]
        self._open_segments = open_segments
        anew = (ClosedSegment(self._storage, self._directory, facts, open_segments) for facts in before)
        self._set((*anew, self.active))

    def close_all(self) -> None:
        """Close the files of a deleted log, except those being sent."""
        self._dropped = ()
        self.unverified.clear()
        self.unverified_times.clear()
        self._forget(self.all[:-1])
        closed = tuple(self._closed(closing) for closing in self.all)
        for segment in closed:
            segment.close_files()
        self._set(closed)

    def _closed(self, segment: Segment) -> ClosedSegment:
        return closed(self._storage, segment, self._open_segments)

    def _forget(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            if isinstance(segment, ClosedSegment):
                self._open_segments.forget(segment)
            else:
                self._open_segments.unsynced -= 1
