"""Going through logs a few at a time: there may be thousands, and between two slices everybody has a turn."""

from collections import deque
from collections.abc import Iterable

from broker.log.partition_log import PartitionLog

SLICE = 64  # logs, each of which is looked at in some microseconds, whatever the disk; so this is no setting
SLICE_EVERY_MS = 10  # so most of the time is left for requests


class LogWalk:
    """Times are the monotonic clock's."""

    def __init__(self) -> None:
        self._left: deque[PartitionLog] = deque()
        self._due_ms = 0

    @property
    def is_on(self) -> bool:
        return bool(self._left)

    def begin(self, logs: Iterable[PartitionLog], now_ms: int) -> None:
        """Nothing while it is on: its end must come, however often it is begun."""
        if not self._left:
            self._left.extend(logs)
            self._due_ms = now_ms

    def due(self, now_ms: int) -> list[PartitionLog]:
        """The next few, if it is time for them; without those that went offline, or were deleted, meanwhile."""
        if not self._left or now_ms < self._due_ms:
            return []
        self._due_ms = now_ms + SLICE_EVERY_MS
        taken = [self._left.popleft() for _ in range(min(SLICE, len(self._left)))]
        return [log for log in taken if log.offline is None]

    def next_deadline_ms(self) -> int | None:
        return self._due_ms if self._left else None
