"""All logs of a broker: opening them, syncing them, keeping the checkpoint.

Syncs are values: `take_syncs` hands them out, a thread runs them, `synced` or `sync_failed` brings the outcome back.
Between the two, appends go on; a sync covers what was there when it was made. One sync of a log is out at a time, and
of all logs no more than there are threads; what falls due meanwhile waits, what somebody waits for before what a round
wants. The checkpoint is written after a round in which every log with something new was synced. Logs whose answers wait
for the disk share a journal (broker.log.journal), whose rounds wait for nothing else.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import islice
from uuid import UUID

from broker.config import LONG_MAX, BrokerConfig, TopicConfig
from broker.log import checkpoint, clean_stop, producer_state, retention
from broker.log.checkpoint import LogPosition
from broker.log.cleaner import CleanLog
from broker.log.cleaning import CleanerFigures, Cleaning
from broker.log.closed_segment import OpenSegments
from broker.log.deletions import Deletions
from broker.log.io_jobs import (
    CutJournal,
    IoJob,
    NotJournaled,
    ReadJob,
    RemoveFiles,
    SyncJournal,
    SyncLog,
    WriteCheckpoint,
)
from broker.log.journal import FoundJournal, Journal
from broker.log.log_walk import LogWalk
from broker.log.new_logs import NewLog, NewLogs
from broker.log.partition_log import NO_TOPIC_ID, PartitionLog
from broker.log.recovery import LogDamaged, RecoveryReport, open_log
from broker.log.segment import DELETED, file_name
from broker.log.storage import Storage, StorageError
from broker.now import Now
from broker.wire.errors import ApiError, ErrorCode

FILES_SHARE = 32
"""Closed segments have an eighth of the process's files at most, four each."""
FIRST_RETENTION_MS = 30_000  # after a start, as in Kafka: what has become too old meanwhile goes soon
Report = Callable[[str], None]


class LogManager:
    """Logs by (topic, partition). `report` takes lines for the operator; `max_open_files` is what the system lets this
    process open."""

    def __init__(self, storage: Storage, config: BrokerConfig, report: Report, max_open_files: int = 1 << 30) -> None:
        self.storage = storage
        self.config = config
        self._report = report
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        self._offline: dict[tuple[str, int], str] = {}
        self._known: dict[str, LogPosition] = {}
        self._journal = Journal(storage, config.journal_max_bytes)
        self._found: FoundJournal | None = None
        self._stopped_cleanly = True
        self._noted: dict[tuple[str, str], clean_stop.Noted] = {}
        self.open_segments = OpenSegments(min(config.max_open_segments, max(max_open_files // FILES_SHARE, 1)))
        self._syncing: set[PartitionLog] = set()
        self._urgent: dict[PartitionLog, None] = {}
        self._background: dict[PartitionLog, None] = {}
        self._background_next = False
        self._asked: list[IoJob] = []
        self._lost: list[PartitionLog] = []
        """Logs that have gone offline: who waits for them is to be told."""
        self._stale: list[str] = []
        self._uncovered: dict[PartitionLog, LogPosition] = {}
        """Logs synced for a checkpoint that is not on the disk yet."""
        self._round: set[PartitionLog] | None = None
        """While a round is on: the logs whose sync for the checkpoint is not back."""
        self._changed = False
        self._writing = False
        self._checkpoint_ms: int | None = None
        self._flush_due: list[tuple[int, int, PartitionLog]] = []
        self._flush_noted: set[PartitionLog] = set()
        self._new = NewLogs()
        self._deletions = Deletions(storage, report)
        self._cleaning = Cleaning(storage, config, self._deletions, report)
        self._retention_ms: int | None = None
        self._retaining = LogWalk()

    # --- logs ----------------------------------------------------------------------------------------------------

    def load_checkpoint(self) -> None:
        """Read the checkpoint, once, before logs are opened; deletions go on. CheckpointDamaged, StorageError."""
        self._remove([name for name in self.storage.list("") if name.endswith(DELETED)])
        if self.storage.exists(checkpoint.FILE):
            file = self.storage.open(checkpoint.FILE)
            self._known = checkpoint.decode(file.read(0, file.size))
        self._stopped_cleanly = self.storage.exists(clean_stop.FILE)
        if self._stopped_cleanly:
            file = self.storage.open(clean_stop.FILE)
            self._noted = clean_stop.decode(file.read(0, file.size))
        self._found = FoundJournal(self.storage)
        self._journal = Journal(self.storage, self.config.journal_max_bytes, self._found.next_number)

    def open(self, topic: str, partition: int, config: TopicConfig, topic_id: UUID = NO_TOPIC_ID) -> None:
        """Open or make a log. One that is damaged stays offline, by name; the others are not disturbed."""
        key = topic, partition
        known = self._known.get(f"{topic}-{partition}")
        found = self._found.entries(topic_id, partition) if self._found else ()
        try:
            log, report = open_log(
                self.storage,
                topic,
                partition,
                config,
                self.config,
                known,
                topic_id,
                found,
                self._stopped_cleanly,
                self._noted.pop((f"{topic}-{partition}", topic_id.hex), None),
                self.open_segments,
            )
            log.start_leader_epoch(0)
        except (LogDamaged, StorageError) as error:
            if isinstance(error, StorageError) and error.full:
                raise
            self._offline[key] = str(error)
            self._report(f"partition {topic}-{partition} is offline: {error}")
            if self._found:
                self._found.keep(topic_id, partition)
            return
        self._logs[key] = log
        log.ask_sync = self._ask
        log.on_offline = self._went_offline
        self._configure(log, config)
        if report.cut or report.from_journal:
            self._report(self._recovered(log, report))

    def make(self, logs: Mapping[tuple[str, int], NewLog]) -> None:
        """Make the logs of partitions nobody had before: the first at once, the others soon (broker.log.new_logs).

        ApiError where one of the first could not be made.
        """
        for key, new in logs.items():
            self._new.add(key, new)
        first = list(islice(logs.items(), self.config.max_new_logs_at_once))
        self._make_directories(key for key, _ in first)
        for key, new in first:
            self._make(key, new)
            self.get(*key)  # one that could not be opened is offline

    def _make_directories(self, keys: Iterable[tuple[str, int]]) -> None:
        """All at once: the disk is waited for once."""
        try:
            self.storage.make_directory(*(f"{topic}-{partition}" for topic, partition in keys))
        except StorageError as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def _make(self, key: tuple[str, int], new: NewLog) -> None:
        try:
            self.open(*key, *new)
        except StorageError as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self._new.forget(key)

    def _make_due(self, now_ms: int) -> None:
        due = self._new.due(now_ms, self.config.max_new_logs_at_once)
        try:
            self._make_directories(key for key, _ in due)
            for key, new in due:
                self._make(key, new)
        except ApiError as error:
            self._new.failed(now_ms)
            self._report(f"{len(self._new)} partitions of new topics cannot be made yet: {error}")

    @property
    def to_make(self) -> int:
        """Logs of new topics that are still to be made."""
        return len(self._new)

    def _configure(self, log: PartitionLog, config: TopicConfig) -> None:
        log.config, log.waiting_acks = config, config.waiting_acks
        log.journal = self._journal if config.group_commit else None
        if log.journal is not None:
            log.offline = self._journal.failed or log.offline
        if log.unflushed and log.waiting_acks:
            self._ask(log)  # what came before it is to be on the disk too

    def opened(self) -> None:
        """All logs are open: sync what a crash left to the journal or unseen, and remove the journal. Waits for the
        disk; there is nothing to do after a clean stop."""
        found, self._found = self._found, None
        for log in self._logs.values():
            journaled = found is not None and bool(found.entries(log.topic_id, log.partition))
            # What consumers saw before a crash they must see after it.
            if log.unflushed and (journaled or log.config.visible_after_flush):
                self._run(self._begin(log))
                if log.offline is not None and found is not None:
                    found.keep(log.topic_id, log.partition)
        if found is not None:
            found.remove()
        if self._stopped_cleanly:
            self.storage.remove(clean_stop.FILE)
            self.storage.sync_directory("")
        self._noted.clear()
        self._stopped_cleanly = True  # a log that is made from now on is new

    @staticmethod
    def _recovered(log: PartitionLog, report: RecoveryReport) -> str:
        line = f"partition {log.name} recovered: ends at offset {log.log_end_offset}, "
        line += f"{report.batches_read} batches past the checkpoint"
        if report.from_journal:
            line += f", {report.from_journal} from the journal"
        if not report.cut:
            return line
        return f"{line}; cut {report.bytes_cut} bytes and {report.segments_removed} segments ({report.reason})"

    def get(self, topic: str, partition: int) -> PartitionLog:
        """The log; ApiError where there is none, or it is offline."""
        log = self._logs.get((topic, partition))
        if log is not None:
            return log
        if len(self._new) and (new := self._new.asked_for((topic, partition))) is not None:
            self._make((topic, partition), new)
            return self.get(topic, partition)
        reason = self._offline.get((topic, partition))
        if reason is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic}-{partition} is offline: {reason}")
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {topic}-{partition} here")

    def has(self, log: PartitionLog) -> bool:
        """Whether it is here still, and was not deleted."""
        return self._logs.get((log.topic, log.partition)) is log

    def all(self) -> list[PartitionLog]:
        return list(self._logs.values())

    def use(self, config: BrokerConfig) -> None:
        """Settings of the broker that hold from now on."""
        self.config = self._cleaning.config = config

    def configure(self, configs: Mapping[str, TopicConfig]) -> None:
        """Settings of topics that hold from now on: their logs look them up at each use."""
        self._new.configure(configs)
        changed = [log for log in self._logs.values() if configs.get(log.topic, log.config) != log.config]
        for log in changed:
            self._configure(log, configs[log.topic])
        noted = self._flush_noted.intersection(changed)
        if noted:  # for a time that may no longer be the one
            self._flush_noted -= noted
            self._flush_due = [each for each in self._flush_due if each[2] not in noted]
            heapify(self._flush_due)
        for log in changed:
            self._look(log)

    @property
    def cleaner(self) -> CleanerFigures:
        """What the cleaner has done."""
        return self._cleaning.figures

    @property
    def offline(self) -> dict[str, str]:
        """Why partitions are offline, by name."""
        found = {f"{topic}-{partition}": reason for (topic, partition), reason in self._offline.items()}
        return found | {log.name: log.offline for log in self.all() if log.offline is not None}

    def delete(self, topics: Mapping[str, Iterable[int]]) -> dict[str, StorageError]:
        """Take logs away, by topic and partition: their directories are renamed, so half a deletion is never taken for
        a log, and a thread removes them. Why topics could not go, by their names: ask for them again.

        The checkpoint is written again: a log that gets the name anew must not be held to what this one had.
        """
        gone: list[str] = []
        failed: dict[str, StorageError] = {}
        for topic, partitions in topics.items():
            try:
                for partition in partitions:
                    self._forget(topic, partition)
                    gone += self._put_away(f"{topic}-{partition}")
            except StorageError as error:
                failed[topic] = error
        self._write_checkpoint()
        if gone:
            try:
                self.storage.sync_directory("")
            except StorageError as error:
                return dict.fromkeys(topics, error)
            self._remove(gone)
        return failed

    def _remove(self, paths: list[str]) -> None:
        if paths:
            self._asked.append(RemoveFiles(self.storage, "", tuple(paths)))

    def _forget(self, topic: str, partition: int) -> None:
        log = self._logs.pop((topic, partition), None)
        self._offline.pop((topic, partition), None)
        self._new.forget((topic, partition))
        if log is not None:
            log.deleted()
            self._journal.forget(log)
            self._out_of_queues(log)
            self._deletions.forget(log)
        if self._known.pop(f"{topic}-{partition}", None) is not None:
            self._changed = True

    def _put_away(self, directory: str) -> Iterator[str]:
        """The name it has now, where there is such a directory."""
        if self.storage.exists(directory):
            number = 1
            while self.storage.exists(path := f"{directory}.{number}{DELETED}"):
                number += 1  # one that had the name before, and is still being removed
            self.storage.rename(directory, path)
            yield path

    # --- what old records ask for --------------------------------------------------------------------------------

    def delete_records(self, log: PartitionLog, offset: int, now: Now) -> None:
        """Nobody reads below `offset` any more, and whole segments below it go. ApiError OFFSET_OUT_OF_RANGE."""
        if log.advance_start(offset):
            self._deletions.begins_later(log, now.ms)
            self._retain(log, now)

    def _retain(self, log: PartitionLog, now: Now) -> bool:
        """Drop what is too old or too much; whether the log begins later now."""
        number = retention.expired(
            log.segments, log.size, log.config, log.log_start_offset, log.high_watermark, now.wall_ms
        )
        if not number or log.offline is not None or self._cleaning.is_halfway(log):
            return False
        try:
            self._deletions.dropped(log, log.drop_segments(number), now.ms)
        except StorageError as error:
            self._report(f"partition {log.name}: old segments stay for now: {error}")
            return False
        return True

    # --- syncs ---------------------------------------------------------------------------------------------------

    def next_deadline_ms(self, now_ms: int) -> int:
        """When `tick` has something to do."""
        if self._lost:
            return now_ms
        if self._checkpoint_ms is None or self._retention_ms is None:
            self._checkpoint_ms = now_ms + self.config.log_flush_offset_checkpoint_interval_ms
            self._retention_ms = now_ms + min(FIRST_RETENTION_MS, self.config.log_retention_check_interval_ms)
        deadline = min(self._checkpoint_ms, self._retention_ms)
        if self._flush_due:
            deadline = min(deadline, self._flush_due[0][0])
        others = self._new, self._deletions, self._retaining
        for due in (*(each.next_deadline_ms() for each in others), self._cleaning.next_deadline_ms(now_ms)):
            deadline = deadline if due is None else min(deadline, due)
        return deadline

    def tick(self, now: Now) -> list[PartitionLog]:
        """Ask for the syncs that time has made due, and at each interval for a checkpoint. The logs that begin later
        now, or have gone offline: who waits for records of theirs is to know."""
        while self._flush_due and self._flush_due[0][0] <= now.ms:
            log = heappop(self._flush_due)[2]
            self._flush_noted.discard(log)
            since = log.unflushed_since_ms
            if since is not None and since + log.config.flush_ms <= now.ms:
                self._ask(log)
            else:
                self._note_flush(log)
        if self._checkpoint_ms is not None and now.ms >= self._checkpoint_ms:
            self._checkpoint_ms = now.ms + self.config.log_flush_offset_checkpoint_interval_ms
            for log in self._logs.values():
                log.producers.expire(now.wall_ms, self.config.producer_id_expiration_ms)
            self.start_round()
        if self._retention_ms is not None and now.ms >= self._retention_ms:
            self._retention_ms = now.ms + self.config.log_retention_check_interval_ms
            self._retaining.begin(self._logs.values(), now.ms)
        shorter = [log for log in self._retaining.due(now.ms) if self._retain(log, now)]
        if begun := self._deletions.to_checkpoint(now.ms, busy=self._round is not None):
            self.start_round(begun)
        self._deletions.rename(now.ms)
        self._asked += self._deletions.to_remove(now.ms)
        if len(self._new):
            self._make_due(now.ms)
        self._asked += self._cleaning.tick(self._logs.values(), now)
        if uncovered := self._cleaning.take_uncovered():
            self.start_round(uncovered)
        return shorter + self._take_lost()

    def appended(self, log: PartitionLog) -> None:
        """After an append: ask for a sync where the topic counts messages, note when one is due where it counts ms."""
        self._look(log)

    def _look(self, log: PartitionLog) -> None:
        if log.unflushed >= log.config.flush_messages:
            self._ask(log)
        elif log.config.flush_ms < LONG_MAX:
            self._note_flush(log)
        config = self.config
        limit_bytes = config.background_sync_bytes
        if log.journal is not None:  # which keeps what is not synced, and has room for so much
            limit_bytes = min(limit_bytes, config.journal_max_bytes // 4)
        if log.unsynced_bytes >= limit_bytes:
            self._ask(log, soon=False)

    def _note_flush(self, log: PartitionLog) -> None:
        """One entry a log: it is looked at again when it comes up."""
        since = log.unflushed_since_ms
        if since is not None and log not in self._flush_noted:
            self._flush_noted.add(log)
            heappush(self._flush_due, (since + log.config.flush_ms, id(log), log))

    def start_round(self, among: Iterable[PartitionLog] | None = None) -> None:
        """Sync every log with something new, or those of them named, then write the checkpoint. Nothing while an
        earlier round is on."""
        if self._round is not None:
            return
        logs = [log for log in (self._logs.values() if among is None else among) if log.offline is None]
        self._round = {log for log in logs if not log.is_at(self._known.get(log.name))}
        self._background.update((log, None) for log in logs if log in self._round)
        if among is None:
            self._journal.rotate()
        self._finish_round()

    def _ask(self, log: PartitionLog, soon: bool = True) -> None:
        """Have all that is in the log synced; one that is out meanwhile does not count. `soon`: somebody waits."""
        if log.offline is not None:
            return
        if soon:
            self._urgent[log] = None
        else:
            self._background[log] = None

    def take_syncs(self, begin_round: bool = True) -> list[IoJob]:
        """The syncs to be begun now; each comes back by `synced` or `sync_failed`."""
        journal = self._journal.take_round() if begin_round else None
        if journal is not None:
            self._asked.append(journal)
        cut = self._journal.take_cut()
        if cut is not None:
            self._asked.append(cut)
        if self._urgent or self._background:
            while len(self._syncing) < self.config.sync_threads and (log := self._next()) is not None:
                self._asked.append(self._begin(log))
        asked, self._asked = self._asked, []
        return asked

    def _next(self) -> PartitionLog | None:
        """The next log to sync. Where somebody waits for many, every second one is a round's, so that it ends."""
        queues = (self._background, self._urgent) if self._background_next else (self._urgent, self._background)
        self._background_next = not self._background_next
        for queue in queues:
            log = next((each for each in queue if each not in self._syncing), None)
            if log is not None:
                self._urgent.pop(log, None)
                self._background.pop(log, None)
                return log
        return None

    def _begin(self, log: PartitionLog) -> SyncLog:
        self._syncing.add(log)
        segments = log.unflushed_segments()
        files = tuple(file for segment in segments for file in segment.files)
        whole = tuple(segment.log for segment in segments[:-1])
        position = log.position()
        for_checkpoint = self._round is not None and log in self._round
        snapshot = log.producers.snapshot() if for_checkpoint and position.producers else None
        log.unflushed_since_ms = None
        log.unsynced_bytes = 0
        return SyncLog(log, files, position, self.storage, for_checkpoint, snapshot, log.mending, whole)

    # --- outcomes ------------------------------------------------------------------------------------------------

    def look_up(self, work: ReadJob) -> None:
        """Have a thread do it."""
        self._asked.append(work)

    def synced(self, sync: IoJob) -> list[PartitionLog]:
        """The logs of which more is on the disk now: answers may wait for that."""
        if isinstance(sync, SyncJournal):
            return self._journal.synced()
        if isinstance(sync, SyncLog):
            return self._log_synced(sync)
        if isinstance(sync, WriteCheckpoint):
            self._written(sync)
        elif isinstance(sync, CleanLog):
            self._cleaning.back(sync)
        return []

    def _log_synced(self, sync: SyncLog) -> list[PartitionLog]:
        log = sync.log
        self._syncing.discard(log)
        if not self.has(log):
            return []  # deleted meanwhile; the checkpoint must not speak of it
        log.synced(sync.position)
        if sync.mends:
            log.mending = False
        self._journal.log_synced(log)
        if sync.for_checkpoint:
            self._checkpointed(log, sync.position)
            self._out_of_round(log)
        elif log.offline is not None:
            self._out_of_round(log)
        self._look(log)
        return [log]

    def _checkpointed(self, log: PartitionLog, position: LogPosition) -> None:
        before = self._known.get(log.name)
        if before is not None and before.producers and before.offset != position.offset:
            self._stale.append(f"{log.name}/{file_name(before.offset, producer_state.SUFFIX)}")
        self._known[log.name] = self._uncovered[log] = position
        self._changed = True

    def sync_failed(self, sync: IoJob, error: Exception) -> list[PartitionLog]:
        """The logs that went offline, for good: the kernel may have dropped what it could not write."""
        if isinstance(sync, ReadJob):
            return []
        if isinstance(sync, SyncJournal):
            return self._journal_failed(error)
        if isinstance(sync, CutJournal):
            self._report(f"{', '.join(sync.names)} could not be removed: {error}; the next start does it")
            return []
        if isinstance(sync, CleanLog):
            self._cleaning.back(sync, error)
            return []
        if isinstance(sync, RemoveFiles):
            self._report(f"{error}; what is left of what was deleted goes at the next start")
            return []
        if isinstance(sync, WriteCheckpoint):
            self._report(f"the checkpoint could not be written: {error}; the older one stays")
            self._uncovered = sync.covers | self._uncovered
            self._changed = True
            self._writing = False
            return []
        log = sync.log
        self._syncing.discard(log)
        if not self.has(log):
            return []
        log.take_offline(f"a sync failed: {error}")
        return self._take_lost()

    def _went_offline(self, log: PartitionLog) -> None:
        self._report(f"partition {log.name} is offline: {log.offline}")
        self._journal.recount()
        self._out_of_queues(log)
        self._lost.append(log)

    def _take_lost(self) -> list[PartitionLog]:
        lost, self._lost = self._lost, []
        return lost

    def _journal_failed(self, error: Exception) -> list[PartitionLog]:
        if isinstance(error, NotJournaled):
            self._journal.not_written()
            return []
        self._journal.failed = f"a sync of the journal failed: {error}"
        for log in self._logs.values():
            if log.journal is not None and log.offline is None:
                log.take_offline(self._journal.failed)
        return self._take_lost()

    # --- the checkpoint ------------------------------------------------------------------------------------------

    def _out_of_queues(self, log: PartitionLog) -> None:
        self._urgent.pop(log, None)
        self._background.pop(log, None)
        self._out_of_round(log)

    def _out_of_round(self, log: PartitionLog) -> None:
        if self._round is not None:
            self._round.discard(log)
            self._finish_round()

    def _finish_round(self) -> None:
        if self._round is not None and not self._round:
            self._round = None
            self._write_checkpoint()

    def _write_checkpoint(self) -> None:
        """Ask for it, where it has changed; one at a time, so that an older one never comes after a newer."""
        if self._changed and not self._writing:
            self._changed, self._writing = False, True
            stale, self._stale = tuple(self._stale), []
            covers, self._uncovered = self._uncovered, {}
            self._asked.append(WriteCheckpoint(self.storage, dict(self._known), stale, covers))

    def _written(self, sync: WriteCheckpoint) -> None:
        for log, position in sync.covers.items():
            log.checkpointed = position
        self._cleaning.covered(sync.covers)
        self._deletions.checkpointed()
        self._writing = False
        if self._round is None:
            self._write_checkpoint()

    def close(self) -> None:
        """Sync everything and write the checkpoint, here and now: after it, opening reads nothing of the logs.

        The threads have ended: what is still out will not come back.
        """
        self._syncing.clear()
        removals = [sync for sync in self._asked if isinstance(sync, RemoveFiles)]
        self._asked.clear()
        self._urgent.clear()
        self._background.clear()
        self._changed, self._writing, self._round = self._changed or self._writing, False, None
        for log in self._logs.values():
            if log.offline is None:
                self._seal(log)
        self.start_round()
        while syncs := self.take_syncs():
            for sync in syncs:
                self._run(sync)
        for log in self._logs.values():
            if log.offline is None:
                log.segments[-1].log.trim()
        gone = self._journal.close()
        if gone is not None:
            self._run(gone)
        for removal in removals:
            self._run(removal)
        if not self.offline and not self._changed:
            self._say_stopped_cleanly()

    def _say_stopped_cleanly(self) -> None:
        try:
            self.storage.replace(clean_stop.FILE, clean_stop.encode(self._logs.values()))
        except StorageError as error:  # a full disk: the next start only syncs more than it must
            self._report(f"the clean stop could not be noted: {error}")

    def _run(self, sync: IoJob) -> None:
        """Here and now, at the start and at the end."""
        try:
            sync.run()
        except StorageError as error:
            self.sync_failed(sync, error)
        else:
            self.synced(sync)

    def _seal(self, log: PartitionLog) -> None:
        try:
            log.segments[-1].seal()
        except StorageError as error:  # a full disk: the index is only shorter
            self._report(f"partition {log.name}: {error}")
