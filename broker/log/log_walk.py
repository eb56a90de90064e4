"""An iteration over logs in slices, because there may be thousands; connections are served between two slices."""

from collections import deque
from collections.abc import Iterable

from broker.log.partition_log import PartitionLog

SLICE = 64  # logs; not a setting, as one takes some microseconds on any disk
SLICE_EVERY_MS = 10  # leaves most of the time for requests


class LogWalk:
    """A walk over logs in slices. Times are of the monotonic clock."""

    def __init__(self) -> None:
        self._logs_left: deque[PartitionLog] = deque()
        self._due_ms = 0

    @property
    def is_on(self) -> bool:
        return bool(self._logs_left)

    def begin(self, logs: Iterable[PartitionLog], now_ms: int) -> None:
        """Start a walk over these logs. Do nothing while one is running, so that frequent calls cannot prolong it."""
        if not self._logs_left:
            self._logs_left.extend(logs)
            self._due_ms = now_ms

    def due(self, now_ms: int) -> list[PartitionLog]:
        """Return the next slice if it is due, without logs that went offline or were deleted meanwhile."""
        if not self._logs_left or now_ms < self._due_ms:
            return []
        self._due_ms = now_ms + SLICE_EVERY_MS
        taken = [self._logs_left.popleft() for _ in range(min(SLICE, len(self._logs_left)))]
        return [log for log in taken if log.offline is None]

    def next_deadline_ms(self) -> int | None:
        return self._due_ms if self._logs_left else None
