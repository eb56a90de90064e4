"""SHELL (clocks): the id clock, which never steps back.

Its value is the larger of the wall clock and its own last value plus the time elapsed since on a clock that counts
suspend. So a wall clock set back repeats nothing and stops nothing; the id clock then runs ahead of it by `skew_ms`
until the wall has caught up. The wall clock is looked at once in a millisecond, as a look is half the price of an id; a
step is met with the next one. (Linux: CLOCK_BOOTTIME; macOS: CLOCK_MONOTONIC counts sleep there.)
"""

import time
from collections.abc import Callable
from functools import partial

_STEADY_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_NS_PER_MS = 1_000_000

_steady_ns = partial(time.clock_gettime_ns, _STEADY_CLOCK)  # on the path of each id, and cheaper than a function


class IdClock:
    """now_ms() never falls. Not thread-safe: one thread, or a lock. Clocks are in ns and can be handed in."""

    __slots__ = ("_wall_ns", "_steady_ns", "_offset_ns", "_skew_ns", "_ms", "_end_ns")

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns, steady_ns: Callable[[], int] = _steady_ns) -> None:
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
        self._offset_ns = wall_ns() - steady_ns()  # the largest offset seen; as it only rises, so does the clock
        self._skew_ns = 0
        self._ms = self._end_ns = 0  # the millisecond told last, and where it ends

    def now_ms(self) -> int:
        """Unix time in ms, at least as large as any value before. The wall clock is looked at once in a millisecond."""
        if self._steady_ns() + self._offset_ns < self._end_ns:
            return self._ms
        steady = self._steady_ns()
        skew = self._offset_ns - (self._wall_ns() - steady)
        if skew < 0:
            self._offset_ns -= skew
            skew = 0
        self._skew_ns = skew
        self._ms = (steady + self._offset_ns) // _NS_PER_MS
        self._end_ns = (self._ms + 1) * _NS_PER_MS
        return self._ms

    @property
    def skew_ms(self) -> int:
        """How far the last value was ahead of the wall clock; 0 when they agreed."""
        return self._skew_ns // _NS_PER_MS
