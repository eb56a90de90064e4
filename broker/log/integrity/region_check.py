"""Verifies the region of a segment that a read asks for, in any thread, and applies the verdict in the reactor thread.

    run     walk from the index entry before the offset: the batch there must be the one that the entry names. Or
            continue a span that was verified before. If the index disagrees, walk the whole segment
    apply   note the verified span; put rebuilt indexes into their place; take a log offline by name that is damaged
            or cannot be read

The segment may change meanwhile: retention may drop it, compaction may replace it, its topic may be deleted, an append
may fill it so that a sync closes it. `apply` first looks if the log still has the segment as it was at the start.
"""

import sys
from array import array
from bisect import bisect_left
from itertools import islice
from operator import lt

from broker.log.closed_segment import ClosedSegment
from broker.log.index.index import OffsetIndex, TimeIndex
from broker.log.integrity.segment_walk import Damaged, SegmentWalk, is_batch
from broker.log.partition_log import PartitionLog
from broker.log.segment import Segment
from broker.log.storage.port import StorageError
from broker.log.unverified import Unverified, VerifiedSpan

AHEAD_BYTES = 8 << 20
"""Bytes verified past the wanted offset, because a consumer of old data reads on from there."""
AHEAD_BATCHES = 4096
"""Batches verified at most past the wanted offset, some milliseconds of work."""
_STEP_BATCHES = 256
_ALL = 1 << 62


class WrongIndex(Exception):
    """The offset index does not fit the batches."""


class Rebuilt:
    """The indexes and times of a segment, from a walk over all of it."""

    def __init__(self, walk: SegmentWalk, state: Unverified | None) -> None:
        self.index, self.times = walk.rebuilt()
        self.end = walk.end
        self.old_index_bytes = None if state is None else state.index_bytes
        self.old_time_bytes = None if state is None else state.time_bytes
        self.first_timestamp_ms = walk.first_timestamp_ms
        self.max_timestamp_ms, self.max_timestamp_offset = walk.max_timestamp_ms, walk.max_timestamp_offset


class Verdict:
    """The verdict of a walk on one segment of a log: `run` it in any thread, then `apply` it in the reactor thread."""

    def __init__(self, log: PartitionLog, segment: Segment) -> None:
        self.log = log
        self.segment = segment
        self.state = log.segments.unverified.get(segment.base_offset)
        self.damage: str | None = None
        self.error: StorageError | None = None
        """Why the files could not be read."""
        self.rebuilt: Rebuilt | None = None
        self.span: VerifiedSpan | None = None
        self.is_whole = False
        self.is_sealed = isinstance(segment, ClosedSegment) and (self.state is None or self.state.end == segment.size)
        self._epochs, self._epoch_max = log.epochs, log.leader_epoch
        self._interval_bytes = log.config.index_interval_bytes

    @property
    def is_current(self) -> bool:
        """Return True if the log still has the segment that was walked."""
        segments = self.log.segments
        if self.state is not None:
            return segments.unverified.get(self.segment.base_offset) is self.state
        return any(segment is self.segment for segment in segments.all)

    @property
    def is_bad(self) -> bool:
        """Return True if the segment has damage, wrong indexes or a file that cannot be read."""
        has_failed = self.error is not None and self.error.is_of_file
        return self.damage is not None or has_failed or self.rebuilt is not None

    def walk_of(self, apart: Segment, end: int, **more: int | bool | None) -> SegmentWalk:
        """Return a walk over the segment up to byte `end`."""
        return SegmentWalk(
            apart, end, self._epochs, self._epoch_max, self._interval_bytes, **more  # type: ignore[arg-type]
        )

    def finished(self, walk: SegmentWalk) -> None:
        """Take the outcome of a walk over all of the segment. Raise Damaged."""
        walk.finish(self.is_sealed)
        self.is_whole = True
        state = self.state
        if not walk.index_is_right or (state is not None and passes_end(walk.segment, state, walk.next_offset)):
            self.rebuilt = Rebuilt(walk, self.state)

    def apply(self, is_halfway: bool = False) -> str | None:
        """Apply the verdict, unless the segment is gone. Return a line for the operator, or None.

        `is_halfway` says that some files of the log are replaced and some are not, so that a mismatch is no verdict.
        """
        log, state = self.log, self.state
        if log.offline is not None or not self.is_current:
            return None
        if is_halfway and self.is_bad:
            if state is not None:
                wrong = f"{log.name}: its indexes are wrong, and files are being replaced"
                state.error = self.damage or (str(self.error) if self.error is not None else wrong)
        elif self.damage is not None:
            log.take_offline(self.damage)
        elif self.error is not None:
            if state is not None:
                state.error = str(self.error)
            log.failed_read(self.error)
        elif self.rebuilt is not None:
            now = log.segments.all[bisect_left(log.segments.bases, self.segment.base_offset)]
            if isinstance(now, ClosedSegment) and self.rebuilt.end < now.size:
                return None  # it was closed meanwhile, so the next read has it walked whole
            return self._install(self.rebuilt)
        elif self.is_whole:
            log.segments.verified(self.segment.base_offset)
        elif state is not None and self.span is not None:
            state.add(self.span)
            if state.is_done:
                log.segments.unverified.pop(self.segment.base_offset, None)
        return None

    def _install(self, rebuilt: Rebuilt) -> str:
        base = self.segment.base_offset
        try:
            self.log.segments.reindex(base, rebuilt)
        except StorageError as error:
            if self.state is not None:
                self.state.error = str(error)
            return f"partition {self.log.name}: the wrong indexes of the segment at {base} stay for now: {error}"
        self.log.segments.verified(base)
        return f"partition {self.log.name}: the indexes of the segment at {base} were wrong; they are rebuilt"


class RegionCheck(Verdict):
    """The verdict on the region of a segment from an offset on."""

    def __init__(self, log: PartitionLog, segment: Segment, offset: int) -> None:
        super().__init__(log, segment)
        self._offset = offset

    def run(self) -> None:
        """Verify the region. The outcome is in the fields; nothing is raised."""
        try:
            self._run()
        except Damaged as error:
            self.damage = str(error)
        except StorageError as error:
            self.error = error

    def _run(self) -> None:
        state = self.state
        if state is None:
            return
        apart = self.segment.apart()
        try:
            self.span = self._walked(apart, state)
        except WrongIndex:
            # One that was closed since the start is judged whole, because its indexes are made anew for all of it.
            self.is_sealed = isinstance(self.segment, ClosedSegment)
            walk = self.walk_of(apart, self.segment.size if self.is_sealed else state.end)
            walk.step(_ALL, sys.maxsize)
            self.finished(walk)

    def _walked(self, apart: Segment, state: Unverified) -> VerifiedSpan:
        offsets = OffsetIndex(apart.offsets.file)
        if not state.is_ordered:
            check_order(apart)
            if passes_end(apart, state, self.log.opened_at):
                raise WrongIndex
            state.is_ordered = True
        base = apart.base_offset
        number = offsets.rank(self._offset - base)
        last, position = offsets[number - 1] if number else (-1, 0)
        if position >= state.end:
            raise WrongIndex
        before = state.span_at(position)
        if before is not None:
            index_number = offsets.rank(before.end - 1, field=1)
            walk = self.walk_of(
                apart, state.end, position=before.end, offset=before.end_offset, index_number=index_number
            )
        else:
            if number and not is_batch(apart, position, base + last):
                raise WrongIndex
            walk = self.walk_of(apart, state.end, position=position, index_number=max(number - 1, 0))
        start = walk.position
        while not walk.is_done and (
            walk.next_offset <= self._offset
            or (walk.position - start < AHEAD_BYTES and walk.batches < AHEAD_BATCHES)
        ):
            walk.step(_ALL, _STEP_BATCHES)
        if not walk.index_is_right or walk.strays:
            raise WrongIndex
        first = base if not start else walk.first_offset
        if before is not None:
            first = before.first_offset
        end_offset = max(walk.next_offset, self.segment.next_offset if walk.is_done and self.is_sealed else 0)
        return VerifiedSpan(walk.next_offset if first is None else first, end_offset, start, walk.position)


def passes_end(segment: Segment, state: Unverified, end_offset: int) -> bool:
    """Return True if an index named a place past the segment's end at the start; entries of later appends do so."""
    offsets, times = OffsetIndex(segment.offsets.file), TimeIndex(segment.times.file)
    number = min(state.index_bytes // OffsetIndex.ENTRY_BYTES, len(offsets))  # fewer if a full disk took the last ones
    of_times = min(state.time_bytes // TimeIndex.ENTRY.size, len(times))
    return bool(number and offsets[number - 1][1] >= state.end) or bool(
        of_times and times[of_times - 1][1] >= end_offset - segment.base_offset
    )


def check_order(segment: Segment) -> None:
    """Raise WrongIndex unless the entries of the offset index rise, so that a search in it cannot go astray."""
    file = segment.offsets.file
    data = file.read(0, file.size)
    if len(data) % OffsetIndex.ENTRY_BYTES and isinstance(segment, ClosedSegment):
        raise WrongIndex
    fields = array("I", data[: len(data) - len(data) % OffsetIndex.ENTRY_BYTES])
    if sys.byteorder == "little":
        fields.byteswap()
    for column in (fields[0::2], fields[1::2]):
        if not all(map(lt, column, islice(column, 1, None))):
            raise WrongIndex
