"""Retries of failed messages: exponential backoff, and the schedule of due attempts.

Storm's KafkaSpoutRetryExponentialBackoff orders its schedule by (time, identity hash), so a collision loses a message,
and it searches the whole schedule to remove an entry. Here a heap holds (due, offset, ticket), and stale entries are
skipped when they reach the top. A failure costs O(log n) and entries need no removal.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

_SPREAD = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: spreads neighbouring offsets far apart (Knuth, 6.4)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """delay(n) = min(max_ms, initial_ms * multiplier**(n - 1)) after the n-th failure of a message.

    `jitter` shortens each delay by up to that share, so that messages that failed in one outage do not all return at
    the same moment. It is computed from the offset, because a core uses no randomness: the same offset has the same
    delay.
    """

    initial_ms: int = 100
    multiplier: float = 2.0
    max_ms: int = 10_000
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if self.initial_ms < 0 or self.max_ms < self.initial_ms:
            raise ValueError(f"retry delays need 0 <= initial_ms <= max_ms, got {self.initial_ms} and {self.max_ms}")
        if self.multiplier < 1:
            raise ValueError(f"the retry multiplier must be at least 1, got {self.multiplier}")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"retry jitter is a share, 0 <= jitter < 1, got {self.jitter}")

    def delay_ms(self, failures: int, offset: int = 0) -> int:
        """Return the milliseconds from the `failures`-th failure of the message at `offset` to its next attempt."""
        try:
            delay = min(self.max_ms, self.initial_ms * self.multiplier ** (failures - 1))
        except OverflowError:
            delay = self.max_ms
        if self.jitter:
            delay -= delay * self.jitter * ((offset * _SPREAD) % 2**64) / 2**64
        return int(delay)


class RetrySchedule:
    """Failed offsets by due time, and those that are parked.

    A pair (offset, ticket) is current while `is_current` returns True for it.
    """

    def __init__(self, is_current: Callable[[int, int], bool]) -> None:
        self.earliest_ms: float = inf  # nothing is due before; infinity if nothing is scheduled
        self._heap: list[tuple[int, int, int]] = []
        self._parked: dict[int, int] = {}  # tickets by offset: these wait until they are released
        self._is_current = is_current

    def add(self, due_ms: int, offset: int, ticket: int) -> None:
        heappush(self._heap, (due_ms, offset, ticket))
        self.earliest_ms = self._heap[0][0]

    def park(self, offset: int, ticket: int) -> bool:
        """Let a scheduled offset wait until `release`, whatever its time. Return False if the pair is not current."""
        is_current = self._is_current(offset, ticket)
        if is_current:
            self._parked[offset] = ticket
        return is_current

    def release(self, offset: int, ticket: int, due_ms: int) -> bool:
        """Schedule a parked offset. Return False if it is not parked, or not current."""
        is_parked = self._parked.get(offset) == ticket
        if is_parked:
            del self._parked[offset]
            self.add(due_ms, offset, ticket)
        return is_parked and self._is_current(offset, ticket)

    def pop_due(self, now_ms: int) -> int | None:
        """Remove and return the offset that has been due longest (the least of equals), or None."""
        due = self.next_due_ms()
        if due is None or due > now_ms:
            return None
        _, offset, _ = heappop(self._heap)
        self.earliest_ms = self._heap[0][0] if self._heap else inf
        return offset

    def next_due_ms(self) -> int | None:
        heap = self._heap
        while heap and (not self._is_current(heap[0][1], heap[0][2]) or self._parked.get(heap[0][1]) == heap[0][2]):
            heappop(heap)
        self.earliest_ms = heap[0][0] if heap else inf
        return heap[0][0] if heap else None

    def current(self) -> set[int]:
        """Return every scheduled and parked offset; O(n), for checks."""
        scheduled = [(offset, ticket) for _, offset, ticket in self._heap] + list(self._parked.items())
        return {offset for offset, ticket in scheduled if self._is_current(offset, ticket)}
