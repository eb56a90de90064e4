"""The schedule of the cleaner: one log at a time, the dirtiest first.

    walk     look at all compacted logs, a few at a time; note those that are dirty enough
    passes   clean the noted logs, the dirtiest first; then walk again, and rest if the walk notes none

If a log only waits for the checkpoint to cover more of it, the checkpoint is written first and another walk follows.

A pass is a `CleanLog`, which a thread runs slice by slice. Between two slices, the reactor thread puts a written
segment into its place; readers keep the segments that they hold. With log.cleaner.io.max.bytes.per.second, a pause
follows each slice.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from broker.log import log_reader
from broker.log.compaction.cleaner import Cleaned, CleanLog
from broker.log.compaction.cleaner_plan import plan, waits_for_checkpoint
from broker.log.compaction.swap import Swap
from broker.log.deletions import Deletions
from broker.log.log_walk import LogWalk
from broker.log.partition_log import PartitionLog
from broker.log.storage.port import Storage, StorageError
from broker.now import Now
from broker.settings.config import BrokerConfig
from broker.wire.errors import ApiError


@dataclass(slots=True)
class CleanerFigures:
    """Totals of the finished passes since the start."""

    passes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_written: int = 0
    poison_batches: int = 0
    """Batches whose records cannot be decoded, and which are therefore kept."""
    last_pass_ms: int = 0
    """Duration of the last pass."""
    last_ended_ms: int = 0
    """End of the last pass, by the wall clock; 0 before the first pass."""
    max_dirty_ratio: float = 0.0
    """Dirty ratio of the dirtiest log in the last complete walk."""


class Cleaning:
    """The cleaner's schedule for all logs of a broker."""

    def __init__(
        self, storage: Storage, config: BrokerConfig, deletions: Deletions, report: Callable[[str], None]
    ) -> None:
        self._storage = storage
        self.config = config
        self.figures = CleanerFigures()
        self._deletions = deletions
        self._report = report
        self._next_ms: int | None = None
        self._walk = LogWalk()
        self._max_dirty_ratio = 0.0
        """Maximum over the logs that the current walk has looked at."""
        self._dirty: list[tuple[float, PartitionLog]] = []
        """Logs to clean, with their dirty ratios."""
        self._pass: CleanLog | None = None
        self._is_out = False
        """True while a thread runs a slice of the pass."""
        self._is_back = False
        self._began_ms = self._slice_ms = self._bytes_before = 0
        """Start of the pass, start of its last slice, and the bytes the pass had moved before that slice."""
        self._failed: dict[PartitionLog, str] = {}
        """Logs whose last pass failed with an error that may be temporary, and the error that was reported."""
        self._halfway: dict[PartitionLog, Swap] = {}
        """Logs with a swap that stopped halfway: some files have their new names, some do not."""
        self._swap_ms = 0
        self._resting: set[PartitionLog] = set()
        """Logs whose last pass failed. They wait until every other log has had its turn."""
        self._uncovered: list[PartitionLog] = []
        """Logs that need a newer checkpoint before more of them can be cleaned, as found by the walk."""
        self._to_cover: set[PartitionLog] = set()
        """Logs that the checkpoint was asked to cover in this rest. The walk that follows does not ask again until the
        next rest, because a fast-growing log would otherwise cause one checkpoint after the other."""
        self._walks_again = False

    def next_deadline_ms(self, now_ms: int) -> int | None:
        if not self.config.log_cleaner_enable or self._is_out:
            return None
        if self._next_ms is None:
            self._next_ms = now_ms + self.config.log_cleaner_backoff_ms
        return now_ms if self._is_back else self._next_ms

    def back(self, work: CleanLog, error: Exception | None = None) -> None:
        """Take back a slice from its thread; `tick` handles its outcome."""
        work.error = work.error or error
        self._is_out, self._is_back = False, True

    def tick(self, logs: Iterable[PartitionLog], now: Now) -> list[CleanLog]:
        """Handle the last slice, and return the slice that a thread must run now: at most one."""
        deadline_ms = self.next_deadline_ms(now.ms)
        if deadline_ms is None or deadline_ms > now.ms:
            return []
        self._go_on_with_swaps(now)
        if self._is_back and self._pass is not None:
            self._is_back = False
            if not self._goes_on(self._pass, now):
                self._ended(self._pass, now)
            elif (pause_ms := self._pause_ms(self._pass, now.ms)) > 0:
                self._next_ms = now.ms + pause_ms
                return []
        if self._pass is None:
            self._pass = self._next_pass(logs, now)
        return [] if self._pass is None else [self._out(self._pass, now.ms)]

    def _out(self, work: CleanLog, now_ms: int) -> CleanLog:
        self._is_out, self._slice_ms, self._bytes_before = True, now_ms, work.moved.bytes
        return work

    def _pause_ms(self, work: CleanLog, now_ms: int) -> int:
        """Return the pause after a slice, so that the average of bytes read and written meets the configured rate."""
        took_ms = (work.moved.bytes - self._bytes_before) * 1000 / self.config.log_cleaner_io_max_bytes_per_second
        return int(took_ms) - (now_ms - self._slice_ms)

    def take_uncovered(self) -> list[PartitionLog]:
        """Return the logs that the checkpoint must cover before more of them can be cleaned; at most once per rest."""
        if not self._uncovered or self._walk.is_on or self._pass is not None:
            return []
        uncovered, self._uncovered = self._uncovered, []
        self._to_cover = set(uncovered)
        return uncovered

    def covered(self, logs: Collection[PartitionLog]) -> None:
        """Note that the checkpoint on the disk covers these logs. Walk again if one of them waited for it."""
        if not self._to_cover.isdisjoint(logs):
            self._to_cover.clear()
            if self._pass is None:
                self._walks_again, self._next_ms = True, 0

    # --- choice of the log ---------------------------------------------------------------------------------------

    def _next_pass(self, logs: Iterable[PartitionLog], now: Now) -> CleanLog | None:
        if not self._walk.is_on:
            while self._dirty:
                if (work := self._begin(self._dirty.pop()[1], now)) is not None:
                    return work
            self._max_dirty_ratio = 0.0
            self._uncovered.clear()
            self._walk.begin((log for log in logs if log.config.compacts), now.ms)
        self._note_dirty(self._walk.due(now.ms), now.wall_ms)
        if self._walk.is_on:
            self._next_ms = self._walk.next_deadline_ms()
            return None
        self.figures.max_dirty_ratio = self._max_dirty_ratio
        if self._dirty:
            self._dirty.sort(key=lambda dirty: dirty[0])
            return self._next_pass(logs, now)
        self._resting.clear()
        if self._walks_again:
            self._uncovered.clear()
        self._walks_again = False
        self._next_ms = now.ms + self.config.log_cleaner_backoff_ms
        return None

    def _note_dirty(self, logs: list[PartitionLog], wall_ms: int) -> None:
        for log in logs:
            made = plan(log, wall_ms)
            if made is not None:
                self._max_dirty_ratio = max(self._max_dirty_ratio, made.dirty_ratio)
                if made.is_due and log not in self._resting:
                    self._dirty.append((made.dirty_ratio, log))
            if waits_for_checkpoint(log, made, wall_ms):
                self._uncovered.append(log)

    def _begin(self, log: PartitionLog, now: Now) -> CleanLog | None:
        """Return a new pass over a log, None if nothing needs cleaning now."""
        made = plan(log, now.wall_ms)
        if made is None or not made.is_due:
            return None
        try:
            aborted = log_reader.aborted_transactions(log, made.segments[0].base_offset, made.end)
        except ApiError as error:
            self._uncleanable(log, str(error))
            return None
        self._began_ms = now.ms
        buffer_bytes = self.config.log_cleaner_dedupe_buffer_size
        last_records = log.producers.last_records(log.high_watermark)
        return CleanLog(made, self._storage, buffer_bytes, now.wall_ms, last_records, aborted)

    # --- outcome of a slice --------------------------------------------------------------------------------------

    def _ended(self, work: CleanLog, now: Now) -> None:
        self._pass = None
        figures, moved = self.figures, work.moved
        figures.passes += 1
        figures.bytes_read += moved.bytes_read
        figures.bytes_written += moved.bytes_written
        figures.records_read += moved.records_read
        figures.records_written += moved.records_written
        figures.last_pass_ms, figures.last_ended_ms = now.ms - self._began_ms, now.wall_ms

    def _goes_on(self, work: CleanLog, now: Now) -> bool:
        """Handle the outcome of a slice. Return False if the pass is over."""
        log = work.log
        if work.error is not None:
            self._failed_with(work, work.error)
            return False
        cleaned = work.cleaned
        if cleaned is not None and not self._swap(cleaned, log, now):
            if not self.is_halfway(log):
                work.discard()
            return False
        if work.finished:
            log.cleaned_offset = work.end_offset
            self._tell_poison(work)
            self._failed.pop(log, None)
        return not work.finished

    def _tell_poison(self, work: CleanLog) -> None:
        self.figures.poison_batches += work.poison_batches
        for named in work.poison:
            self._report(f"partition {work.log.name}: the cleaner keeps what it cannot decode, {named}")
        if unnamed := work.poison_batches - len(work.poison):
            self._report(f"partition {work.log.name}: the cleaner keeps {unnamed} more batches that it cannot decode")

    def _swap(self, cleaned: Cleaned, log: PartitionLog, now: Now) -> bool:
        """Put a cleaned segment into the log. Return False if the log was deleted or retention took an old segment
        meanwhile, or if a rename failed."""
        if log.offline is not None or not set(cleaned.old) <= set(log.segments.all):
            return False
        swap = Swap(self._storage, cleaned.segment, cleaned.old)
        if self._swapped(swap, log, now):
            return True
        self._halfway[log] = swap
        self._swap_ms = now.ms + self.config.log_cleaner_backoff_ms
        return False

    def _swapped(self, swap: Swap, log: PartitionLog, now: Now) -> bool:
        try:
            swap.go_on()
        except StorageError as error:
            if log.uncleanable is None:
                self._uncleanable(log, f"{error}; what takes a segment's place is half there, and is gone on with")
            return False
        self._deletions.retired(log, tuple(swap.retired), now.ms)
        log.segments.replace(swap.old, swap.cleaned)
        return True

    def give_up(self, log: PartitionLog) -> bool:
        """Give up the pass over a log that is offline. Return False while a thread runs a slice of it.

        If a swap is halfway, the caller completes it (broker.log.compaction.swap).
        """
        if self._pass is not None and self._pass.log is log:
            if self._is_out:
                return False
            self._pass.discard()
            self._pass, self._is_back = None, False
        self._halfway.pop(log, None)
        return True

    def is_halfway(self, log: PartitionLog) -> bool:
        """Return True while a swap of the log is incomplete. Until it is complete, no segment may be dropped."""
        return log in self._halfway

    def _go_on_with_swaps(self, now: Now) -> None:
        if not self._halfway or now.ms < self._swap_ms:
            return
        self._swap_ms = now.ms + self.config.log_cleaner_backoff_ms
        for log, swap in list(self._halfway.items()):
            if log.offline is not None:  # deleted, or left to the next start
                del self._halfway[log]
            elif self._swapped(swap, log, now):
                del self._halfway[log]
                log.uncleanable = None
                self._report(f"partition {log.name} is cleaned again")

    def _failed_with(self, work: CleanLog, error: Exception) -> None:
        log = work.log
        if log.offline is not None or work.plan.segments[0].base_offset < log.segments.all[0].base_offset:
            return  # retention dropped a segment before the cleaner read it
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
