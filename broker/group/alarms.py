"""The timers of all groups on one timing wheel: sessions, rebalances, and ids of members that have yet to join.

The clocks of several coordinators may share a wheel, so that the time for the next deadline and for a tick does not
depend on their number.
"""

from collections.abc import Callable

from broker.now import Now
from broker.waiting.timing_wheel import Timer, TimingWheel


class Alarm:
    """A timer that runs its action once at its deadline, unless it is set again or cleared before."""

    __slots__ = ("clock", "_action", "_timer", "deadline_ms")

    def __init__(self, clock: "AlarmClock", action: Callable[[Now], None]) -> None:
        self.clock = clock
        self._action = action
        self._timer: Timer[Alarm] | None = None
        self.deadline_ms: int | None = None

    def set(self, deadline_ms: int) -> None:
        """Ring at `deadline_ms` of the monotonic clock instead of at the former deadline."""
        self.clear()
        self.deadline_ms = deadline_ms
        self._timer = self.clock.wheel.add(deadline_ms, self)

    def clear(self) -> None:
        self.deadline_ms = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def ring(self, now: Now) -> None:
        """Run the action if the alarm is still due: an alarm that rang just before may have moved or cleared it."""
        if self.deadline_ms is not None and self.deadline_ms <= now.ms and not self.clock.is_stopped:
            self.clear()
            self._action(now)


class AlarmClock:
    """All alarms of one partition's coordinator. `wheel` is given if coordinators share one.

    Times are in ms of the engine's monotonic clock.
    """

    def __init__(self, start_ms: int = 0, wheel: TimingWheel[Alarm] | None = None, partition: int = 0) -> None:
        self.wheel: TimingWheel[Alarm] = TimingWheel(start_ms=start_ms) if wheel is None else wheel
        self.partition = partition
        self.is_stopped = False
        """True if the alarms of this clock no longer ring."""

    def alarm(self, action: Callable[[Now], None]) -> Alarm:
        return Alarm(self, action)

    def tick(self, now: Now) -> None:
        """Ring the alarms of the wheel that are due."""
        ring_due(self.wheel, now)

    def next_deadline_ms(self) -> int | None:
        return self.wheel.next_deadline_ms()


def ring_due(wheel: TimingWheel[Alarm], now: Now) -> list[int]:
    """Ring the alarms that are due. Return the partitions whose alarms rang, each once."""
    partitions: dict[int, None] = {}
    for alarm in wheel.advance(now.ms):
        alarm.ring(now)
        partitions[alarm.clock.partition] = None
    return list(partitions)
