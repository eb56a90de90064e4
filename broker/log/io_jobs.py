"""The jobs that the log manager hands to worker threads, as values.

A worker thread calls `run`, which may wait for the disk and touches only files. The reactor thread then passes the job
to `LogManager.synced`, or to `LogManager.sync_failed` with the error.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from broker.log import checkpoint, leader_epochs, producer_state
from broker.log.checkpoint import LogPosition
from broker.log.partition_log import PartitionLog
from broker.log.segment import DELETED, file_name
from broker.log.storage import reserve
from broker.log.storage.port import Buffer, File, Storage, StorageError
from broker.record.batch import CorruptBatch


@dataclass(eq=False, slots=True)
class SyncLog:
    """A sync of one log's files."""

    log: PartitionLog
    files: tuple[File, ...]
    position: LogPosition
    storage: Storage
    for_checkpoint: bool
    snapshot: bytes | None
    """The snapshot of the producers at `position`, if the checkpoint will name it."""
    mends: bool = False
    """True if a write was undone before this sync began; once it succeeds, the log takes appends again."""
    whole: tuple[File, ...] = ()
    """Files that are no longer appended to and may have reserved space."""
    epochs: list[tuple[int, int]] | None = None
    """The leader epochs, if the checkpoint needs them in their file."""
    epochs_stored: bool = False
    frees_space: bool = False
    """True if segments are removed after the checkpoint that waits for this sync."""

    def run(self) -> None:
        for file in self.files:
            file.sync()
        for file in self.whole:
            file.trim()
        if self.snapshot is not None:
            path = f"{self.log.name}/{file_name(self.position.offset, producer_state.SUFFIX)}"
            # A full disk fails only the snapshot. The log is synced, and recovery reads the batch headers instead.
            with suppress(StorageError):
                self.storage.replace(path, self.snapshot)
        if self.epochs is not None:
            path, data = f"{self.log.name}/{leader_epochs.FILE}", leader_epochs.encode(self.epochs)
            with suppress(StorageError):  # a full disk; the checkpoint keeps the log's earlier position then
                reserve.replace(self.storage, path, data, frees_space=self.frees_space)
                self.epochs_stored = True
        self.storage.sync_directory(self.log.name)


@dataclass(frozen=True, eq=False, slots=True)
class WriteCheckpoint:
    """A rewrite of the checkpoint file."""

    storage: Storage
    positions: dict[str, LogPosition]
    stale: tuple[str, ...]
    """Producer snapshots that are unused once the checkpoint is written."""
    covers: dict[PartitionLog, LogPosition]
    """The logs whose position has changed."""
    lowered: frozenset[str] = frozenset()
    """Names of the logs that may be cut once this checkpoint is on the disk."""
    frees_space: bool = False
    """True if segments are removed once this checkpoint is on the disk. It may then use the reserve."""

    def run(self) -> None:
        data = checkpoint.encode(self.positions)
        reserve.replace(self.storage, checkpoint.FILE, data, frees_space=self.frees_space)
        for path in self.stale:
            self.storage.remove(path)


@dataclass(frozen=True, eq=False, slots=True)
class RemoveFiles:
    """A removal of renamed files of one log, or of whole logs from the data directory (""). Large files are slow."""

    storage: Storage
    directory: str
    paths: tuple[str, ...]

    def run(self) -> None:
        if self.storage.exists(self.directory):  # otherwise, its topic was deleted with all files
            self.storage.sync_directory(self.directory)  # a power cut must not restore the old names of removed files
            for path in self.paths:
                self.storage.remove(path)


class RunningCut(Protocol):
    """The truncation of a deleted log (broker.log.cut_log)."""

    is_running: bool
    """True while a thread works on the log's files."""


@dataclass(eq=False, slots=True)
class PutAway:
    """A rename of the directories of deleted logs, so that none of them is ever opened as a log again."""

    storage: Storage
    directories: tuple[str, ...]
    renamed: list[str] = field(default_factory=list)
    """The new names, which are to be removed."""
    truncations: tuple[RunningCut, ...] = ()
    """Truncations of these logs that a thread may be at."""
    logs: tuple[PartitionLog, ...] = ()
    """The logs that are open."""
    is_syncing: Callable[[PartitionLog], bool] = lambda log: False
    """Returns True while a thread syncs a log."""

    @property
    def is_ready(self) -> bool:
        """Return False while a thread works on the files of one of the logs, because it might make them again."""
        return not (any(cut.is_running for cut in self.truncations) or any(map(self.is_syncing, self.logs)))

    def run(self) -> None:
        for directory in self.directories:
            if self.storage.exists(directory):
                self._rename(directory)
        if self.directories:
            self.storage.sync_directory("")

    def _rename(self, directory: str) -> None:
        number = 1
        while self.storage.exists(path := f"{directory}.{number}{DELETED}"):
            number += 1  # an earlier log of this name is still being removed
        self.storage.rename(directory, path)
        self.renamed.append(path)


@dataclass(frozen=True, eq=False, slots=True)
class WriteMetadata:
    """Write the metadata and create the first logs of new topics. One such job runs at a time."""

    write: Callable[[], None]

    def run(self) -> None:
        self.write()


@dataclass(frozen=True, eq=False, slots=True)
class WriteFile:
    """A rewrite of a small file of the broker, which is on the disk once the job is back."""

    storage: Storage
    path: str
    data: bytes

    def run(self) -> None:
        self.storage.replace(self.path, self.data)


@dataclass(frozen=True, eq=False, slots=True)
class FillReserve:
    """A rewrite of the reserve, which must have `needed_bytes` at least."""

    storage: Storage
    needed_bytes: int

    def run(self) -> None:
        reserve.fill(self.storage, self.needed_bytes)


@dataclass(frozen=True, eq=False, slots=True)
class RewriteOrRemove(WriteFile):
    """A rewrite of a small file whose present content must not stay. If it cannot be rewritten, it is removed: that
    needs no space. The error is raised all the same."""

    def run(self) -> None:
        try:
            WriteFile.run(self)
        except StorageError:
            self.storage.remove(self.path)
            self.storage.sync_directory("")
            raise


class NotJournaled(StorageError):
    """The round could not be written, and the journal is unchanged. No data is lost, but the round is not synced."""


@dataclass(eq=False, slots=True)
class JournalFile:
    """A file of the journal by its name in the storage, made by its first round."""

    name: str
    header: bytes
    ahead_bytes: int
    file: File | None = None
    """None until the file and its name are on the disk."""

    def made(self, storage: Storage) -> File:
        """Return the file. Make it with its header at first: no crash leaves it without one. Raise StorageError."""
        if self.file is None:
            storage.replace(self.name, self.header)
            self.file = storage.open(self.name, ahead_bytes=self.ahead_bytes)
        return self.file


@dataclass(frozen=True, eq=False, slots=True)
class SyncJournal:
    """A journal round to write and sync. Any StorageError but NotJournaled ends the journal's use."""

    storage: Storage
    to: JournalFile
    parts: tuple[Buffer, ...]

    def run(self) -> None:
        try:
            file = self.to.made(self.storage)
        except StorageError as error:
            raise NotJournaled(error.path, error.reason, error.full) from error
        before = file.size
        try:
            file.append(b"".join(self.parts))
        except StorageError as error:
            if file.size != before:
                raise
            raise NotJournaled(error.path, error.reason, error.full) from error
        file.sync()


@dataclass(frozen=True, eq=False, slots=True)
class CutJournal:
    """A removal of journal files that no log needs.

    The removal is on the disk at the end. The next process numbers its files from 1 again, so a file that a power cut
    brought back could be taken for the newer one.
    """

    storage: Storage
    names: tuple[str, ...]

    def run(self) -> None:
        for name in self.names:
            self.storage.remove(name)
        self.storage.sync_directory("")


@dataclass(eq=False, slots=True)
class ReadJob:
    """A lookup for a worker thread, because it is slow or waits for the disk and would delay other connections.

    `key` is the key under which its request waits in the purgatory.
    """

    read: Callable[[], Any]
    key: Hashable
    is_done: bool = False
    """True after success. After a failure, the request repeats the lookup and receives the error."""
    result: Any = None

    def run(self) -> None:
        with suppress(StorageError, CorruptBatch):
            self.result = self.read()
            self.is_done = True


class Runnable(Protocol):
    """A job of any kind."""

    def run(self) -> None: ...


RunJobs: TypeAlias = Callable[[Sequence[Runnable]], Iterable[StorageError | None]]
"""Runs jobs that do not depend on each other, and returns how each has ended, in their order: None after success."""


def run_in_turn(jobs: Sequence[Runnable]) -> Iterable[StorageError | None]:
    """Run jobs one after the other in this thread (`RunJobs`)."""
    for job in jobs:
        yield run(job)


def run(job: Runnable) -> StorageError | None:
    """Run a job in this thread, and return its error."""
    try:
        job.run()
    except StorageError as error:
        return error
    return None


Sync: TypeAlias = SyncLog | SyncJournal | CutJournal | WriteCheckpoint
"""A job of the sync scheduler (broker.log.sync_scheduler)."""
MetadataJob: TypeAlias = WriteMetadata | PutAway
"""A job of the metadata's thread, which runs them in their order (broker.metadata.file_executor)."""
METADATA_JOBS = WriteMetadata, PutAway
