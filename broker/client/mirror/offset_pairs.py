"""Pairs of offsets of a source's partition and of its copy, for the translation of group offsets.

A pair (source, target) says: all records below `source` have their copies below `target`, and no other has. A group at
`source` that continues at `target` misses no record. Between two pairs the earlier one counts, as with MirrorMaker 2:
the group gets some records again.

There are at most PAIRS_MAX pairs. Those that are dropped lie between two whose distance is no more than that from the
later one to the newest pair. So a group reads at most as many records again as it was behind, or a batch.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

PAIRS_MAX = 64


class OffsetPair(NamedTuple):
    """An offset of the source, and the offset of the target at which a group of the source continues."""

    source: int
    target: int


class OffsetPairs:
    """The pairs of one partition, by rising offsets."""

    def __init__(self, pairs: Iterable[OffsetPair] = ()) -> None:
        self._pairs: list[OffsetPair] = []
        for pair in pairs:
            self.add(pair)

    def __iter__(self) -> Iterator[OffsetPair]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def add(self, pair: OffsetPair) -> None:
        """Add a pair. A source's offset that is known already changes nothing, because its records were copied twice.

        If the target's offset is no later than the newest one, the target's log was made anew: the old pairs go.
        """
        newest = self._pairs[-1] if self._pairs else None
        if newest is not None and pair.target < newest.target:
            self._pairs.clear()
        elif newest is not None and pair.source <= newest.source:
            return
        self._pairs.append(pair)
        if len(self._pairs) > PAIRS_MAX:
            self._thin_out()

    def translate(self, source: int) -> int | None:
        """Return the target's offset for a group at `source`, None if it stands before all pairs."""
        index = bisect_right(self._pairs, source, key=lambda pair: pair.source)
        return self._pairs[index - 1].target if index else None

    def clear(self) -> None:
        """Drop all pairs, because the source's log was made anew."""
        self._pairs.clear()

    def _thin_out(self) -> None:
        """Drop pairs; those near the end of the log stay."""
        newest = self._pairs[-1].source
        kept = [self._pairs[-1]]  # the later pairs come first
        for index in range(len(self._pairs) - 2, 0, -1):
            later = kept[-1].source
            if later - self._pairs[index - 1].source > newest - later:
                kept.append(self._pairs[index])
        kept.append(self._pairs[0])
        self._pairs = kept[::-1][-PAIRS_MAX:]
