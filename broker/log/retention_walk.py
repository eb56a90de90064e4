"""The walk over all logs that drops their expired segments, every `log.retention.check.interval.ms` (as in Kafka), and
more often while the disk is full."""

from collections.abc import Callable, Iterable

from broker.log import retention
from broker.log.deletions import Deletions
from broker.log.log_walk import LogWalk
from broker.log.partition_log import PartitionLog
from broker.log.segment import Segment
from broker.log.storage import reserve
from broker.log.storage.port import Storage, StorageError
from broker.now import Now
from broker.settings.config import BrokerConfig

FIRST_RETENTION_MS = 30_000  # after a start, as in Kafka, so that segments that expired meanwhile are dropped soon
FULL_RETENTION_MS = 10_000  # between two walks while the disk is full, because the operator waits for them


class RetentionWalk:
    """The retention of a broker's logs. `is_busy` says that a log's segments are being replaced."""

    def __init__(
        self,
        storage: Storage,
        deletions: Deletions,
        is_busy: Callable[[PartitionLog], bool],
        report: Callable[[str], None],
    ) -> None:
        self._storage = storage
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

    def tick(
        self, logs: Iterable[PartitionLog], now: Now, config: BrokerConfig, *, hurries: bool
    ) -> list[PartitionLog]:
        """Begin a walk if it is due, and drop expired segments of a slice of logs. Return the logs that begin later.

        With `hurries` the next walk begins after FULL_RETENTION_MS at most.
        """
        if self._next_ms is not None and now.ms >= self._next_ms:
            self._next_ms = now.ms + config.log_retention_check_interval_ms
            self._walk.begin(logs, now.ms)
        if self._next_ms is not None and hurries:
            self._next_ms = min(self._next_ms, now.ms + FULL_RETENTION_MS)
        return [log for log in self._walk.due(now.ms) if self.apply(log, now)]

    def apply(self, log: PartitionLog, now: Now) -> bool:
        """Drop the log's expired segments. Return True if its start has risen."""
        number = retention.expired(
            log.segments.all, log.segments.size, log.config, log.log_start_offset, log.high_watermark, now.wall_ms
        )
        if not number or log.offline is not None or self._is_busy(log):
            return False
        try:
            self._deletions.dropped(log, self._drop(log, number), now.ms)
        except StorageError as error:
            self._report(f"partition {log.name}: old segments stay for now: {error}")
            return False
        return True

    def _drop(self, log: PartitionLog, number: int) -> tuple[Segment, ...]:
        """Drop the oldest segments of a log. On a full disk, a new segment in their place may use the reserve."""
        return reserve.write_with_reserve(self._storage, lambda: log.drop_segments(number))
