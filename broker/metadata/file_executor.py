"""Carries out changes of a server alone: a worker thread writes them to the file, then the image shows them.

    stage(staged)   adds a change to the next write
    take -> jobs    the next write, of all changes staged since the last one and of the first logs that they need
    back(job)       applies the stored changes to the image, and carries out their consequences

One write runs at a time. Changes that come meanwhile are checked after it, against what it stored, and share the next
write. A failed write changes nothing: its changes get the error, and the metadata stays as it was.

The same job creates the first logs of new topics, after the write. If that fails, it writes the document again without
those topics. A crash in between leaves topics whose logs are created at the next start.
"""

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from traceback import format_exception
from typing import TypeAlias

from broker.log.io_jobs import MetadataJob, PutAway, WriteMetadata
from broker.log.log_manager import LogManager
from broker.log.new_logs import made_at_once, make_directories
from broker.log.recovery.recovery import LogDamaged
from broker.log.storage.port import StorageError
from broker.metadata.change import Change
from broker.metadata.changes import PRODUCER_IDS, Keys
from broker.metadata.document import Document
from broker.metadata.image import ImageDelta
from broker.metadata.local_metadata import LocalMetadata
from broker.metadata.producer_ids import BLOCK
from broker.metadata.staged import Staged
from broker.metadata.topic import topic_keys
from broker.now import Now
from broker.wire.errors import ApiError, ErrorCode

Consequences: TypeAlias = Callable[[ImageDelta, Now], PutAway | None]
"""Called once the image shows a change. If it deletes logs, it returns the job that puts them away."""


@dataclass(eq=False, slots=True)
class _Write:
    """A write that a thread runs."""

    staged: Sequence[Staged]
    document: Document
    commits: int
    """The number of the last commit that the store has."""
    full: StorageError | None = None
    """The error of a full disk, if only a part was stored."""


class FileExecutor:
    """The writes of a server alone, and the jobs that put deleted logs away."""

    late_reason = "the disk took longer than the request's time limit"

    def __init__(
        self,
        local: LocalMetadata,
        logs: LogManager,
        consequences: Consequences,
        report: Callable[[str], None],
    ) -> None:
        self._local = local
        self._logs = logs
        self._consequences = consequences
        self._report = report
        self._pending = logs.pending
        self.on_end: Callable[[Now], None] = lambda now: None
        self._staged: list[Staged] = []
        """The changes of the next write."""
        self._keys: set[Hashable] = set()
        """The names of the things that the next write changes."""
        self._alone = False
        """True if the next write takes no other change."""
        self._wants_ids = False
        self._wants_write = False
        self._running: _Write | None = None
        self._busy: dict[PutAway, frozenset[Hashable]] = {}
        """The topics whose deleted logs still have their names. None of that name may be created."""
        self._to_put_away: list[PutAway] = []

    # --- changes -------------------------------------------------------------------------------------------------

    def may_begin(self, keys: Keys) -> bool:
        """Return True if a request that changes this may be checked now, and its change share the next write.

        No topic is created while the deleted log of an earlier one still has its name.
        """
        if self._running is not None or self._alone:
            return False
        if keys is None:
            return not self._staged
        is_free = all(busy.isdisjoint(keys) for busy in self._busy.values())
        return is_free and self._keys.isdisjoint(keys)

    def stage(self, keys: Keys, staged: Staged, now: Now) -> None:
        """Add a change to the next write; `may_begin` allows it."""
        self._staged.append(staged)
        self._pending.jobs = True
        self._keys.update(keys or ())
        self._alone = self._alone or keys is None

    @property
    def new_partitions(self) -> int:
        """Return the number of partitions that the next write adds."""
        return sum(len(staged.logs) for staged in self._staged)

    def run_now(self, staged: Staged, now: Now) -> None:
        """Make a change at once, in this thread, before requests are served. Raise ApiError if the disk fails."""
        if self._running is not None:
            raise RuntimeError("a write of the metadata is running")
        self.stage((), staged, now)
        job = self._next_write()
        error: Exception | None = None
        try:
            job.run()
        except StorageError as failure:
            error = failure
        self.back(job, error, now)
        if staged.error is not None:
            raise staged.error

    def reserve_producer_ids(self) -> None:
        """Reserve a block of producer ids with the next write."""
        self._wants_ids = True
        self._pending.jobs = True

    def store_again(self) -> None:
        """Have the document written even without changes, because the start found no space for it."""
        self._wants_write = True
        self._pending.jobs = True

    # --- jobs ----------------------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """True if `take` has a job."""
        wants = self._wants_write or self._wants_ids or bool(self._staged)
        return any(job.is_ready for job in self._to_put_away) or (wants and self._running is None)

    def take(self) -> list[MetadataJob]:
        """Return the next jobs. The caller runs them in their order, in one thread, and passes each to `back`.

        Deleted logs are renamed before the next write.
        """
        jobs: list[MetadataJob] = [job for job in self._to_put_away if job.is_ready]
        self._to_put_away = [job for job in self._to_put_away if job not in jobs]
        if self.is_due:
            jobs.append(self._next_write())
        return jobs

    def _next_write(self) -> WriteMetadata:
        if self._wants_ids and PRODUCER_IDS not in self._keys:
            self._staged.append(Staged(Change(producer_ids=BLOCK)))
        staged, self._staged, self._wants_ids, self._wants_write = self._staged, [], False, False
        self._keys.clear()
        self._alone = False
        document = self._local.document()
        self._running = _Write(staged, document, document.commits)
        return WriteMetadata(partial(self._write, self._running))

    def _write(self, write: _Write) -> None:
        """Store changes and create their logs, in a worker thread. Raise StorageError if nothing was stored."""
        writing = self._save_first(write)
        first = [(staged, made_at_once(staged.logs, self._logs.config)) for staged in writing if staged.logs]
        with suppress(StorageError):  # one wait for the disk; if it fails, the requests that need it fail below
            make_directories(self._logs.storage, (key for _, logs in first for key in logs))
        for staged, logs in first:
            try:
                staged.created = self._logs.create(logs)
            except (StorageError, LogDamaged) as error:
                staged.error = _failed(error)
        if any(staged.error for staged in writing):
            self._take_back(write, writing)

    def _save_first(self, write: _Write) -> Sequence[Staged]:
        """Store the changes and return them. On a full disk store those alone that may use the reserve, if there are
        any, and give the others the error. Raise StorageError if nothing was stored."""
        try:
            self._save(write, write.staged)
        except StorageError as error:
            first = [staged for staged in write.staged if _may_free_space(staged)]
            if not error.full or len(first) in (0, len(write.staged)):
                raise
            self._save(write, first)
            write.full = error
            for staged in write.staged:
                if not _may_free_space(staged):
                    staged.error = _failed(error)
            return first
        return write.staged

    def _save(self, write: _Write, staged: Sequence[Staged]) -> None:
        """Store changes. Use the reserve of a full disk if all of them may."""
        frees_space = bool(staged) and all(map(_may_free_space, staged))
        document = write.document.changed([change.change for change in staged], write.commits + 1)
        self._local.save(document, frees_space=frees_space)
        write.commits += 1

    def _take_back(self, write: _Write, writing: Sequence[Staged]) -> None:
        """Store the document without the topics whose logs could not be created. A full disk may have caused that, so
        this write may fail too."""
        try:
            self._save(write, [staged for staged in writing if staged.error is None])
        except StorageError:
            for staged in writing:
                staged.kept = staged.error is not None

    # --- jobs that ended -----------------------------------------------------------------------------------------

    def back(self, job: MetadataJob, error: Exception | None, now: Now) -> None:
        """Take back a job that has ended, and end its changes."""
        try:
            if isinstance(job, PutAway):
                self._busy.pop(job, None)
                if error is None:
                    self._local.put_away(job.directories)
            else:
                self._written(error, now)
        finally:
            self.on_end(now)

    def _written(self, error: Exception | None, now: Now) -> None:
        assert self._running is not None
        write, self._running = self._running, None
        if write.full is not None:
            self._logs.disk.failed(write.full)
        for staged in write.staged:
            if error is not None:
                staged.error = _failed(error)
            staged.end()
        if error is not None and not isinstance(error, StorageError):
            trace = "".join(format_exception(error))
            self._report(f"a fault of the broker's own, in a write of the metadata:\n{trace}")
        stored = [staged for staged in write.staged if staged.error is None or staged.kept]
        delta = self._local.apply([staged.change for staged in stored], write.commits)
        for staged in stored:
            if staged.kept:
                names = ", ".join(staged.change.topics)
                self._report(f"{names}: half made and could not be taken back: {staged.error}; delete it")
            elif staged.logs:
                self._logs.add_new(staged.created, staged.logs)
        put_away = self._consequences(delta, now)
        if put_away is not None:
            self._to_put_away.append(put_away)
            self._pending.jobs = True
            self._busy[put_away] = topic_keys(delta.copies_lost_by(self._local.broker.id))


def _may_free_space(staged: Staged) -> bool:
    """Return True if a change makes no logs and takes no producer ids: it may delete logs."""
    return not staged.logs and not staged.change.producer_ids


def _failed(error: Exception) -> ApiError:
    return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
