"""The opening of a broker's logs: at the start, of new topics, and after a start on a full disk.

A start first reads what the last process left: the checkpoint, the journal and the note of a clean stop. It opens the
logs one by one, and then drops the journal and the note. On a full disk it opens logs for reading. A log that needs
space to be opened, for messages that only the journal has, is opened when the disk has space.
"""

from collections.abc import Callable, Iterable
from uuid import UUID

from broker.log import journal_damage
from broker.log.closed_segment import OpenSegments
from broker.log.epochs_begun import EpochsBegun
from broker.log.io_jobs import PutAway, SyncLog
from broker.log.journal import FoundJournal
from broker.log.partition_log import NO_TOPIC_ID, PartitionLog
from broker.log.recovery import clean_stop
from broker.log.recovery.recovery import LogDamaged, open_log
from broker.log.storage.held_indexes import HeldIndexes
from broker.log.storage.port import Storage, StorageError
from broker.log.sync_scheduler import SyncScheduler
from broker.log.unopened_logs import Key, ToOpen, UnopenedLogs
from broker.settings.config import TopicConfig


class LogOpener:
    """Opens logs, and adds them to `logs` and to the syncs, or to `offline` with the reason.

    `report` takes lines for the operator.
    """

    def __init__(
        self,
        storage: Storage,
        syncs: SyncScheduler,
        among: OpenSegments,
        epochs: EpochsBegun,
        logs: dict[Key, PartitionLog],
        offline: dict[Key, str],
        report: Callable[[str], None],
    ) -> None:
        self._storage = storage
        self._syncs = syncs
        self._among = among
        self._epochs = epochs
        self._logs = logs
        self._offline = offline
        self._report = report
        self.unopened = UnopenedLogs()
        self._opened_late: list[PartitionLog] = []
        self._last_journal: FoundJournal | None = None
        """The journal of the previous process, until all logs are open, or those that a full disk keeps closed."""
        self.stopped_cleanly = True
        self._has_clean_stop = False
        """True if the file of a clean stop exists. `finish` removes it also if it cannot be read now."""
        self._is_uncut = True
        """True if the last process has cut no file, or has synced every cut."""
        self._has_failed = False
        """True if a log could not be opened: a cut of the last process, or of this one, may not be synced."""
        self._noted: dict[tuple[str, str], clean_stop.Noted] = {}
        """Closed segments as noted by a clean stop, for logs that are not open yet."""

    # --- the start -----------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read what the last process left.

        Raise CheckpointDamaged, EpochsBegunDamaged, JournalUnreadable or StorageError.
        """
        self._syncs.load_checkpoint()
        self._epochs.load()
        self._has_clean_stop = self._storage.exists(clean_stop.FILE)
        self.stopped_cleanly = self._has_clean_stop and self._load_noted()
        self._is_uncut = self.stopped_cleanly or self._storage.exists(clean_stop.UNCUT)
        if not self._is_uncut and self._syncs.positions:
            self._is_uncut = self._storage.sync_all()  # much shorter than three waits for each of many logs
        if self._is_uncut:
            self._note_uncut()  # still true if this start is killed before it cuts a file
        first_numbers = {
            (UUID(position.topic_id or NO_TOPIC_ID.hex), int(name.rpartition("-")[2])): position.journal_from
            for name, position in self._syncs.positions.items()
            if position.journal_from
        }
        journal = self._last_journal = FoundJournal(self._storage, first_numbers)
        self._syncs.number_journal(journal.next_number, journal.numbers)

    def _load_noted(self) -> bool:
        """Load the facts of the clean stop. Return False if the file cannot be read: then it counts as a crash."""
        try:
            file = self._storage.open(clean_stop.FILE)
            self._noted = clean_stop.decode(file.read(0, file.size))
        except StorageError as error:
            self._report(f"{error}; the start checks each log, as after a crash")
            return False
        return True

    def _note_uncut(self) -> None:
        try:
            self._storage.note_until_cut(clean_stop.UNCUT)
        except StorageError as error:
            self._syncs.disk.failed(error)  # without the note, a start after a crash only does more work

    def put_away(self, directories: Iterable[str]) -> PutAway:
        """Rename directories of deleted logs, before any log is opened. Return the job. Raise StorageError."""
        job = PutAway(self._storage, tuple(directories))
        job.run()
        for directory in job.directories:
            self._syncs.forget(directory, None)
        return job

    def open_at_start(self, key: Key, config: TopicConfig, topic_id: UUID, leader_epoch: int) -> None:
        """Open a log. On a full disk open it for reading, or else when the disk has space again."""
        to_open = self._to_open(key, config, topic_id, leader_epoch)
        try:
            self._open(key, to_open, self._storage)
        except StorageError as error:
            self._syncs.disk.failed(error)
            to_open = to_open._replace(is_uncut=False)
            try:
                self._open(key, to_open, HeldIndexes(self._storage))
            except StorageError as still:
                self._put_off(key, to_open, still)

    def _put_off(self, key: Key, to_open: ToOpen, error: StorageError) -> None:
        self._offline[key] = f"{error}; it is opened when the disk has space"
        self._report(f"partition {key[0]}-{key[1]} is not opened yet: {error}")
        self.unopened.add(key, to_open)
        if self._last_journal:
            self._last_journal.keep(to_open.topic_id, key[1])

    def finish(self, run: Callable[[SyncLog], None]) -> None:
        """Finish the start, once all logs are open: sync the logs that a crash left unsynced, and remove the journal.

        `run` runs a sync in this thread.
        """
        journal = self._last_journal
        for log in self._logs.values():
            journaled = journal is not None and bool(journal.entries(log.topic_id, log.partition))
            # Consumers that saw a record before a crash must see it after the crash.
            if log.unflushed and (journaled or log.config.visible_after_flush):
                run(self._syncs.begin_sync(log))
                if log.offline is not None and journal is not None:
                    journal.keep(log.topic_id, log.partition)
        if journal is not None:
            for line in journal_damage.lines(journal, self._logs.values()):
                self._report(line)
            journal.remove()
            self._syncs.earlier_journal_removed(journal.numbers)
        if not len(self.unopened):
            self._last_journal = None
        if self._has_clean_stop:
            self._storage.remove(clean_stop.FILE)
            self._storage.sync_directory("")
        if not self._has_failed:
            # This start has synced each cut of a log or of ids. No start reads an index past the checkpoint.
            self._note_uncut()
        self._noted.clear()
        self.stopped_cleanly = self._is_uncut = True  # logs that are created from now on are new

    # --- one log -------------------------------------------------------------------------------------------------

    def open(self, key: Key, config: TopicConfig, topic_id: UUID) -> None:
        """Open or create a log. If it is damaged, report it and keep it offline; other logs are not affected.

        Raise StorageError if the disk is full.
        """
        self._open(key, self._to_open(key, config, topic_id), self._storage)

    def _to_open(self, key: Key, config: TopicConfig, topic_id: UUID, leader_epoch: int = 0) -> ToOpen:
        topic, partition = key
        entries = self._last_journal.entries(topic_id, partition) if self._last_journal else ()
        noted = self._noted.pop((f"{topic}-{partition}", topic_id.hex), None)
        return ToOpen(config, topic_id, entries, self._is_uncut, noted, leader_epoch)

    def _open(self, key: Key, to_open: ToOpen, storage: Storage) -> None:
        topic, partition = key
        checkpointed = self._syncs.positions.get(f"{topic}-{partition}")
        try:
            log, report = open_log(
                storage,
                topic,
                partition,
                to_open.config,
                self._syncs.config,
                checkpointed,
                to_open.topic_id,
                to_open.journal,
                to_open.is_uncut,
                to_open.noted,
                self._among,
                max(to_open.leader_epoch, self._epochs.epoch_of(f"{topic}-{partition}")),
            )
        except (LogDamaged, StorageError) as error:
            self._has_failed = True
            if isinstance(error, StorageError) and error.full:
                raise
            self._offline[key] = str(error)
            self._report(f"partition {topic}-{partition} is offline: {error}")
            if self._last_journal:
                self._last_journal.keep(to_open.topic_id, partition)
            return
        self._epochs.join(log)
        self._offline.pop(key, None)
        self._logs[key] = log
        self._syncs.add_log(log)
        if report.cut or report.from_journal or report.epochs_fault is not None:
            self._report(report.line(log))

    # --- when the disk has space ---------------------------------------------------------------------------------

    def open_due(self, now_ms: int, run: Callable[[SyncLog], None]) -> None:
        """Open logs that the start could not open, if the disk has space again. `run` runs a sync in this thread."""
        if self._syncs.disk.is_full:
            self.unopened.failed(now_ms)
            return
        for key, to_open in self.unopened.take(now_ms).items():
            try:
                self._open(key, to_open, self._storage)
            except StorageError as error:
                self._syncs.disk.failed(error)
                self.unopened.add(key, to_open)
                self.unopened.failed(now_ms)
                continue
            log = self._logs.get(key)
            if log is not None:
                self._report(f"partition {log.name} is opened, because the disk has space again")
                self._opened_late.append(log)
                self._finish_late(log, to_open, run)
        if not len(self.unopened):
            self._last_journal = None

    def _finish_late(self, log: PartitionLog, to_open: ToOpen, run: Callable[[SyncLog], None]) -> None:
        """Do for a log what `finish` does for all.

        The log's entries leave the journal before its first append. Those past a gap were never answered, and would
        stand in the way of what gets their offsets now.
        """
        if log.unflushed and to_open.journal:
            run(self._syncs.begin_sync(log))
        elif log.unflushed and log.config.visible_after_flush:
            log.ask_sync(soon=True)
        if log.offline is None and self._last_journal is not None:
            if self._last_journal.damages:
                for line in journal_damage.gap_line(log, to_open.journal):
                    self._report(line)
            try:
                self._last_journal.opened(log.topic_id, log.partition)
            except StorageError as error:
                self._report(f"the journal of the last process still has {log.name}, and stays: {error}")
            self._syncs.earlier_journal_removed(self._last_journal.numbers)

    def take_opened_late(self) -> list[PartitionLog]:
        """Return the logs that were opened after the start, since the last call."""
        late, self._opened_late = self._opened_late, []
        return late
