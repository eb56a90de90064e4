"""Changes of the metadata: planned by a handler, carried out by an executor, visible once they are stored.

    handler    submit(keys, begin)   `begin` checks the request against the metadata and returns a Planned change
    executor   stage                 carries the change out, and ends it: `Staged.end`, with its error
    here       ended                 answers the requests, and lets the requests begin that waited

The executor of a server alone writes a file (broker.metadata.file_executor).

Requests that name the same thing (a topic, the quotas) wait for each other, so no request is checked against a change
that may still fail. A change that fails changes nothing: its requests are answered with the error, and the metadata
stays as it was.
"""

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any, NamedTuple, Protocol, TypeAlias

from broker.metadata.change import Change
from broker.metadata.producer_ids import BLOCK, ProducerIds
from broker.metadata.staged import Staged
from broker.now import Now
from broker.waiting.purgatory import Delayed, Purgatory
from broker.wire.errors import ApiError, ErrorCode

Answer: TypeAlias = Any
Keys: TypeAlias = Collection[Hashable] | None
"""The names of the things that a request changes. None stands for anything: no other change goes beside it."""
QUOTAS, CREDENTIALS, PRODUCER_IDS, ACLS = "quotas", "credentials", "producer ids", "access rules"
CHANGED = "a change of the metadata"
"""The purgatory key of all requests that wait for a change."""


class Planned(NamedTuple):
    """A change that may be carried out, and the answer of its request, given the error or None, and the time."""

    staged: Staged
    answer: Callable[[ApiError | None, Now], Answer]


Begin: TypeAlias = Callable[[Now], Planned | Answer]
"""Checks a request. Returns its answer, if it changes nothing. Called once."""


class Executor(Protocol):
    """Carries changes out."""

    on_end: Callable[[Now], None]
    """Called once changes have ended, or may begin again."""
    late_reason: str
    """Why a change is not carried out within the time limit of its request."""

    @property
    def new_partitions(self) -> int:
        """Return the number of logs that the staged changes add to this broker."""

    def may_begin(self, keys: Keys) -> bool:
        """Return True if a request that changes this may be checked now, and its change be staged."""

    def stage(self, keys: Keys, staged: Staged, now: Now) -> None:
        """Carry out a change, now or soon; `may_begin` allows it."""


class MetadataChanges:
    """The requests that change the metadata of a broker."""

    def __init__(self, executor: Executor, producer_ids: ProducerIds, purgatory: Purgatory) -> None:
        self._executor = executor
        self._producer_ids = producer_ids
        self._purgatory = purgatory
        executor.on_end = self._ended

    def submit(
        self, keys: Keys, begin: Begin, now: Now, timeout_ms: int | None = None, also: Iterable[Hashable] = ()
    ) -> Answer | Delayed[Answer]:
        """Plan a request's change, now or after those it must wait for. Return its answer, delayed until the change is
        stored.

        After `timeout_ms`, if given, the answer is that of REQUEST_TIMED_OUT, though the change may still be made. An
        answer may itself be a Delayed, which waits for the purgatory keys `also`.
        """
        waiting = _Waiting(self._executor, keys, begin)
        answer = waiting.try_complete(now)
        if answer is not None:
            return answer
        deadline_ms = None if timeout_ms is None else now.ms + timeout_ms
        return Delayed(
            (CHANGED, *also), deadline_ms, waiting.try_complete, waiting.expire, holds_connection=True
        )

    def _ended(self, now: Now) -> None:
        self._purgatory.touch(CHANGED, now)

    @property
    def new_partitions(self) -> int:
        """Return the number of logs that the changes under way add to this broker."""
        return self._executor.new_partitions

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


class _Waiting:
    """A request that changes the metadata: it waits to begin, then for its change to be stored."""

    def __init__(self, executor: Executor, keys: Keys, begin: Begin) -> None:
        self._executor = executor
        self._keys = keys
        self._begin = begin
        self._planned: Planned | None = None
        self._then: Delayed[Answer] | None = None

    def try_complete(self, now: Now) -> Answer | None:
        if self._then is not None:
            return self._then.try_complete(now)
        if self._planned is None:
            if not self._executor.may_begin(self._keys):
                return None
            planned = self._begin(now)
            if not isinstance(planned, Planned):
                return self._answered(planned, now)
            self._planned = planned
            self._executor.stage(self._keys, planned.staged, now)
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
        late = ApiError(ErrorCode.REQUEST_TIMED_OUT, self._executor.late_reason)
        return self._planned.answer(late, now)
