"""The layout of a broker's ids, as much of it as names their times."""

from typing import NamedTuple

ID_BITS = 63


class IdClock(NamedTuple):
    """The epoch in Unix ms, and the bits of an id that count ms since then; by default those of idgen.layout.Layout."""

    epoch_ms: int = 1288834974657
    time_bits: int = 41

    @property
    def shift(self) -> int:
        """Return the number of bits below the time."""
        return ID_BITS - self.time_bits
