"""SHELL (clocks): the id clock, which never steps back.

Its value is the larger of two: the wall clock, and its last value plus the time elapsed since, on a clock that counts
suspend. So after the wall clock is set back, the id clock repeats no value and does not stop; it runs `skew_ms` ahead
until the wall clock has caught up. The wall clock is read at most once per millisecond, because a read costs half as
much as an id; a step shows at the next read. (Linux: CLOCK_BOOTTIME; macOS: CLOCK_MONOTONIC counts sleep there.)
"""

import time
from collections.abc import Callable
from functools import partial

_STEADY_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_NS_PER_MS = 1_000_000

_steady_ns = partial(time.clock_gettime_ns, _STEADY_CLOCK)  # read for each id; a partial is cheaper than a function


def steady_ms() -> int:
    """Return the time in ms on the clock that counts suspend; its start is arbitrary."""
    return _steady_ns() // _NS_PER_MS


class IdClock:
    """A clock whose now_ms() never falls. Not thread-safe: use one thread or a lock. Both source clocks count ns."""

    __slots__ = ("steady_ns", "_wall_ns", "_offset_ns", "_skew_ns", "_ms", "_end_ns")

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns, steady_ns: Callable[[], int] = _steady_ns) -> None:
        self._wall_ns = wall_ns
        self.steady_ns = steady_ns
        self._offset_ns = wall_ns() - steady_ns()  # the largest offset seen; it only rises, so the clock only rises
        self._skew_ns = 0
        self._ms = self._end_ns = 0  # the millisecond returned last, and its end

    def now_ms(self) -> int:
        """Return Unix time in ms, never below an earlier value. Reads the wall clock at most once per millisecond."""
        if self.steady_ns() + self._offset_ns < self._end_ns:
            return self._ms
        steady = self.steady_ns()
        skew = self._offset_ns - (self._wall_ns() - steady)
        if skew < 0:
            self._offset_ns -= skew
            skew = 0
        self._skew_ns = skew
        self._ms = (steady + self._offset_ns) // _NS_PER_MS
        self._end_ns = (self._ms + 1) * _NS_PER_MS
        return self._ms

    @property
    def next_ms_ns(self) -> int:
        """The time on the steady source, in ns, until which now_ms() returns its last value without a read."""
        return self._end_ns - self._offset_ns

    @property
    def skew_ms(self) -> int:
        """How far the last value was ahead of the wall clock; 0 if they agreed."""
        return self._skew_ns // _NS_PER_MS
