"""Where the last writes of a segment begin, so that readers who follow the log's end search no index.

A follower asks from the beginning of a write on. Under a bulk load it is some dozens of writes behind, because
producers send ahead of the answers.
"""

from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

LAST_WRITES = 32  # a segment keeps the places of at least this number, and of fewer than twice as many


class LastWrites(NamedTuple):
    """The first offset of each write, and the positions of its batches and of its ids.

    A thread may search while the reactor thread adds a write. So the arrays only become longer, `offsets` last, and
    `newest` returns other arrays. A number takes eight bytes, because each segment that is written to has them.
    """

    offsets: "array[int]"
    positions: "array[int]"
    ids_positions: "array[int]"

    @classmethod
    def none(cls) -> "LastWrites":
        return cls(array("q"), array("q"), array("q"))

    def newest(self) -> "LastWrites":
        """Return the newest LAST_WRITES writes alone."""
        return LastWrites(*[numbers[-LAST_WRITES:] for numbers in self])

    def whole_from(
        self, offset: int, max_bytes: int, end: int, ids_end: int
    ) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Return (begin, end) of whole writes with at most `max_bytes`, from the one that begins at `offset` on, and of
        their ids.

        Return None if none of these begins there, or if it is larger. `end` and `ids_end` are those of the files.
        """
        first = bisect_left(self.offsets, offset)
        if first == len(self.offsets) or self.offsets[first] != offset:
            return None
        start = self.positions[first]
        if end - start > max_bytes:
            following = bisect_right(self.positions, start + max_bytes) - 1
            if following == first:
                return None
            end, ids_end = self.positions[following], self.ids_positions[following]
        return (start, end), (self.ids_positions[first], ids_end)

    def has_position(self, position: int) -> bool:
        """Return True if one of these begins at a position of the log."""
        number = bisect_left(self.positions, position)
        return number < len(self.positions) and self.positions[number] == position
