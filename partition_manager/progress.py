"""Progress of a partition: a watermark, and the ranges settled above it."""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

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


class DoneRanges:
    """Ranges settled in an earlier run, at or above the reading position.

    Calls cost O(1) amortised because the position only ascends.
    """

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._ranges = deque(ranges)

    def __iter__(self) -> Iterator[Range]:
        return iter(self._ranges)

    def holds(self, offset: int) -> bool:
        """Return True if `offset` is done. Forget the ranges wholly below it."""
        ranges = self._ranges
        while ranges and ranges[0][1] <= offset:
            ranges.popleft()
        return bool(ranges) and ranges[0][0] <= offset

    def skip(self, offset: int) -> int:
        """Return the first offset at or above `offset` that is not done. Forget the ranges wholly below it."""
        return self._ranges.popleft()[1] if self.holds(offset) else offset

    def count_in(self, start: int, end: int) -> int:
        """Return the number of done offsets in [start, end)."""
        return sum(max(0, min(end, last) - max(start, first)) for first, last in self._ranges)

    def cut(self, end: int) -> None:
        """Forget everything from `end` up, because those offsets will hold other messages."""
        if self._ranges and self._ranges[-1][1] > end:
            self._ranges = deque((first, min(last, end)) for first, last in self._ranges if first < end)
