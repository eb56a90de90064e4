"""One moment, as the engine hands it to everything below: what a core uses instead of a clock."""

from typing import NamedTuple


class Now(NamedTuple):
    """One moment on two clocks, because one must never be mistaken for the other.

    `ms`: milliseconds of a monotonic clock with an arbitrary start; for deadlines and timeouts, never written down.
    `wall_ms`: milliseconds since 1970 by the id clock; for timestamps that are stored or sent.
    """

    ms: int
    wall_ms: int
