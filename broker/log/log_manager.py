"""All logs of a broker: opening them, syncing them, keeping the checkpoint.

Syncs are values: `take_syncs` hands them out, a thread runs them, `synced` or `sync_failed` brings the outcome back.
Between the two, appends go on; a sync covers what was there when it was made. The checkpoint is written after a round
in which every log with something new was synced.
"""

from collections.abc import Callable
from dataclasses import dataclass

from broker.config import BrokerConfig, TopicConfig
from broker.log import checkpoint, producer_state
from broker.log.checkpoint import LogPosition
from broker.log.partition_log import PartitionLog
from broker.log.recovery import LogDamaged, RecoveryReport, open_log
from broker.log.segment import file_name
from broker.log.storage import File, Storage, StorageError
from broker.now import Now
from broker.wire.errors import ApiError, ErrorCode

DELETED_SUFFIX = ".deleted"

Report = Callable[[str], None]


@dataclass(frozen=True, eq=False, slots=True)
class SyncLog:
    """Sync one log's files. `run` is called in a thread; it touches nothing of the log but files."""

    log: PartitionLog
    files: tuple[File, ...]
    position: LogPosition
    storage: Storage
    for_checkpoint: bool
    snapshot: bytes | None
    """The producers at `position`, where the checkpoint will refer to them."""

    def run(self) -> None:
        for file in self.files:
            file.sync()
        if self.snapshot is not None:
            path = f"{self.log.name}/{file_name(self.position.offset, producer_state.SUFFIX)}"
            self.storage.replace(path, self.snapshot)
        self.storage.sync_directory(self.log.name)


@dataclass(frozen=True, eq=False, slots=True)
class WriteCheckpoint:
    """Replace the checkpoint."""

    storage: Storage
    data: bytes
    stale: tuple[str, ...]
    """Producer snapshots that nothing refers to once the checkpoint is there."""

    def run(self) -> None:
        self.storage.replace(checkpoint.FILE, self.data)
        for path in self.stale:
            self.storage.remove(path)


Sync = SyncLog | WriteCheckpoint


class LogManager:
    """Logs by (topic, partition). `report` takes lines for the operator."""

    def __init__(self, storage: Storage, config: BrokerConfig, report: Report) -> None:
        self.storage = storage
        self.config = config
        self._report = report
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        self._offline: dict[tuple[str, int], str] = {}
        self._known: dict[str, LogPosition] = {}
        self._syncing: set[PartitionLog] = set()
        self._asked: list[Sync] = []
        self._stale: list[str] = []
        self._round = False
        self._checkpoint_ms: int | None = None

    # --- logs ----------------------------------------------------------------------------------------------------

    def load_checkpoint(self) -> None:
        """Read the checkpoint, once, before logs are opened. CheckpointDamaged, StorageError."""
        if self.storage.exists(checkpoint.FILE):
            file = self.storage.open(checkpoint.FILE)
            self._known = checkpoint.decode(file.read(0, file.size))

    def open(self, topic: str, partition: int, config: TopicConfig) -> None:
        """Open or make a log. One that is damaged stays offline, by name; the others are not disturbed."""
        key = topic, partition
        try:
            log, report = open_log(
                self.storage, topic, partition, config, self.config, self._known.get(f"{topic}-{partition}")
            )
            log.start_leader_epoch(0)
        except (LogDamaged, StorageError) as error:
            if isinstance(error, StorageError) and error.full:
                raise
            self._offline[key] = str(error)
            self._report(f"partition {topic}-{partition} is offline: {error}")
            return
        self._logs[key] = log
        if report.cut:
            self._report(self._recovered(log, report))

    @staticmethod
    def _recovered(log: PartitionLog, report: RecoveryReport) -> str:
        return (
            f"partition {log.name} recovered: ends at offset {log.log_end_offset} after {report.batches_read} batches "
            f"past the checkpoint; cut {report.bytes_cut} bytes and {report.segments_removed} segments ({report.reason})"
        )

    def get(self, topic: str, partition: int) -> PartitionLog:
        """The log; ApiError where there is none, or it is offline."""
        log = self._logs.get((topic, partition))
        if log is not None:
            return log
        reason = self._offline.get((topic, partition))
        if reason is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic}-{partition} is offline: {reason}")
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {topic}-{partition} here")

    def all(self) -> list[PartitionLog]:
        return list(self._logs.values())

    @property
    def offline(self) -> dict[str, str]:
        """Why partitions are offline, by name."""
        found = {f"{topic}-{partition}": reason for (topic, partition), reason in self._offline.items()}
        return found | {log.name: log.offline for log in self.all() if log.offline is not None}

    def delete(self, topic: str, partition: int) -> None:
        """Take a log away: its directory is renamed first, so half a deletion is never taken for a log."""
        log = self._logs.pop((topic, partition), None)
        self._offline.pop((topic, partition), None)
        name = f"{topic}-{partition}"
        self._known.pop(name, None)
        if log is not None:
            log.offline = "it was deleted"
        if self.storage.exists(name):
            self.storage.rename(name, name + DELETED_SUFFIX)
            self.storage.remove(name + DELETED_SUFFIX)

    # --- syncs ---------------------------------------------------------------------------------------------------

    def next_deadline_ms(self, now_ms: int) -> int:
        """When `tick` has something to do."""
        if self._checkpoint_ms is None:
            self._checkpoint_ms = now_ms + self.config.log_flush_offset_checkpoint_interval_ms
        due = [self._checkpoint_ms]
        for log in self._logs.values():
            if log.unflushed_since_ms is not None and log.config.flush_ms < 2**62 and log not in self._syncing:
                due.append(log.unflushed_since_ms + log.config.flush_ms)
        return min(due)

    def tick(self, now: Now) -> None:
        """Ask for the syncs that time has made due, and at each interval for a checkpoint."""
        for log in self._logs.values():
            since = log.unflushed_since_ms
            if since is not None and since + log.config.flush_ms <= now.ms:
                self.ask_sync(log)
            log.producers.expire(now.wall_ms - self.config.producer_id_expiration_ms)
        if self._checkpoint_ms is not None and now.ms >= self._checkpoint_ms:
            self._checkpoint_ms = now.ms + self.config.log_flush_offset_checkpoint_interval_ms
            self.start_round()

    def appended(self, log: PartitionLog) -> None:
        """After an append: ask for a sync where the topic counts messages."""
        if log.unflushed >= log.config.flush_messages:
            self.ask_sync(log)

    def start_round(self) -> None:
        """Sync every log with something new, then write the checkpoint."""
        self._round = True
        for log in self._logs.values():
            if log.position() != self._known.get(log.name):
                self.ask_sync(log, for_checkpoint=True)
        self._finish_round()

    def ask_sync(self, log: PartitionLog, for_checkpoint: bool = False) -> None:
        if log in self._syncing or log.offline is not None:
            return
        self._syncing.add(log)
        files = tuple(file for segment in log.unflushed_segments() for file in segment.files)
        position = log.position()
        snapshot = log.producers.snapshot() if for_checkpoint and position.producers else None
        log.unflushed_since_ms = None
        self._asked.append(SyncLog(log, files, position, self.storage, for_checkpoint, snapshot))

    def take_syncs(self) -> list[Sync]:
        """The syncs asked for since the last call; each comes back by `synced` or `sync_failed`."""
        asked, self._asked = self._asked, []
        return asked

    def synced(self, sync: Sync) -> None:
        if isinstance(sync, SyncLog):
            self._syncing.discard(sync.log)
            sync.log.flushed = sync.position
            if sync.for_checkpoint:
                self._checkpointed(sync.log.name, sync.position)
            self._finish_round()

    def _checkpointed(self, name: str, position: LogPosition) -> None:
        before = self._known.get(name)
        if before is not None and before.producers and before.offset != position.offset:
            self._stale.append(f"{name}/{file_name(before.offset, producer_state.SUFFIX)}")
        self._known[name] = position

    def sync_failed(self, sync: Sync, error: Exception) -> None:
        """A log whose sync failed goes offline and stays so; the kernel may have dropped what it could not write."""
        if isinstance(sync, SyncLog):
            self._syncing.discard(sync.log)
            sync.log.offline = f"a sync failed: {error}"
            self._report(f"partition {sync.log.name} is offline: a sync failed: {error}")
            self._finish_round()
        else:
            self._report(f"the checkpoint could not be written: {error}; the older one stays")

    def _finish_round(self) -> None:
        if self._round and not self._syncing:
            self._round = False
            stale, self._stale = tuple(self._stale), []
            self._asked.append(WriteCheckpoint(self.storage, checkpoint.encode(self._known), stale))

    def close(self) -> None:
        """Sync everything and write the checkpoint, here and now: after it, opening reads nothing of the logs."""
        for log in self._logs.values():
            log.segments[-1].seal()
        self.start_round()
        while syncs := self.take_syncs():
            for sync in syncs:
                try:
                    sync.run()
                except StorageError as error:
                    self.sync_failed(sync, error)
                else:
                    self.synced(sync)
