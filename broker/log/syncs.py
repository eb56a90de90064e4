"""What a thread does for the log manager, as values: it calls `run` and reports the outcome. They touch files only."""

from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from broker.log import checkpoint, producer_state
from broker.log.checkpoint import LogPosition
from broker.log.cleaner import CleanLog
from broker.log.partition_log import PartitionLog
from broker.log.segment import file_name
from broker.log.storage import Buffer, File, Storage, StorageError
from broker.record.batch import CorruptBatch


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
    mends: bool = False
    """A write was undone before it was asked for: with it the log is whole again."""
    whole: tuple[File, ...] = ()
    """Those that are not appended to any more, and may have room set aside."""

    def run(self) -> None:
        for file in self.files:
            file.sync()
        for file in self.whole:
            file.trim()
        if self.snapshot is not None:
            path = f"{self.log.name}/{file_name(self.position.offset, producer_state.SUFFIX)}"
            # A full disk takes no snapshot, yet the log is synced: without one, recovery reads the batches' headers.
            with suppress(StorageError):
                self.storage.replace(path, self.snapshot)
        self.storage.sync_directory(self.log.name)


@dataclass(frozen=True, eq=False, slots=True)
class WriteCheckpoint:
    """Replace the checkpoint."""

    storage: Storage
    positions: dict[str, LogPosition]
    stale: tuple[str, ...]
    """Producer snapshots that nothing refers to once the checkpoint is there."""
    covers: dict[PartitionLog, LogPosition]
    """The logs for which it says something new."""

    def run(self) -> None:
        self.storage.replace(checkpoint.FILE, checkpoint.encode(self.positions))
        for path in self.stale:
            self.storage.remove(path)


@dataclass(frozen=True, eq=False, slots=True)
class RemoveFiles:
    """Remove what was renamed for it: files of one log, or from the data directory ("") a log as a whole. Large files
    take the file system its time."""

    storage: Storage
    directory: str
    paths: tuple[str, ...]

    def run(self) -> None:
        if self.storage.exists(self.directory):  # else its topic is deleted, and they with it
            self.storage.sync_directory(self.directory)  # or a power cut gives old names back without what they named
            for path in self.paths:
                self.storage.remove(path)


class NotJournaled(StorageError):
    """The round could not be written, and the journal is as it was: nothing is lost, it was only not synced."""


@dataclass(frozen=True, eq=False, slots=True)
class SyncJournal:
    """Write one round to the journal and sync it. StorageError is the end of the journal, NotJournaled is not."""

    storage: Storage
    file: File
    parts: tuple[Buffer, ...]
    made: bool
    """The file is new: its name must be on the disk too."""

    def run(self) -> None:
        before = self.file.size
        try:
            self.file.append(b"".join(self.parts))
        except StorageError as error:
            if self.file.size != before:
                raise
            raise NotJournaled(error.path, error.reason, error.full) from error
        self.file.sync()
        if self.made:
            self.storage.sync_directory("")


@dataclass(frozen=True, eq=False, slots=True)
class CutJournal:
    """Remove files of the journal that no log needs any more."""

    storage: Storage
    names: tuple[str, ...]

    def run(self) -> None:
        for name in self.names:
            self.storage.remove(name)


@dataclass(eq=False, slots=True)
class LookUp:
    """Have something looked for in segments that are not in memory, or that takes its time, so that whoever waits for
    it (`key`, in the purgatory) need not hold everybody up."""

    look: Callable[[], Any]
    key: Hashable
    is_done: bool = False
    """False also where it failed: who looks again then is told."""
    found: Any = None

    def run(self) -> None:
        with suppress(StorageError, CorruptBatch):
            self.found = self.look()
            self.is_done = True


Sync: TypeAlias = SyncLog | WriteCheckpoint | RemoveFiles | SyncJournal | CutJournal | CleanLog | LookUp
