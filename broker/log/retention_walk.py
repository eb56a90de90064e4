"""The walk over all logs that drops their expired segments, every `log.retention.check.interval.ms` (as in Kafka)."""

from collections.abc import Callable, Iterable

from broker.log import retention
from broker.log.deletions import Deletions
from broker.log.log_walk import LogWalk
from broker.log.partition_log import PartitionLog
from broker.log.storage.port import StorageError
from broker.now import Now

FIRST_RETENTION_MS = 30_000  # after a start, as in Kafka, so that segments that expired meanwhile are dropped soon


class RetentionWalk:
    """The retention of a broker's logs. `is_busy` says that a log's segments are being replaced."""

    def __init__(
        self, deletions: Deletions, is_busy: Callable[[PartitionLog], bool], report: Callable[[str], None]
    ) -> None:
        self._deletions = deletions
        self._is_busy = is_busy
        self._report = report
        self._walk = LogWalk()
        self._next_ms: int | None = None
        """When the next walk begins."""

    def next_deadline_ms(self, now_ms: int, interval_ms: int) -> int:
        if self._next_ms is None:
            self._next_ms = now_ms + min(FIRST_RETENTION_MS, interval_ms)
        slice_ms = self._walk.next_deadline_ms()
        return self._next_ms if slice_ms is None else min(slice_ms, self._next_ms)

    def tick(self, logs: Iterable[PartitionLog], now: Now, interval_ms: int) -> list[PartitionLog]:
        """Begin a walk if it is due, and drop expired segments of a slice of logs. Return the logs that begin later."""
        if self._next_ms is not None and now.ms >= self._next_ms:
            self._next_ms = now.ms + interval_ms
            self._walk.begin(logs, now.ms)
        return [log for log in self._walk.due(now.ms) if self.apply(log, now)]

    def apply(self, log: PartitionLog, now: Now) -> bool:
        """Drop the log's expired segments. Return True if its start has risen."""
        number = retention.expired(
            log.segments.all, log.segments.size, log.config, log.log_start_offset, log.high_watermark, now.wall_ms
        )
        if not number or log.offline is not None or self._is_busy(log):
            return False
        try:
            self._deletions.dropped(log, log.drop_segments(number), now.ms)
        except StorageError as error:
            self._report(f"partition {log.name}: old segments stay for now: {error}")
            return False
        return True
