"""The schedule of syncs: which log is synced next, and when the checkpoint is written.

    urgent queue         flush.messages, flush.ms, an answer that waits for the disk, a failed write that was undone
    background queue     a checkpoint round, a rolled segment, too many unsynced bytes or unsynced logs

`take` hands out jobs (broker.log.io_jobs), a worker thread runs each, and `synced` or `failed` takes its outcome.
Appends continue meanwhile; a sync covers the records that the log had when the sync was made. At most one sync per log
and at most `flakelog.sync.threads` syncs in all run at a time.

A checkpoint round syncs every log with something new, and then writes the checkpoint. Logs whose answers wait for the
disk share a journal (broker.log.journal); its rounds have a separate thread and are not queued behind other syncs.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from broker.log.checkpoint import LogPosition
from broker.log.checkpoint_writer import CheckpointWriter
from broker.log.compaction.cleaner import CleanLog
from broker.log.cut_log import CutJob
from broker.log.disk_watch import DiskWatch
from broker.log.epochs_begun import WriteEpochsBegun
from broker.log.io_jobs import (
    CutJournal,
    FillReserve,
    MetadataJob,
    NotJournaled,
    ReadJob,
    RemoveFiles,
    Sync,
    SyncJournal,
    SyncLog,
    WriteCheckpoint,
    WriteFile,
)
from broker.log.journal import Journal
from broker.log.partition_log import PartitionLog
from broker.log.storage.port import Storage
from broker.now import Now
from broker.settings.config import LONG_MAX, BrokerConfig
from broker.waiting.pending import Pending

UNSYNCED_LOGS_MAX = 1 << 27

IoJob: TypeAlias = (
    Sync | CutJob | WriteEpochsBegun | CleanLog | RemoveFiles | ReadJob | WriteFile | FillReserve | MetadataJob
)
"""A job that `SyncScheduler.take` hands out."""


class SyncScheduler:
    """The syncs of all logs of a broker, its journal and its checkpoint.

    The scheduler syncs the logs that were added and not forgotten. `report` takes lines for the operator. At most about
    `max_unsynced_logs` logs have records that no sync has begun for, because their files cannot be closed.
    """

    def __init__(
        self,
        storage: Storage,
        config: BrokerConfig,
        report: Callable[[str], None],
        pending: Pending,
        max_unsynced_logs: int = UNSYNCED_LOGS_MAX,
    ) -> None:
        self.config = config
        self._pending = pending
        self._max_unsynced_logs = max_unsynced_logs
        self._unsynced: OrderedDict[PartitionLog, None] = OrderedDict()
        """Logs with records that no sync has begun for, those first that have waited longest."""
        self.disk = DiskWatch(storage, config, report, pending, self.add_job, self._lose_all)
        self._storage = storage
        self._report = report
        self._logs: dict[PartitionLog, None] = {}
        self._journal = Journal(storage, config.journal_max_bytes, pending)
        self._jobs: list[IoJob] = []
        """Jobs that `take` hands out next, in this order."""
        self._syncing: set[PartitionLog] = set()
        """Logs whose sync a thread runs."""
        self._urgent: dict[PartitionLog, None] = {}
        """Logs to sync soon, because an answer or a setting requires it. A dict, because its keys are ordered."""
        self._background: dict[PartitionLog, None] = {}
        """Logs to sync without urgency."""
        self._background_next = False
        self._lost: list[PartitionLog] = []
        """Logs that went offline. Requests that wait for them are still to be answered."""
        self._flush_due: list[tuple[int, int, PartitionLog]] = []
        """A heap of (due time, id, log) for flush.ms."""
        self._flush_noted: set[PartitionLog] = set()
        """Logs with an entry in `_flush_due`."""
        self._checkpoint_ms: int | None = None
        """Time of the next periodic checkpoint round."""
        self._round: set[PartitionLog] | None = None
        """While a checkpoint round is running: its logs that are not synced yet."""
        self.checkpoint = CheckpointWriter(
            storage, self.add_job, lambda number: self._journal.has_files_before(number), report
        )

    # --- logs ----------------------------------------------------------------------------------------------------

    def load_checkpoint(self) -> None:
        """Read the checkpoint, before any log is added. Raise CheckpointDamaged or StorageError."""
        self.checkpoint.load()

    @property
    def positions(self) -> dict[str, LogPosition]:
        """Return the synced position of each log by name, as the next checkpoint will have it."""
        return self.checkpoint.positions

    def number_journal(self, first_number: int, earlier: Iterable[int]) -> None:
        """Number the journal's files from `first_number`, before any log is added.

        `earlier` has the numbers of the files of an earlier process, until `earlier_journal_removed`.
        """
        max_bytes = self.config.journal_max_bytes
        self._journal = Journal(self._storage, max_bytes, self._pending, first_number, earlier)

    def earlier_journal_removed(self, kept: Iterable[int]) -> None:
        """Note that the journal files of the earlier process are removed, except those with the `kept` numbers."""
        self._journal.earlier_removed(kept)

    def add_log(self, log: PartitionLog) -> None:
        """Sync this log from now on."""
        self._logs[log] = None
        log.scheduler = self
        self._use_journal(log)

    def reconfigured(self, logs: Collection[PartitionLog]) -> None:
        """Reschedule these logs, because their settings have changed."""
        for log in logs:
            self._use_journal(log)
        noted = self._flush_noted.intersection(logs)
        if noted:  # their due times come from the old flush.ms
            self._flush_noted -= noted
            self._flush_due = [entry for entry in self._flush_due if entry[2] not in noted]
            heapify(self._flush_due)
        for log in logs:
            self.ask_if_due(log)

    def _use_journal(self, log: PartitionLog) -> None:
        log.journal = self._journal if log.config.group_commit else None
        if log.journal is not None:
            log.offline = self._journal.failed or log.offline
        if log.unflushed and log.waiting_acks:
            self.ask(log)  # earlier records must be on the disk too

    def forget(self, name: str, log: PartitionLog | None) -> None:
        """Forget a deleted partition; `log` is None if it was never added. The caller then calls `checkpoint.write`."""
        if log is not None:
            self._logs.pop(log, None)
            self._journal.forget(log)
            self._drop(log)
        self.checkpoint.forget(name)

    def release(self, log: PartitionLog) -> None:
        """Sync this log no longer, because it is truncated: a new opening takes its place. Its waiters are told.

        The journal keeps its entries of the log until `let_go`.
        """
        self._logs.pop(log, None)
        self.checkpoint.release(log)
        log.scheduler = log.journal = None
        self._drop(log)
        self._lost.append(log)
        self._pending.changed()

    def is_syncing(self, log: PartitionLog) -> bool:
        """Return True while a thread runs a sync of the log."""
        return log in self._syncing

    def went_offline(self, log: PartitionLog) -> None:
        self._report(f"partition {log.name} is offline: {log.offline}")
        self._journal.recount()
        self._drop(log)
        self._lost.append(log)
        self._pending.changed()

    def write_failed(self, error: Exception) -> None:
        self.disk.failed(error)

    def _lose_all(self, reason: str) -> None:
        """Take all logs offline at once, because no write to the disk will succeed: so does Kafka (KIP-112)."""
        lost = [log for log in self._logs if log.offline is None]
        for log in lost:
            log.offline = reason
            self._drop(log)
        self._lost += lost
        self._report(f"{reason}. Its {len(lost)} partitions are offline until a start finds the disk writable")
        self._journal.recount()
        self._pending.changed()

    def take_lost(self) -> list[PartitionLog]:
        """Return the logs that went offline since the last call."""
        lost, self._lost = self._lost, []
        return lost

    # --- time ----------------------------------------------------------------------------------------------------

    def next_deadline_ms(self, now_ms: int) -> int:
        """Return the time of the next `tick`, by the monotonic clock; at once if logs went offline."""
        if self._lost:
            return now_ms
        if self._checkpoint_ms is None:
            self._checkpoint_ms = now_ms + self.config.log_flush_offset_checkpoint_interval_ms
        return min(self._checkpoint_ms, self._flush_due[0][0]) if self._flush_due else self._checkpoint_ms

    def tick(self, now: Now) -> None:
        """Ask for the syncs that flush.ms makes due, and start a checkpoint round if its interval is over."""
        while self._flush_due and self._flush_due[0][0] <= now.ms:
            log = heappop(self._flush_due)[2]
            self._flush_noted.discard(log)
            since = log.durability.unflushed_since_ms
            if since is not None and since + log.config.flush_ms <= now.ms:
                self.ask(log)
            else:
                self._note_flush(log)
        if self._checkpoint_ms is not None and now.ms >= self._checkpoint_ms:
            self._checkpoint_ms = now.ms + self.config.log_flush_offset_checkpoint_interval_ms
            for log in self._logs:
                log.producers.expire(now.wall_ms, self.config.producer_id_expiration_ms)
            self.start_round()

    def ask_if_due(self, log: PartitionLog) -> None:
        """Ask for a sync if the log has too many unsynced messages or bytes, or if too many logs have some.

        Note the time if flush.ms requires a sync.
        """
        unflushed = log.log_end_offset - log.durability.flushed.offset
        if unflushed and log not in self._unsynced:
            self._unsynced[log] = None
            if len(self._unsynced) > self._max_unsynced_logs:
                self.ask(self._unsynced.popitem(last=False)[0], soon=False)
        if unflushed >= log.config.flush_messages:
            self.ask(log)
        elif log.config.flush_ms < LONG_MAX:
            self._note_flush(log)
        config = self.config
        limit_bytes = config.background_sync_bytes
        if log.journal is not None:  # the journal keeps the unsynced records, in limited space
            limit_bytes = min(limit_bytes, config.journal_max_bytes // 4)
        if log.durability.unsynced_bytes >= limit_bytes:
            self.ask(log, soon=False)

    def _note_flush(self, log: PartitionLog) -> None:
        """Note when flush.ms requires a sync. A log has one entry, and `tick` checks it again when it comes up."""
        since = log.durability.unflushed_since_ms
        if since is not None and log not in self._flush_noted:
            self._flush_noted.add(log)
            self._pending.deadline = True
            heappush(self._flush_due, (since + log.config.flush_ms, id(log), log))

    # --- jobs ----------------------------------------------------------------------------------------------------

    def ask(self, log: PartitionLog, soon: bool = True) -> None:
        """Ask for a sync of all records in the log, with a new sync even if one is running. `soon`: it is urgent."""
        if log.offline is not None:
            return
        self._pending.jobs = True
        if soon:
            self._urgent[log] = None
        else:
            self._background[log] = None

    def add_job(self, job: IoJob) -> None:
        """Hand out this job with the next `take`."""
        self._jobs.append(job)
        self._pending.jobs = True

    def take(self, begin_round: bool = True, *, syncs_max: int | None = None) -> list[IoJob]:
        """Return the jobs to start now, with the next journal round if `begin_round`.

        At most `syncs_max` logs are synced at a time, without it `flakelog.sync.threads`.
        The caller must return the outcome of each `Sync` to `synced` or `failed`.
        """
        journal = self._journal.take_round() if begin_round else None
        if journal is not None:
            self._jobs.append(journal)
        cut = self._journal.take_cut()
        if cut is not None:
            self._jobs.append(cut)
        if self._urgent or self._background:
            syncs_max = self.config.sync_threads if syncs_max is None else syncs_max
            while len(self._syncing) < syncs_max and (log := self._next()) is not None:
                self._jobs.append(self.begin_sync(log))
        jobs, self._jobs = self._jobs, []
        return jobs

    def _next(self) -> PartitionLog | None:
        """Return the next log to sync. Prefer the queues in turn, so that urgent syncs cannot delay a round forever."""
        queues = (self._background, self._urgent) if self._background_next else (self._urgent, self._background)
        self._background_next = not self._background_next
        for queue in queues:
            log = next((queued for queued in queue if queued not in self._syncing), None)
            if log is not None:
                self._urgent.pop(log, None)
                self._background.pop(log, None)
                return log
        return None

    def begin_sync(self, log: PartitionLog) -> SyncLog:
        """Return a sync of all records in the log now."""
        self._syncing.add(log)
        self._unsynced.pop(log, None)
        segments = log.unflushed_segments()
        files = tuple(file for segment in segments for file in segment.files)
        whole = tuple(segment.log for segment in segments[:-1])
        position = log.position()
        for_checkpoint = self._round is not None and log in self._round
        snapshot = log.producers.snapshot() if for_checkpoint and position.producers else None
        epochs = log.epochs if for_checkpoint and not log.durability.epochs_stored else None
        mending = log.durability.mending
        log.durability.sync_begins()
        sync = SyncLog(log, files, position, self._storage, for_checkpoint, snapshot, mending, whole, epochs)
        sync.frees_space = for_checkpoint and self.checkpoint.frees_space
        return sync

    def _drop(self, log: PartitionLog) -> None:
        """Drop a log that is deleted or offline from the queues and from the round."""
        self._unsynced.pop(log, None)
        self._urgent.pop(log, None)
        self._background.pop(log, None)
        self._leave_round(log)

    # --- outcomes ------------------------------------------------------------------------------------------------

    def synced(self, sync: Sync) -> list[PartitionLog]:
        """Take back a job that succeeded. Return the logs that have more records on the disk now."""
        if isinstance(sync, SyncJournal):
            return self._journal.synced()
        if isinstance(sync, SyncLog):
            return self._log_synced(sync)
        if isinstance(sync, WriteCheckpoint):
            self.checkpoint.written(sync, in_round=self.in_round)
        elif isinstance(sync, CutJournal):
            self._journal.removed(sync.names)
        return []

    def _log_synced(self, sync: SyncLog) -> list[PartitionLog]:
        log = sync.log
        self._syncing.discard(log)
        if log not in self._logs:
            return []  # deleted meanwhile, so the checkpoint must not name it
        stores_epochs = sync.epochs_stored and sync.epochs is log.epochs
        log.synced(sync.position, mends=sync.mends, stores_epochs=stores_epochs)
        self._journal.log_synced(log)
        if sync.for_checkpoint:
            if sync.epochs is None or sync.epochs_stored:
                self.checkpoint.note(log, sync.position)
            self._leave_round(log)
        elif log.offline is not None:
            self._leave_round(log)
        self.ask_if_due(log)
        return [log]

    def failed(self, sync: Sync, error: Exception) -> list[PartitionLog]:
        """Take back a job that failed. Return the logs that went offline."""
        if isinstance(sync, SyncLog):
            return self._log_failed(sync, error)
        if isinstance(sync, SyncJournal):
            return self._journal_failed(error)
        if isinstance(sync, CutJournal):
            self._report(f"{', '.join(sync.names)} could not be removed: {error}; the next start does it")
        else:
            self.checkpoint.failed(sync, error)
        return []

    def _log_failed(self, sync: SyncLog, error: Exception) -> list[PartitionLog]:
        """Take the log offline until a restart, because the kernel may have dropped the bytes it could not write."""
        log = sync.log
        self._syncing.discard(log)
        if log not in self._logs:
            return []
        if log.offline is None:  # a read-only disk has taken all logs offline before
            log.take_offline(f"a sync failed: {error}")
        return self.take_lost()

    def _journal_failed(self, error: Exception) -> list[PartitionLog]:
        """Take every log of the journal offline; if the round was only not written, sync its logs separately."""
        if isinstance(error, NotJournaled):
            self._journal.not_written()
            return []
        self._journal.failed = f"a sync of the journal failed: {error}"
        for log in self._logs:
            if log.journal is not None and log.offline is None:
                log.take_offline(self._journal.failed)
        return self.take_lost()

    # --- the checkpoint ------------------------------------------------------------------------------------------

    def start_round(self, among: Iterable[PartitionLog] | None = None, *, frees_space: bool = False) -> None:
        """Sync every log with something new, or those of `among`, then write the checkpoint.

        Do nothing while an earlier round is running. `frees_space`: segments are removed afterwards.
        """
        if self._round is not None:
            return
        self.checkpoint.frees_space = self.checkpoint.frees_space or frees_space
        logs = [log for log in (self._logs if among is None else among) if log.offline is None]
        self._round = {log for log in logs if log.durability.mending or not log.is_at(self.positions.get(log.name))}
        self._background.update((log, None) for log in logs if log in self._round)
        self._pending.jobs = True
        if among is None:
            self._journal.rotate()
        self._finish_round()

    @property
    def in_round(self) -> bool:
        """Return True while a checkpoint round is running."""
        return self._round is not None

    def _leave_round(self, log: PartitionLog) -> None:
        if self._round is not None:
            self._round.discard(log)
            self._finish_round()

    def _finish_round(self) -> None:
        if self._round is not None and not self._round:
            self._round = None
            self.checkpoint.write()

    def let_go(self, logs: Mapping[PartitionLog, LogPosition]) -> bool:
        """Before released logs are cut, lower their positions, have the journal forget them, and write the checkpoint.

        Their own files are synced. Return False, and do nothing, while the journal has a round of them.
        """
        number = self._journal.let_go(logs)
        if number is not None:
            self.checkpoint.lower(logs, number)
        return number is not None

    # --- the end -------------------------------------------------------------------------------------------------

    def stop(self) -> list[IoJob]:
        """Forget the running jobs, because the threads have ended, and the queues. Return the jobs not handed out yet.

        The caller can then start a last round and run its jobs itself.
        """
        jobs, self._jobs = self._jobs, []
        self._syncing.clear()
        self._urgent.clear()
        self._background.clear()
        self.checkpoint.stop()
        self._round = None
        return jobs

    def close_journal(self) -> CutJournal | None:
        """Return the job that removes the journal's files that no log needs, or None."""
        return self._journal.close()
