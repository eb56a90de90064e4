"""Progress of a partition: a watermark, and the ranges settled above it."""

from itertools import islice, pairwise
from typing import Any, NamedTuple

from sortedcontainers import SortedDict

Range = tuple[int, int]  # half-open


class Progress(NamedTuple):
    """The settled offsets: all below `offset`, and the half-open ranges `done` above it.

    The ranges ascend and do not touch.
    """

    offset: int
    done: tuple[Range, ...] = ()

    def check(self) -> "Progress":
        """Return this progress, or raise ValueError naming its fault."""
        if self.offset < 0:
            raise ValueError(f"an offset is 0 or more, got {self.offset}")
        for start, end in self.done:
            if not self.offset < start < end:
                wanted = f"a done range lies above the offset {self.offset} and is not empty"
                raise ValueError(f"{wanted}, got [{start}, {end})")
        for before, after in pairwise(self.done):
            if after[0] <= before[1]:
                raise ValueError(f"done ranges ascend and stand apart, got {list(before)} before {list(after)}")
        return self


class SettledRanges:
    """The settled offsets of a partition: all below `watermark`, and the ranges settled above it.

    The ranges are a SortedDict from start to end (half-open). They neither overlap nor touch. Offsets settled one by
    one are collected first, and merged when a caller reads the ranges or COLLECTED_MAX of them wait. Acks come in
    bursts that mostly fill whole ranges, so few operations on the SortedDict are left; each costs O(log ranges).
    A SortedDict consists of about 25 objects, which the garbage collector visits. So all partitions without ranges
    share one that stays empty.
    """

    COLLECTED_MAX = 4_000
    EMPTY: Any = SortedDict()

    def __init__(self, progress: Progress) -> None:
        self.collected: dict[int, int] = {}  # start to end, for `collect`; no offset in it is settled already
        self._watermark = progress.offset
        self._ends: Any = SortedDict(progress.done) if progress.done else self.EMPTY

    @property
    def watermark(self) -> int:
        """Return the first offset that is not settled."""
        self._merge()
        return self._watermark

    @property
    def progress(self) -> Progress:
        """Return the watermark and all ranges; O(ranges)."""
        return self.lowest(len(self))

    def lowest(self, ranges_max: int) -> Progress:
        """Return the watermark and the lowest `ranges_max` ranges; O(ranges_max)."""
        self._merge()
        if not self._ends:
            self._ends = self.EMPTY
            return Progress(self._watermark)
        return Progress(self._watermark, tuple(islice(self._ends.items(), ranges_max)))

    @property
    def end(self) -> int:
        """Return the end of the last range, or the watermark if no range exists."""
        self._merge()
        return int(self._ends.peekitem(-1)[1]) if self._ends else self._watermark

    def __len__(self) -> int:
        """Return the number of ranges above the watermark."""
        self._merge()
        return len(self._ends)

    def add(self, start: int, end: int) -> None:
        """Settle the offsets of [start, end), which is not empty. Some of them may be settled already."""
        self._merge()
        self._add(start, end)

    def collect(self) -> None:
        """Merge `collected` into the ranges once it holds COLLECTED_MAX."""
        if len(self.collected) >= self.COLLECTED_MAX:
            self._merge()

    def end_of(self, offset: int) -> int | None:
        """Return the end of the settled range that holds `offset`, or None if `offset` is not settled."""
        self._merge()
        if offset < self._watermark:
            return self._watermark
        at = self._ends.bisect_right(offset)
        end = self._ends.peekitem(at - 1)[1] if at else offset
        return end if end > offset else None

    def count_from(self, offset: int) -> int:
        """Return the number of ranges that begin at `offset` or above."""
        self._merge()
        return len(self._ends) - int(self._ends.bisect_left(offset))

    def next_start(self, offset: int) -> int:
        """Return the start of the first range that begins at `offset` or above, or the end of the last range."""
        self._merge()
        at = self._ends.bisect_left(offset)
        return int(self._ends.peekitem(at)[0]) if at < len(self._ends) else self.end

    def count_in(self, start: int, end: int) -> int:
        """Return the number of settled offsets in [start, end); O(ranges)."""
        self._merge()
        ranges = ((0, self._watermark), *self._ends.items())
        return sum(max(0, min(end, last) - max(start, first)) for first, last in ranges)

    def cut(self, end: int) -> None:
        """Forget everything from `end` up, because those offsets will hold other messages."""
        self._merge()
        self._watermark = min(self._watermark, end)
        ends = self._ends
        while ends and ends.peekitem(-1)[1] > end:
            start, _ = ends.popitem()
            if start < end:
                ends[start] = end

    def _merge(self) -> None:
        if not self.collected:
            return
        collected = self.collected
        start = end = -1
        for next_start in sorted(collected):
            if next_start != end:
                if start >= 0:
                    self._add(start, end)
                start = next_start
            end = collected[next_start]
        self._add(start, end)
        collected.clear()

    def _add(self, start: int, end: int) -> None:
        ends = self._ends
        if start <= self._watermark:
            end = self._absorb(0, end)
            self._watermark = max(self._watermark, end)
            return
        after = ends.bisect_right(start)
        if after:
            before, before_end = ends.peekitem(after - 1)
            if before_end >= start:
                start, end = before, max(before_end, end)
        end = self._absorb(after, end)
        if ends is self.EMPTY:
            self._ends = SortedDict({start: end})
        else:
            ends[start] = end

    def _absorb(self, at: int, end: int) -> int:
        """Remove the ranges from index `at` on that begin at or below `end`; return the end of all together."""
        ends = self._ends
        while at < len(ends):
            start, absorbed_end = ends.peekitem(at)
            if start > end:
                break
            end = max(end, absorbed_end)
            ends.popitem(at)
        return end
