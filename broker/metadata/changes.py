"""Changes of the metadata: planned by a handler, carried out by the executor, visible once they are stored.

    handler   submit(keys, begin)   `begin` checks the request against the metadata and returns a Planned change
    shell     take -> job           one write of all changes planned since the last one, run in a thread
    engine    back(job)             answers their requests, and lets the requests begin that waited

The executor carries the changes out: on a server alone it writes a file (broker.metadata.file_executor).

One write runs at a time. Requests that come meanwhile begin after it, so that they are checked against what it stored,
and share the next write. Requests that name the same thing (a topic, the quotas) never share a write, so no request is
checked against a change that may still fail. A failed write changes nothing: its requests are answered with the error,
and the metadata stays as it was.
"""

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any, NamedTuple, TypeAlias

from broker.log.io_jobs import MetadataJob, WriteMetadata
from broker.log.storage.port import StorageError
from broker.metadata.change import Change
from broker.metadata.file_executor import FileExecutor
from broker.metadata.producer_ids import BLOCK, ProducerIds
from broker.metadata.staged import Staged
from broker.now import Now
from broker.waiting.pending import Pending
from broker.waiting.purgatory import Delayed, Purgatory
from broker.wire.errors import ApiError, ErrorCode

Answer: TypeAlias = Any
Keys: TypeAlias = Collection[Hashable] | None
"""The names of the things that a request changes. None stands for anything: such a request shares no write."""
QUOTAS, CREDENTIALS, PRODUCER_IDS = "quotas", "credentials", "producer ids"
_CHANGED = "a change of the metadata"
"""The purgatory key of all requests that wait for a write."""


class Planned(NamedTuple):
    """A change that may be written, and the answer of its request, given the error or None, and the time."""

    staged: Staged
    answer: Callable[[ApiError | None, Now], Answer]


Begin: TypeAlias = Callable[[Now], Planned | Answer]
"""Checks a request. Returns its answer, if it changes nothing. Called once."""


class MetadataChanges:
    """The changes of a broker's metadata."""

    def __init__(
        self, executor: FileExecutor, producer_ids: ProducerIds, purgatory: Purgatory, pending: Pending
    ) -> None:
        self._executor = executor
        self._producer_ids = producer_ids
        self._purgatory = purgatory
        self._pending = pending
        self._staged: list[Staged] = []
        """The changes of the next write."""
        self._keys: set[Hashable] = set()
        """The names of the things that the next write changes."""
        self._alone = False
        """True if the next write takes no other change."""
        self._wants_ids = False
        self._wants_write = False
        producer_ids.reserve = self._reserve_ids

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
        if self._executor.is_running or self._alone:
            return False
        if keys is None:
            return not self._staged
        return self._keys.isdisjoint(keys) and self._executor.is_free(keys)

    def stage(self, keys: Keys, staged: Staged) -> None:
        """Add a change to the next write; `may_begin` allows it."""
        self._staged.append(staged)
        self._pending.jobs = True
        self._keys.update(keys or ())
        self._alone = self._alone or keys is None

    def run_now(self, staged: Staged, now: Now) -> None:
        """Make a change at once, in this thread, before requests are served. Raise ApiError if the disk fails."""
        if self._executor.is_running:
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
        self._pending.jobs = True

    def with_producer_ids(
        self,
        begin: Callable[[Now], Answer | Delayed[Answer]],
        failed: Callable[[ApiError], Answer],
        now: Now,
        timeout_ms: int | None = None,
        also: Iterable[Hashable] = (),
    ) -> Answer | Delayed[Answer]:
        """Return `begin(now)`, once at least one producer id is reserved, or `failed` of the error."""
        if self._producer_ids.left:
            return begin(now)

        def plan(at: Now) -> Planned | Answer:
            if self._producer_ids.left:
                return begin(at)
            staged = Staged(Change(producer_ids=BLOCK))
            return Planned(staged, lambda error, then: begin(then) if error is None else failed(error))

        return self.submit((PRODUCER_IDS,), plan, now, timeout_ms, also)

    def store_again(self) -> None:
        """Have the document written even without changes, because the start found no space for it."""
        self._wants_write = True
        self._pending.jobs = True

    # --- the write -----------------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """True if `take` has a job."""
        wants = self._wants_write or self._wants_ids or bool(self._staged)
        return self._executor.has_logs_to_put_away or (wants and not self._executor.is_running)

    def take(self) -> list[MetadataJob]:
        """Return the next jobs. The caller runs them in their order, in one thread, and passes each to `back`."""
        jobs = self._executor.take_logs_to_put_away()
        if self.is_due:
            jobs.append(self._next_write())
        return jobs

    def _next_write(self) -> WriteMetadata:
        if self._wants_ids and PRODUCER_IDS not in self._keys:
            self._staged.append(Staged(Change(producer_ids=BLOCK)))
        staged, self._staged, self._wants_ids, self._wants_write = self._staged, [], False, False
        self._keys.clear()
        self._alone = False
        return self._executor.begin(staged)

    def back(self, job: MetadataJob, error: Exception | None, now: Now) -> None:
        """Take back a job that has ended, and answer the requests that waited for it."""
        try:
            self._executor.back(job, error, now)
        finally:
            self._purgatory.touch(_CHANGED, now)


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
