"""A moment, which the engine passes to all code below it. Core code uses it instead of a clock."""

from typing import NamedTuple


class Now(NamedTuple):
    """A moment on two clocks, because values of the two must never be mistaken for each other.

    `ms`: milliseconds of a monotonic clock with an arbitrary start; for deadlines and timeouts, never written down.
    `wall_ms`: milliseconds since 1970 by the id clock; for timestamps that are stored or sent.
    """

    ms: int
    wall_ms: int
