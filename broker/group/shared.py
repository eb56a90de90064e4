"""What all group coordinators of a broker share, because its limits are those of the broker.

Each coordinator has the groups of one partition of `__consumer_offsets`. They share one wheel of timers, one limit on
the number of groups, and one pace of expiry.
"""

from broker.group.alarms import Alarm
from broker.now import Now
from broker.waiting.timing_wheel import TimingWheel

# Constants and not settings, because 500 tombstones take about four milliseconds on any disk, and no client waits.
EXPIRATIONS_PER_STEP = 500  # offsets and groups per step, including those that are only checked
STEP_EVERY_MS = 10  # leaves most of the time for requests


class StepBudget:
    """The offsets and groups that may still be expired in this step."""

    def __init__(self) -> None:
        self._left = 0
        self.next_ms = 0
        """When the next step begins, on the monotonic clock."""

    def left(self, now: Now) -> int:
        if now.ms >= self.next_ms:
            self._left = EXPIRATIONS_PER_STEP
            self.next_ms = now.ms + STEP_EVERY_MS
        return self._left

    def use(self, number: int) -> None:
        self._left -= number


class Shared:
    """The shared parts. `now_ms` is the monotonic clock at start."""

    def __init__(self, now_ms: int = 0) -> None:
        self.wheel: TimingWheel[Alarm] = TimingWheel(start_ms=now_ms)
        self.groups = 0
        """The number of groups (`flakelog.groups.max`)."""
        self.groups_made = 0
        """Counts the groups that were made or loaded, so that each has its number in this order."""
        self.expirations = StepBudget()
