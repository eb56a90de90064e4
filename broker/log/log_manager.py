"""The registry of a broker's logs: opening, creating, looking up, configuring and deleting them.

    LogManager -> LogOpener         the opening of logs, at the start and later
               -> SyncScheduler     which log is synced when, the journal, the checkpoint (`syncs`)
               -> NewLogs           logs of new topics that are created later
               -> Deletions         files of dropped segments
               -> RetentionWalk     expired segments
               -> Cleaning          compaction
               -> Truncations       new openings of followers' logs, cut at an offset
               -> EpochsBegun       leader epochs that are on the disk before their first batches

The engine drives them all through this class: it calls `tick` when `next_deadline_ms` has come, runs the jobs of
`take_syncs` in worker threads, and passes each outcome to `synced` or `sync_failed`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from uuid import UUID

from broker.log import log_closing
from broker.log.closed_segment import OpenSegments
from broker.log.compaction.cleaner import CleanLog
from broker.log.compaction.cleaning import CleanerFigures, Cleaning
from broker.log.cut_log import CUT_JOBS
from broker.log.deletions import Deletions
from broker.log.disk_watch import DiskWatch
from broker.log.epochs_begun import EpochsBegun, WriteEpochsBegun
from broker.log.integrity.data_directory import Strays
from broker.log.integrity.guard import Guard, GuardJob, ScrubFigures
from broker.log.io_jobs import (
    FillReserve,
    PutAway,
    ReadJob,
    RemoveFiles,
    RunJobs,
    WriteCheckpoint,
    WriteFile,
    WriteMetadata,
    run_in_turn,
)
from broker.log.log_opener import LogOpener
from broker.log.new_logs import NewLog, NewLogs, create
from broker.log.partition_log import NO_TOPIC_ID, PartitionLog
from broker.log.retention_walk import RetentionWalk
from broker.log.segment import DELETED
from broker.log.storage.port import Storage
from broker.log.sync_scheduler import IoJob, SyncScheduler
from broker.log.truncation import NO_LAST_IDS, Key, Truncated, Truncations
from broker.now import Now
from broker.settings.config import BrokerConfig, TopicConfig
from broker.waiting.pending import Pending
from broker.wire.errors import ApiError, ErrorCode

FILES_SHARE = 12
"""Closed segments may use a third of the storage's open files, at four files each."""
UNSYNCED_SHARE = 8
"""Logs with unsynced records may use half of the storage's open files, at four files each."""
Report = Callable[[str], None]
NOT_SYNCS = CleanLog, *CUT_JOBS, WriteEpochsBegun, RemoveFiles, ReadJob, PutAway, WriteFile, WriteMetadata, FillReserve
"""The jobs that other parts than the scheduler of the syncs hand out."""


class LogManager:
    """The logs of a broker by (topic, partition).

    `report` takes lines for the operator. `max_open_files` is the storage's limit on open files.
    """

    def __init__(self, storage: Storage, config: BrokerConfig, report: Report, max_open_files: int = 1 << 30) -> None:
        self.storage = storage
        self.config = config
        self.pending = Pending()
        """Whether `take_syncs` may have jobs, and whether `next_deadline_ms` may be earlier than it was."""
        max_unsynced_logs = max(max_open_files // UNSYNCED_SHARE, 1)
        self.syncs = SyncScheduler(storage, config, report, self.pending, max_unsynced_logs)
        self.open_segments = OpenSegments(min(config.max_open_segments, max(max_open_files // FILES_SHARE, 1)))
        self._report = report
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        self._offline: dict[tuple[str, int], str] = {}
        """Logs that could not be opened, with the reason."""
        self._strays = Strays(storage)
        self._epochs = EpochsBegun(storage, report)
        registries = self._logs, self._offline
        self._opener = LogOpener(storage, self.syncs, self.open_segments, self._epochs, *registries, report)
        self._new = NewLogs(storage, self._opener, report)
        self._deletions = Deletions(storage, report)
        self._cleaning = Cleaning(storage, config, self._deletions, report)
        self._guard = Guard(storage, self._cleaning.is_halfway, report)
        parts = self.syncs, self._cleaning, self._deletions, self._epochs, self.open_segments
        self._truncations = Truncations(storage, *parts, *registries, report)
        self._retention = RetentionWalk(storage, self._deletions, self._cleaning.is_halfway, report)
        self._deadline_ms = 0

    # --- opening -------------------------------------------------------------------------------------------------

    def load_checkpoint(self) -> None:
        """Read the checkpoint and the journal, once, before logs are opened. Continue the deletions of earlier runs.

        Raise CheckpointDamaged, EpochsBegunDamaged, JournalUnreadable or StorageError.
        """
        self._remove([name for name in self.storage.list("") if name.endswith(DELETED)])
        self._opener.load()

    @property
    def stopped_cleanly(self) -> bool:
        """Return True if the last process synced everything, from `load_checkpoint` until `opened`."""
        return self._opener.stopped_cleanly

    def open(self, topic: str, partition: int, config: TopicConfig, topic_id: UUID = NO_TOPIC_ID) -> None:
        """Open or create a log. If it is damaged, report it and keep it offline; other logs are not affected.

        Raise StorageError if the disk is full.
        """
        self._opener.open((topic, partition), config, topic_id)

    def open_at_start(
        self, topic: str, partition: int, config: TopicConfig, topic_id: UUID, leader_epoch: int
    ) -> None:
        """Open a log as `open` does. On a full disk open it for reading, or else when the disk has space again.

        `leader_epoch` is the partition's by the metadata.
        """
        self._opener.open_at_start((topic, partition), config, topic_id, leader_epoch)

    def take_opened_late(self) -> list[PartitionLog]:
        """Return the logs that were opened after the start, since the last call."""
        return self._opener.take_opened_late()

    def opened(self) -> None:
        """Finish the start, once all logs are open: sync the logs that a crash left unsynced, and remove the journal.

        Wait for the disk. After a clean stop, no log needs a sync.
        """
        here = {f"{topic}-{partition}" for topic, partition in self._logs.keys() | self._offline.keys()}
        if strays := self._strays.find(here):
            self._report(f"{strays}: records of no topic, which are not served. Move them away, or delete them")
        self._opener.finish(lambda job: self._run([job]))

    # --- logs of new topics --------------------------------------------------------------------------------------

    def check_new(self, partitions: Iterable[str]) -> None:
        """Raise ApiError if one of these partitions that are to be created has records already."""
        self._strays.check(partitions)

    def create(self, logs: Mapping[tuple[str, int], NewLog]) -> list[PartitionLog]:
        """Create logs; `add_new` registers them. Raise StorageError or LogDamaged, with none left behind.

        It may run in a worker thread, because it uses only files and settings.
        """
        return create(self.storage, self.config, self.open_segments, logs)

    def add_new(self, created: Iterable[PartitionLog], logs: Mapping[tuple[str, int], NewLog]) -> None:
        """Register the created ones of these logs of new partitions. The others are created soon."""
        self.pending.deadline = True
        for log in created:
            self._logs[log.topic, log.partition] = log
            self.syncs.add_log(log)
        for key, new in logs.items():
            if key not in self._logs:
                self._new.add(key, new)

    @property
    def to_make(self) -> int:
        """Return the number of logs that are still to be created."""
        return len(self._new)

    # --- lookups -------------------------------------------------------------------------------------------------

    def get(self, topic: str, partition: int) -> PartitionLog:
        """Return the log. If it is still to be created, create it now (`NewLogs.asked_for`).

        Raise ApiError UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR if the log could not be opened or created, or
        NOT_LEADER_OR_FOLLOWER if too many logs were created on demand, or while the log is truncated.
        """
        log = self._logs.get((topic, partition))
        if log is not None:
            return log
        if len(self._new) and (new := self._new.asked_for((topic, partition))) is not None:
            self._new.make((topic, partition), new, self.config.max_new_logs_at_once)
            return self.get(topic, partition)
        if (reason := self._offline.get((topic, partition))) is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic}-{partition} is offline: {reason}")
        self._truncations.check_whole((topic, partition))
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {topic}-{partition} here")

    def find(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the log, or None if it is offline, still to be created or being truncated."""
        return self._logs.get((topic, partition))

    def has(self, log: PartitionLog) -> bool:
        """Return True unless the log was deleted, or another opening has taken its place."""
        return self._logs.get((log.topic, log.partition)) is log

    def all(self) -> list[PartitionLog]:
        return list(self._logs.values())

    def is_offline(self, topic: str, partition: int) -> bool:
        """Return True if a partition is neither read nor written."""
        log = self._logs.get((topic, partition))
        return (topic, partition) in self._offline if log is None else log.offline is not None

    def waits_for_space(self, topic: str, partition: int) -> bool:
        """Return True if a partition is offline until the disk has space. Its files have all that they had."""
        key = topic, partition
        return key in self._opener.unopened or self._truncations.waits_for_space(key)

    @property
    def offline(self) -> dict[str, str]:
        """Return the reasons why partitions are offline, by partition name."""
        unopened = {f"{topic}-{partition}": reason for (topic, partition), reason in self._offline.items()}
        return unopened | {log.name: log.offline for log in self.all() if log.offline is not None}

    @property
    def disk(self) -> DiskWatch:
        """Return whether the data directory's disk is full."""
        return self.syncs.disk

    @property
    def cleaner(self) -> CleanerFigures:
        """Return the cleaner's totals."""
        return self._cleaning.figures

    @property
    def scrub(self) -> ScrubFigures:
        """Return the scrub's totals."""
        return self._guard.figures

    # --- settings ------------------------------------------------------------------------------------------------

    def use(self, config: BrokerConfig) -> None:
        """Apply changed settings of the broker."""
        self.config = self.syncs.config = self._cleaning.config = config
        self.pending.changed()

    def configure(self, configs: Mapping[str, TopicConfig]) -> None:
        """Apply changed settings of topics, by topic name. Logs read their settings at each use."""
        self._new.configure(configs)
        self._opener.unopened.configure(configs)
        self._truncations.configure(configs)
        changed = [log for log in self._logs.values() if configs.get(log.topic, log.config) != log.config]
        for log in changed:
            log.config = configs[log.topic]
            log.waiting_acks = log.config.waiting_acks
        self.syncs.reconfigured(changed)
        self.pending.changed()

    # --- deletion ------------------------------------------------------------------------------------------------

    def delete(self, topics: Mapping[str, Iterable[int]]) -> PutAway:
        """Delete logs, given as partitions by topic. Return the job that puts their directories away, for a thread.

        The directories are renamed, so that a half-deleted directory is never opened as a log, and another job removes
        them. The checkpoint is written again, because a new log of the same name must not be compared with it.
        """
        keys = [(topic, partition) for topic, partitions in topics.items() for partition in partitions]
        self.pending.changed()
        cuts = tuple(cut for key in keys if (cut := self._truncations.forget(key)) is not None)
        logs = tuple(log for key in keys if (log := self._logs.get(key)) is not None)
        directories = tuple(name for topic, partition in keys if (name := f"{topic}-{partition}") not in self._strays)
        for key in keys:
            self._forget(*key)
        self.syncs.checkpoint.write()
        return PutAway(self.storage, directories, truncations=cuts, logs=logs, is_syncing=self.syncs.is_syncing)

    def finish_deletions(self, directories: Iterable[str]) -> list[str]:
        """At a start, put away directories of deleted topics, before any log is opened. Return the directories.

        Raise StorageError.
        """
        job = self._opener.put_away(directories)
        self._remove(job.renamed)
        return list(job.directories)

    def _remove(self, paths: list[str]) -> None:
        if paths:
            self.syncs.add_job(RemoveFiles(self.storage, "", tuple(paths)))

    def _forget(self, topic: str, partition: int) -> None:
        log = self._logs.pop((topic, partition), None)
        self._offline.pop((topic, partition), None)
        self._new.forget((topic, partition))
        self._opener.unopened.forget((topic, partition))
        if log is not None:
            log.deleted()
            self._deletions.forget(log)
            self._guard.written.discard(log)
        self._epochs.drop(f"{topic}-{partition}")
        self.syncs.forget(f"{topic}-{partition}", log)

    # --- replication ---------------------------------------------------------------------------------------------

    def truncate(
        self, offsets: Mapping[Key, int], *, anew: bool = False, last_ids: Mapping[Key, int] = NO_LAST_IDS
    ) -> None:
        """Truncate these followers' logs, each to an offset: batches that end past it go, with their ids.

        Epochs go that begin at or past the log's new end, so an offset past the end takes epochs only. A log truncated
        below its start begins anew: at the offset, with nothing. `anew`: all of them do; a follower needs it that ends
        below its leader's start, with the last id before that in `last_ids`. Until `take_truncated` has the outcome,
        `get` raises NOT_LEADER_OR_FOLLOWER. Raise ApiError, and truncate none, if a log is offline or being truncated.
        """
        self._truncations.begin({self.get(*key): offset for key, offset in offsets.items()}, last_ids, anew=anew)

    def take_truncated(self) -> list[Truncated]:
        """Return the outcomes of truncations since the last call."""
        return self._truncations.take()

    def begin_epochs(self, epochs: Mapping[PartitionLog, int]) -> WriteEpochsBegun:
        """Put leader epochs that these logs will begin on the disk, with one write. `take_syncs` hands it out.

        Call `PartitionLog.start_leader_epoch` once the write `is_done`.
        """
        self.pending.jobs = True
        return self._epochs.begin(epochs)

    # --- retention -----------------------------------------------------------------------------------------------

    def delete_records(self, log: PartitionLog, offset: int, now: Now) -> None:
        """Raise the log's start to `offset`, and drop the segments below it. Raise ApiError OFFSET_OUT_OF_RANGE."""
        if log.advance_start(offset):
            self.pending.deadline = True
            self._deletions.begins_later(log, now.ms)
            self._retention.apply(log, now)

    # --- time ----------------------------------------------------------------------------------------------------

    def next_deadline_ms(self, now_ms: int) -> int:
        """Return the time of the next `tick`, by the monotonic clock."""
        if self.pending.deadline:
            self.pending.deadline = False
            self._deadline_ms = self.earliest_ms(now_ms)
        return self._deadline_ms

    def earliest_ms(self, now_ms: int) -> int:
        """Return the earliest deadline of all parts."""
        deadline = self.syncs.next_deadline_ms(now_ms)
        others = (
            self._new.next_deadline_ms(),
            self._opener.unopened.next_deadline_ms(),
            self.disk.next_deadline_ms(now_ms),
            self._deletions.next_deadline_ms(),
            self._truncations.next_deadline_ms(),
            self._retention.next_deadline_ms(now_ms, self.config.log_retention_check_interval_ms),
            self._cleaning.next_deadline_ms(now_ms),
            self._guard.next_deadline_ms(now_ms, self.config.scrub_bytes_per_second),
        )
        for due in others:
            if due is not None and due < deadline:
                deadline = due
        return deadline

    def tick(self, now: Now) -> list[PartitionLog]:
        """Do everything that is due: syncs, the checkpoint, retention, removals, new logs and the cleaner.

        Return the logs whose start has risen or that went offline, because requests may wait for their records.
        """
        self.pending.changed()
        self.disk.check(now)
        self.syncs.tick(now)
        self._truncations.tick(now.ms)
        shorter = self._retention.tick(self._logs.values(), now, self.config, hurries=self.disk.is_full)
        if begun := self._deletions.to_checkpoint(now.ms, busy=self.syncs.in_round):
            self.syncs.start_round(begun, frees_space=True)
        self._deletions.rename(now.ms)
        for removal in self._deletions.to_remove(now.ms, at_once=self.disk.is_full):
            self.syncs.add_job(removal)
        if len(self._new):
            self._new.make_due(now.ms, self.config.max_new_logs_at_once)
        if len(self._opener.unopened):
            self._opener.open_due(now.ms, lambda job: self._run([job]))
        for job in self._guard.tick(self._logs.values(), now.ms, self.config.scrub_bytes_per_second):
            self.syncs.add_job(job)
        for work in self._cleaning.tick(self._logs.values(), now):
            self.syncs.add_job(work)
        if uncovered := self._cleaning.take_uncovered():
            self.syncs.start_round(uncovered)
        return shorter + self.syncs.take_lost()

    def appended(self, log: PartitionLog) -> None:
        """Ask for the sync that an append makes due. The caller must call this after each append."""
        self.syncs.ask_if_due(log)
        written = self._guard.written
        if not written:
            self.pending.deadline = True
        written.add(log)

    # --- jobs ----------------------------------------------------------------------------------------------------

    def take_syncs(self, begin_round: bool = True) -> list[IoJob]:
        """Return the jobs to start now in worker threads, with the next journal round if `begin_round`."""
        self._truncations.advance()
        if (write := self._epochs.take()) is not None:
            self.syncs.add_job(write)
        return self.syncs.take(begin_round)

    def synced(self, job: IoJob) -> list[PartitionLog]:
        """Take back a job that succeeded. Return the logs that have more records on the disk now."""
        self.pending.changed()
        self.disk.job_ended(job)
        if isinstance(job, GuardJob):
            self._guard.back(job)
            return self.syncs.take_lost()
        if isinstance(job, NOT_SYNCS):
            self._back(job)
            return []
        changed = self.syncs.synced(job)
        if isinstance(job, WriteCheckpoint):
            self._cleaning.covered(job.covers)
            self._deletions.checkpointed()
            self._epochs.drop_stored(job.covers)
            self._truncations.checkpointed(job.lowered)
        return changed

    def sync_failed(self, job: IoJob, error: Exception) -> list[PartitionLog]:
        """Take back a job that failed. Return the logs that went offline."""
        self.pending.changed()
        self.disk.job_ended(job, error)
        if isinstance(job, RemoveFiles):
            self._report(f"{error}; what is left of what was deleted goes at the next start")
        elif isinstance(job, PutAway):
            self._report(f"{error}; directories of deleted topics keep their names until the next start")
        if isinstance(job, NOT_SYNCS):
            self._back(job, error)
            return []
        lost = self.syncs.failed(job, error)
        self._deletions.sync_failed(job)
        self._truncations.sync_failed(job, error)
        return lost

    def _back(self, job: IoJob, error: Exception | None = None) -> None:
        """Pass a job that is no sync to the part that it is of."""
        if isinstance(job, CleanLog):
            self._cleaning.back(job, error)
        elif isinstance(job, CUT_JOBS):
            self._truncations.back(job, error)
        elif isinstance(job, WriteEpochsBegun):
            self._epochs.back(job, error)
        elif isinstance(job, RemoveFiles):
            self._deletions.back(job)
        elif isinstance(job, PutAway):
            self._remove(job.renamed)

    def _run(self, jobs: Sequence[IoJob], run_jobs: RunJobs = run_in_turn) -> None:
        """Run jobs at a start or stop, when no worker thread does."""
        for job, error in zip(jobs, run_jobs(jobs), strict=True):
            if error is None:
                self.synced(job)
            else:
                self.sync_failed(job, error)

    # --- the end -------------------------------------------------------------------------------------------------

    def close(self, run_jobs: RunJobs = run_in_turn) -> None:
        """Sync all logs and write the checkpoint, so that the next start reads nothing of the logs.

        The worker threads have ended, so no outcome of a running job will be returned. `run_jobs` waits for the disk.
        """
        self.syncs.checkpoint.frees_space = self._deletions.wait_for_checkpoint
        log_closing.close(self.syncs, self._logs.values(), lambda jobs: self._run(jobs, run_jobs), self._report)
        if not self.offline and not len(self._truncations) and self.syncs.checkpoint.is_written:
            log_closing.note_clean_stop(self.storage, self._logs.values(), self._report)
