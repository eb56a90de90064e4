"""Changes of the metadata: planned by a handler, written by a worker thread, visible once they are on the disk.

    handler   submit(keys, begin)   `begin` checks the request against the metadata and returns a Planned change
    shell     take -> job           one write of all changes planned since the last one, run in a thread
    engine    back(job)             applies them, answers their requests, and lets the requests begin that waited

One write runs at a time. Requests that come meanwhile begin after it, so that they are checked against what it stored,
and share the next write. Requests that name the same thing (a topic, the quotas) never share a write, so no request is
checked against a change that may still fail. A failed write changes nothing: its requests are answered with the error,
and the metadata stays as it was.

The same job creates the first logs of new topics, after the write. If that fails, it writes the document again without
those topics. A crash in between leaves topics whose logs are created at the next start.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from traceback import format_exception
from typing import Any, NamedTuple, TypeAlias

from broker.log.io_jobs import MetadataJob, PutAway, WriteMetadata
from broker.log.log_manager import LogManager
from broker.log.new_logs import NewLog, make_directories
from broker.log.partition_log import PartitionLog
from broker.log.recovery.recovery import LogDamaged
from broker.log.storage.port import StorageError
from broker.metadata.metadata import PRODUCER_ID_BLOCK, Change, Document, Metadata, metric_name
from broker.now import Now
from broker.waiting.purgatory import Delayed, Purgatory
from broker.wire.errors import ApiError, ErrorCode

Answer: TypeAlias = Any
Keys: TypeAlias = Collection[Hashable] | None
"""The names of the things that a request changes. None stands for anything: such a request shares no write."""
QUOTAS, CREDENTIALS, PRODUCER_IDS = "quotas", "credentials", "producer ids"
_CHANGED = "a change of the metadata"
"""The purgatory key of all requests that wait for a write."""


def topic_keys(names: Iterable[str]) -> frozenset[Hashable]:
    """Return the keys of requests that change topics. Names that collide have the same key."""
    return frozenset(("topic", metric_name(name)) for name in names)


@dataclass(eq=False, slots=True)
class Staged:
    """A change with its consequences for logs."""

    change: Change
    logs: Mapping[tuple[str, int], NewLog] = field(default_factory=dict)
    """The logs of new partitions."""
    applied: Callable[[Now], PutAway | None] = lambda now: None
    """Called once the change is visible. If it deletes logs, it returns the job that puts them away."""
    is_done: bool = False
    error: ApiError | None = None
    kept: bool = False
    """True if the change failed and could not be taken back."""
    created: list[PartitionLog] = field(default_factory=list)


class Planned(NamedTuple):
    """A change that may be written, and the answer of its request, given the error or None, and the time."""

    staged: Staged
    answer: Callable[[ApiError | None, Now], Answer]


Begin: TypeAlias = Callable[[Now], Planned | Answer]
"""Checks a request. Returns its answer, if it changes nothing. Called once."""


@dataclass(eq=False, slots=True)
class _Write:
    """A write that a thread runs."""

    staged: Sequence[Staged]
    document: Document
    commits: int
    """The number of the last commit that the store has."""


class MetadataChanges:
    """The changes of a broker's metadata."""

    def __init__(
        self, metadata: Metadata, logs: LogManager, purgatory: Purgatory, report: Callable[[str], None]
    ) -> None:
        self._metadata = metadata
        self._logs = logs
        self._purgatory = purgatory
        self._report = report
        self._staged: list[Staged] = []
        """The changes of the next write."""
        self._keys: set[Hashable] = set()
        """The names of the things that the next write changes."""
        self._alone = False
        """True if the next write takes no other change."""
        self._running: _Write | None = None
        self._busy: dict[PutAway, frozenset[Hashable]] = {}
        """The topics whose deleted logs still have their names. None of that name may be created."""
        self._to_put_away: list[PutAway] = []
        self._wants_ids = False
        self._wants_write = False
        metadata.reserve_ids = self._reserve_ids

    # --- requests ------------------------------------------------------------------------------------------------

    def submit(
        self, keys: Keys, begin: Begin, now: Now, timeout_ms: int | None = None, also: Iterable[Hashable] = ()
    ) -> Answer | Delayed[Answer]:
        """Plan a request's change, now or after the running write. Return its answer, delayed until the change is
        stored.

        After `timeout_ms`, if given, the answer is that of REQUEST_TIMED_OUT, though the change may still be made. An
        answer may itself be a Delayed, which waits for the purgatory keys `also`.
        """
        waiting = _Waiting(self, keys, begin)
        answer = waiting.try_complete(now)
        if answer is not None:
            return answer
        deadline_ms = None if timeout_ms is None else now.ms + timeout_ms
        return Delayed(
            (_CHANGED, *also), deadline_ms, waiting.try_complete, waiting.expire, holds_connection=True
        )

    def may_begin(self, keys: Keys) -> bool:
        """Return True if a request that changes this may be checked now, and its change share the next write."""
        if self._running is not None or self._alone:
            return False
        if keys is None:
            return not self._staged
        return self._keys.isdisjoint(keys) and all(busy.isdisjoint(keys) for busy in self._busy.values())

    def stage(self, keys: Keys, staged: Staged) -> None:
        """Add a change to the next write; `may_begin` allows it."""
        self._staged.append(staged)
        self._logs.pending.jobs = True
        self._keys.update(keys or ())
        self._alone = self._alone or keys is None

    def run_now(self, staged: Staged, now: Now) -> None:
        """Make a change at once, in this thread, before requests are served. Raise ApiError if the disk fails."""
        if self._running is not None:
            raise RuntimeError("a write of the metadata is running")
        self.stage((), staged)
        job = self._next_write()
        error: Exception | None = None
        try:
            job.run()
        except StorageError as failure:
            error = failure
        self.back(job, error, now)
        if staged.error is not None:
            raise staged.error

    @property
    def new_partitions(self) -> int:
        """Return the number of partitions that the next write adds."""
        return sum(len(staged.logs) for staged in self._staged)

    # --- producer ids --------------------------------------------------------------------------------------------

    def _reserve_ids(self) -> None:
        self._wants_ids = True
        self._logs.pending.jobs = True

    def with_producer_ids(
        self,
        begin: Callable[[Now], Answer | Delayed[Answer]],
        failed: Callable[[ApiError], Answer],
        now: Now,
        timeout_ms: int | None = None,
        also: Iterable[Hashable] = (),
    ) -> Answer | Delayed[Answer]:
        """Return `begin(now)`, once at least one producer id is reserved, or `failed` of the error."""
        if self._metadata.producer_ids_left:
            return begin(now)

        def plan(at: Now) -> Planned | Answer:
            if self._metadata.producer_ids_left:
                return begin(at)
            staged = Staged(Change(producer_ids=PRODUCER_ID_BLOCK))
            return Planned(staged, lambda error, then: begin(then) if error is None else failed(error))

        return self.submit((PRODUCER_IDS,), plan, now, timeout_ms, also)

    def store_again(self) -> None:
        """Have the document written even without changes, because the start found no space for it."""
        self._wants_write = True
        self._logs.pending.jobs = True

    # --- the write -----------------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """True if `take` has a job."""
        wants = self._wants_write or self._wants_ids or bool(self._staged)
        return bool(self._to_put_away) or self._running is None and wants

    def take(self) -> list[MetadataJob]:
        """Return the next jobs. The caller runs them in their order, in one thread, and passes each to `back`."""
        jobs: list[MetadataJob] = [*self._to_put_away]
        self._to_put_away.clear()
        if self.is_due:
            jobs.append(self._next_write())
        return jobs

    def _next_write(self) -> WriteMetadata:
        if self._wants_ids and PRODUCER_IDS not in self._keys:
            self._staged.append(Staged(Change(producer_ids=PRODUCER_ID_BLOCK)))
        staged, self._staged, self._wants_ids, self._wants_write = self._staged, [], False, False
        self._keys.clear()
        self._alone = False
        document = self._metadata.document()
        self._running = _Write(staged, document, document.commits)
        return WriteMetadata(partial(self._write, self._running))

    def _write(self, write: _Write) -> None:
        """Store changes and create their logs, in a worker thread. Raise StorageError if nothing was stored."""
        writing = write.staged
        self._save(write, writing)
        first = [(staged, self._logs.first_new(staged.logs)) for staged in writing if staged.logs]
        with suppress(StorageError):  # one wait for the disk; if it fails, the requests that need it fail below
            make_directories(self._logs.storage, (key for _, logs in first for key in logs))
        for staged, logs in first:
            try:
                staged.created = self._logs.create(logs)
            except (StorageError, LogDamaged) as error:
                staged.error = _failed(error)
        if any(staged.error for staged in writing):
            self._take_back(write, writing)

    def _save(self, write: _Write, staged: Iterable[Staged]) -> None:
        self._metadata.save(write.document.changed([change.change for change in staged], write.commits + 1))
        write.commits += 1

    def _take_back(self, write: _Write, writing: Sequence[Staged]) -> None:
        """Store the document without the topics whose logs could not be created. A full disk may have caused that, so
        this write may fail too."""
        try:
            self._save(write, [staged for staged in writing if staged.error is None])
        except StorageError:
            for staged in writing:
                staged.kept = staged.error is not None

    def back(self, job: MetadataJob, error: Exception | None, now: Now) -> None:
        """Take back a job that has ended, and answer the requests that waited for it."""
        try:
            if isinstance(job, PutAway):
                self._put_away(job, error)
            else:
                self._written(error, now)
        finally:
            self._purgatory.touch(_CHANGED, now)

    def _written(self, error: Exception | None, now: Now) -> None:
        assert self._running is not None
        write, self._running = self._running, None
        for staged in write.staged:
            if error is not None:
                staged.error = _failed(error)
            staged.is_done = True
        if error is not None and not isinstance(error, StorageError):
            trace = "".join(format_exception(error))
            self._report(f"a fault of the broker's own, in a write of the metadata:\n{trace}")
        stored = [staged for staged in write.staged if staged.error is None or staged.kept]
        self._metadata.apply([staged.change for staged in stored], write.commits)
        for staged in stored:
            self._applied(staged, now)

    def _applied(self, staged: Staged, now: Now) -> None:
        if staged.kept:
            names = ", ".join(staged.change.topics)
            self._report(f"{names}: half made and could not be taken back: {staged.error}; delete it")
            return
        if staged.logs:
            self._logs.add_new(staged.created, staged.logs)
        put_away = staged.applied(now)
        if put_away is not None:
            self._to_put_away.append(put_away)
            self._logs.pending.jobs = True
            self._busy[put_away] = topic_keys(staged.change.topics)

    def _put_away(self, job: PutAway, error: Exception | None) -> None:
        self._busy.pop(job, None)
        if error is None:
            self._metadata.put_away(job.directories)


class _Waiting:
    """A request that changes the metadata: it waits to begin, then for its change to be stored."""

    def __init__(self, changes: MetadataChanges, keys: Keys, begin: Begin) -> None:
        self._changes = changes
        self._keys = keys
        self._begin = begin
        self._planned: Planned | None = None
        self._then: Delayed[Answer] | None = None

    def try_complete(self, now: Now) -> Answer | None:
        if self._then is not None:
            return self._then.try_complete(now)
        if self._planned is None:
            if not self._changes.may_begin(self._keys):
                return None
            planned = self._begin(now)
            if not isinstance(planned, Planned):
                return self._answered(planned, now)
            self._planned = planned
            self._changes.stage(self._keys, planned.staged)
        staged, answer = self._planned
        return self._answered(answer(staged.error, now), now) if staged.is_done else None

    def _answered(self, answer: Answer | Delayed[Answer], now: Now) -> Answer | None:
        if isinstance(answer, Delayed):
            self._then = answer
            return answer.try_complete(now)
        return answer

    def expire(self, now: Now) -> Answer:
        """Return the answer after the request's time limit."""
        if self._then is not None:
            return self._then.expire(now)
        if self._planned is None:
            planned = self._begin(now)
            if not isinstance(planned, Planned):
                return planned.expire(now) if isinstance(planned, Delayed) else planned
            self._planned = planned
        late = ApiError(ErrorCode.REQUEST_TIMED_OUT, "the disk took longer than the request's time limit")
        return self._planned.answer(late, now)


def _failed(error: Exception) -> ApiError:
    return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
