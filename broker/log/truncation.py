"""The truncations of followers' logs: each gives the partition a new PartitionLog, so nobody reads a log that was cut.

    release     the old log goes offline and leaves the manager; its waiters are told
    prepare     once no sync, cleaner or removal is at its files: they are synced, the cut is found (threads)
    let go      once the journal's round is back: a new journal file, and a checkpoint with the lowered positions
    cut         the files are cut, and the log is opened anew (threads)
    register    the new log takes the partition

All logs of one call share the new journal file and the checkpoint. A step that a full disk fails is done again when the
disk has space. If a step fails for another reason, the partition is offline with it, and the next start opens the log
as it was before the cut or as it is after it.

Reads that threads have begun of the old log go on: they hold its files, and their answers are those of before. Checks
of its contents (broker.log.integrity) do not count for a log that is offline.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from broker.log.closed_segment import OpenSegments
from broker.log.compaction.cleaning import Cleaning
from broker.log.cut_log import CutJob, CutLog, LogCut, PrepareCut
from broker.log.deletions import Deletions
from broker.log.epochs_begun import EpochsBegun
from broker.log.io_jobs import SyncLog, WriteCheckpoint
from broker.log.partition_log import PartitionLog
from broker.log.storage.port import Storage, StorageError
from broker.log.sync_scheduler import IoJob, SyncScheduler
from broker.settings.config import TopicConfig
from broker.wire.errors import ApiError, ErrorCode

Key = tuple[str, int]
NO_LAST_IDS: Mapping[Key, int] = MappingProxyType({})
RETRY_MS = 1_000
"""The pause before a step is done again that a full disk has failed."""


class Truncated(NamedTuple):
    """The outcome for one partition: its new log, or None with the reason why it is offline."""

    topic: str
    partition: int
    log: PartitionLog | None
    reason: str = ""


class _Group:
    """The logs of one call, until their positions are in the checkpoint."""

    def __init__(self, cuts: Iterable[LogCut]) -> None:
        self.waiting = list(cuts)
        """Logs that a sync or the cleaner may still be at."""
        self.preparing: set[LogCut] = set()
        self.prepared: list[LogCut] = []


class Truncations:
    """The truncations of all logs. The manager calls `advance` before it takes jobs, and passes their outcomes back.

    `logs` and `offline` are the manager's registries of logs, and of reasons why partitions are offline.
    """

    def __init__(
        self,
        storage: Storage,
        syncs: SyncScheduler,
        cleaning: Cleaning,
        deletions: Deletions,
        epochs: EpochsBegun,
        open_segments: OpenSegments,
        logs: dict[Key, PartitionLog],
        offline: dict[Key, str],
        report: Callable[[str], None],
    ) -> None:
        self._storage = storage
        self._syncs = syncs
        self._cleaning = cleaning
        self._deletions = deletions
        self._epochs = epochs
        self._open_segments = open_segments
        self._logs = logs
        self._offline = offline
        self._report = report
        self._cuts: dict[Key, LogCut] = {}
        self._groups: list[_Group] = []
        self._lowered: dict[str, LogCut] = {}
        """Logs that are cut once the checkpoint with their positions is on the disk, by name."""
        self._jobs: deque[CutJob] = deque()
        self._running = 0
        self._postponed: dict[Key, CutJob | None] = {}
        """Truncations that wait for space on the disk, each with its next job; None for the checkpoint."""
        self._retry_ms: int | None = None
        self._done: list[Truncated] = []

    def __len__(self) -> int:
        return len(self._cuts)

    def check_whole(self, key: Key) -> None:
        """Raise ApiError NOT_LEADER_OR_FOLLOWER, on which clients retry, if a log is being truncated."""
        cut = self._cuts.get(key)
        if cut is not None:
            reason = f"{cut.log.name} is being truncated to offset {cut.offset}"
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, reason)

    # --- the steps -----------------------------------------------------------------------------------------------

    def begin(self, offsets: Mapping[PartitionLog, int], last_ids: Mapping[Key, int], *, anew: bool) -> None:
        """Release these logs and truncate each to its offset; `anew`: it begins there with nothing but the last id.

        Raise ApiError, and release none, if one of them is offline.
        """
        for log in offsets:
            log.check_online()
        cuts = []
        for log, offset in offsets.items():
            del self._logs[log.topic, log.partition]
            log.offline = f"it is being truncated to offset {offset}"
            self._deletions.forget(log)
            self._syncs.release(log)
            cut = LogCut(self._storage, log, offset, anew, log.config)
            cut.last_id = last_ids.get(cut.key, cut.last_id)
            self._cuts[cut.key] = cut
            cuts.append(cut)
        if cuts:
            self._groups.append(_Group(cuts))

    def advance(self) -> None:
        """Go on with every group that waits for a sync, the cleaner or the journal, and hand out jobs."""
        for group in list(self._groups):
            for cut in group.waiting:
                if not self._is_used(cut.log):
                    group.preparing.add(cut)
                    self._jobs.append(self._prepare(cut))
            group.waiting = [cut for cut in group.waiting if cut not in group.preparing]
            if not group.waiting and not group.preparing and self._let_go(group):
                self._groups.remove(group)
        while self._jobs and self._running < self._syncs.config.sync_threads:
            job = self._jobs.popleft()
            job.cut.is_running = True
            self._running += 1
            self._syncs.add_job(job)

    def tick(self, now_ms: int) -> None:
        """Do the steps again that a full disk has failed, after a pause."""
        if not self._postponed:
            return
        if self._retry_ms is None or self._syncs.disk.is_full:
            self._retry_ms = now_ms + RETRY_MS
        elif now_ms >= self._retry_ms:
            self._retry_ms = None
            self._go_on()

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` is due; None without a deadline."""
        return None if not self._postponed else self._retry_ms or 0

    def waits_for_space(self, key: Key) -> bool:
        """Return True if the next step of a truncation is done when the disk has space."""
        return key in self._postponed

    def _go_on(self) -> None:
        postponed, self._postponed = self._postponed, {}
        to_lower = []
        for key, job in postponed.items():
            cut = self._cuts[key]
            cut.error = None
            del self._offline[key]
            if job is None:
                self._lowered[cut.log.name] = cut
                to_lower.append(cut.log.name)
            else:
                self._jobs.append(job)
        if to_lower:
            self._syncs.checkpoint.lower_again(to_lower)

    def _is_used(self, log: PartitionLog) -> bool:
        is_busy = self._syncs.is_syncing(log) or self._deletions.is_removing(log)
        return is_busy or not self._cleaning.give_up(log)

    def _prepare(self, cut: LogCut) -> PrepareCut:
        log = cut.log
        cut.checkpointed = self._syncs.positions.get(log.name)
        files = tuple(file for segment in log.unflushed_segments() for file in segment.files)
        bases = tuple(log.segments.bases)
        log.segments.close_all()
        return PrepareCut(cut, files, bases)

    def _let_go(self, group: _Group) -> bool:
        """Have the journal and the checkpoint let go of a group's logs. Return False while the journal has a round."""
        ends = {cut.log: cut.end.position for cut in group.prepared if cut.end is not None}
        if ends and not self._syncs.let_go(ends):
            return False
        self._lowered |= {cut.log.name: cut for cut in group.prepared}
        return True

    # --- outcomes ------------------------------------------------------------------------------------------------

    def back(self, job: CutJob, error: Exception | None = None) -> None:
        """Take back a job."""
        self._running -= 1
        cut = job.cut
        cut.is_running = False
        cut.error = cut.error or error
        if cut.error is not None:
            self._syncs.disk.failed(cut.error)
        if isinstance(job, PrepareCut):
            self._prepared(cut, job)
        else:
            self._opened(cut, job)

    def _prepared(self, cut: LogCut, job: PrepareCut) -> None:
        group = next(group for group in self._groups if cut in group.preparing)
        if cut.error is not None and self._is_wanted(cut) and _is_full(cut.error):
            self._postpone(cut, job)
            return
        group.preparing.discard(cut)
        if not self._is_wanted(cut):
            return
        if cut.error is not None:
            self._failed(cut, f"{cut.error}")
        else:
            group.prepared.append(cut)

    def _postpone(self, cut: LogCut, job: CutJob | None) -> None:
        """Do a step again when the disk has space."""
        self._postponed[cut.key] = job
        self._offline[cut.key] = f"it is truncated to offset {cut.offset} when the disk has space"
        self._report(f"partition {cut.log.name} is offline: {self._offline[cut.key]}")

    def checkpointed(self, names: Iterable[str]) -> None:
        """Cut the logs whose lowered positions are on the disk now."""
        for cut in self._take_lowered(names):
            if cut.end is not None:
                self._jobs.append(CutLog(cut, cut.end, self._syncs.config))

    def sync_failed(self, job: IoJob, error: Exception) -> None:
        """Give up what a failed job makes impossible: a sync that ran at the release, or the lowered checkpoint."""
        if isinstance(job, WriteCheckpoint):
            for cut in self._take_lowered(job.lowered):
                if _is_full(error):
                    self._postpone(cut, None)
                else:
                    self._failed(cut, f"the checkpoint could not be written: {error}")
        if isinstance(job, SyncLog):
            for group in self._groups:
                for cut in [cut for cut in group.waiting if cut.log is job.log]:
                    group.waiting.remove(cut)
                    self._failed(cut, f"a sync failed: {error}")

    def _take_lowered(self, names: Iterable[str]) -> list[LogCut]:
        cuts = [self._lowered.pop(name, None) for name in names]
        return [cut for cut in cuts if cut is not None]

    def _is_wanted(self, cut: LogCut) -> bool:
        """Return False if the log was deleted meanwhile."""
        return self._cuts.get(cut.key) is cut

    def _opened(self, cut: LogCut, job: CutLog) -> None:
        log = cut.opened
        if not self._is_wanted(cut):
            if log is not None:
                log.deleted()
            return
        if cut.error is not None and _is_full(cut.error):
            self._postpone(cut, job)
            return
        if log is None or cut.error is not None:
            self._failed(cut, f"{cut.error}")
            return
        del self._cuts[cut.key]
        log.segments.join(self._open_segments)
        log.config, log.waiting_acks = cut.config, cut.config.waiting_acks
        self._logs[cut.key] = log
        self._syncs.add_log(log)
        self._epochs.drop(log.name)
        if log.unflushed:
            log.ask_sync(soon=True)  # what the last opening had on the disk counts again when this sync is back
        if cut.report is not None and (cut.report.bytes_cut or cut.report.segments_removed):  # more than ids
            self._report(cut.report.line(log))
        self._done.append(Truncated(*cut.key, log))

    def _failed(self, cut: LogCut, error: str) -> None:
        del self._cuts[cut.key]
        reason = f"its truncation to offset {cut.offset} failed: {error}"
        self._offline[cut.key] = cut.log.offline = reason
        self._report(f"partition {cut.log.name} is offline: {reason}")
        self._done.append(Truncated(*cut.key, None, reason))

    def take(self) -> list[Truncated]:
        """Return the outcomes since the last call."""
        done, self._done = self._done, []
        return done

    # --- changes meanwhile ---------------------------------------------------------------------------------------

    def forget(self, key: Key) -> LogCut | None:
        """Forget a log that is deleted. Return its truncation: its directory stays while a thread is at it."""
        cut = self._cuts.pop(key, None)
        if cut is None:
            return None
        self._lowered.pop(cut.log.name, None)
        self._postponed.pop(key, None)
        for group in self._groups:
            if cut in group.waiting:
                group.waiting.remove(cut)
            if cut in group.prepared:
                group.prepared.remove(cut)
            if not cut.is_running:
                group.preparing.discard(cut)
        self._jobs = deque(job for job in self._jobs if job.cut is not cut)
        return cut

    def configure(self, configs: Mapping[str, TopicConfig]) -> None:
        """Apply changed settings of topics, by topic name."""
        for cut in self._cuts.values():
            cut.config = configs.get(cut.log.topic, cut.config)


def _is_full(error: Exception) -> bool:
    return isinstance(error, StorageError) and error.full
