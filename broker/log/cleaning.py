"""When the cleaner runs, and what follows from it: one log at a time, the dirtiest first.

A pass is a `CleanLog`, run in a thread slice by slice. Between two slices, in the engine's thread, a segment that was
written takes its place; readers hold what they had.
"""

from collections.abc import Callable, Iterable

from broker.config import BrokerConfig
from broker.log.cleaner import Cleaned, CleanLog
from broker.log.cleaner_plan import dirtiest
from broker.log.deletions import Deletions
from broker.log.partition_log import PartitionLog
from broker.log.storage import Storage, StorageError
from broker.log.swap import swap_in
from broker.now import Now
from broker.wire.errors import ApiError


class Cleaning:
    """Of all logs of a broker."""

    def __init__(
        self, storage: Storage, config: BrokerConfig, deletions: Deletions, report: Callable[[str], None]
    ) -> None:
        self._storage = storage
        self.config = config
        self._deletions = deletions
        self._report = report
        self._next_ms: int | None = None
        self._pass: CleanLog | None = None
        self._is_back = False
        self._failed: dict[PartitionLog, str] = {}
        """Logs whose last pass failed for a reason that may go, and were told of."""
        self._resting: set[PartitionLog] = set()
        """Those of them that wait until every other log has had its turn."""

    def next_deadline_ms(self, now_ms: int) -> int | None:
        if not self.config.log_cleaner_enable or (self._pass is not None and not self._is_back):
            return None
        if self._next_ms is None:
            self._next_ms = now_ms + self.config.log_cleaner_backoff_ms
        return now_ms if self._is_back else self._next_ms

    def back(self, work: CleanLog, error: Exception | None = None) -> None:
        """A slice has come back from its thread; `tick` looks at it."""
        work.error = work.error or error
        self._is_back = True

    def tick(self, logs: Iterable[PartitionLog], now: Now) -> list[CleanLog]:
        """What a thread is to run now: at most one."""
        deadline_ms = self.next_deadline_ms(now.ms)
        if deadline_ms is None or deadline_ms > now.ms:
            return []
        if self._is_back and self._pass is not None:
            self._is_back = False
            if self._goes_on(self._pass, now):
                return [self._pass]
        self._pass = self._next_pass(logs, now)
        return [self._pass] if self._pass is not None else []

    def _next_pass(self, logs: Iterable[PartitionLog], now: Now) -> CleanLog | None:
        plan = dirtiest((log for log in logs if log not in self._resting), now.wall_ms)
        if plan is None:
            self._resting.clear()
            self._next_ms = now.ms + self.config.log_cleaner_backoff_ms
            return None
        log, buffer_bytes = plan.log, self.config.log_cleaner_dedupe_buffer_size
        try:
            aborted = log.aborted_transactions(plan.segments[0].base_offset, plan.end)
        except ApiError as error:
            self._uncleanable(log, str(error))
            return None
        return CleanLog(plan, self._storage, buffer_bytes, now.wall_ms, log.producers.last_records(), aborted)

    def _goes_on(self, work: CleanLog, now: Now) -> bool:
        """Take what a slice brought; False where the pass is over."""
        log = work.log
        if work.error is not None:
            self._failed_with(work, work.error)
            return False
        cleaned = work.cleaned
        if cleaned is not None and not self._swap(cleaned, log, now):
            work.discard()
            return False
        if work.finished:
            log.cleaned_offset = work.end_offset
            self._failed.pop(log, None)
        return not work.finished

    def _swap(self, cleaned: Cleaned, log: PartitionLog, now: Now) -> bool:
        """False where the log has gone on without what was cleaned: it was deleted, or retention took a segment."""
        if log.offline is not None or not set(cleaned.old) <= set(log.segments):
            return False
        try:
            retired = swap_in(self._storage, cleaned.segment, cleaned.old)
        except StorageError as error:
            self._uncleanable(log, f"{error}; the next start finishes it")
            return False
        self._deletions.retired(log, retired, now.ms)
        log.replace_segments(cleaned.old, cleaned.segment)
        return True

    def _failed_with(self, work: CleanLog, error: Exception) -> None:
        log = work.log
        if log.offline is not None or work.plan.segments[0].base_offset < log.segments[0].base_offset:
            return  # retention took what was to be read
        if not isinstance(error, StorageError):
            self._uncleanable(log, str(error))
            return
        self._resting.add(log)
        if self._failed.get(log) != str(error):
            self._failed[log] = str(error)
            self._report(f"partition {log.name} could not be cleaned, and will be tried again: {error}")

    def _uncleanable(self, log: PartitionLog, reason: str) -> None:
        log.uncleanable = reason
        self._report(f"partition {log.name} is not cleaned any more, and keeps all its records: {reason}")
