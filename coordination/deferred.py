"""SHELL (Twisted): non-blocking operations on any coordinator, for the reactor thread."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from threading import Event as Flag
from typing import Any, NoReturn, Protocol, TypeVar, cast, runtime_checkable

from twisted.internet.defer import Deferred, fail, inlineCallbacks
from twisted.internet.threads import deferToThread
from twisted.python.failure import Failure

from coordination.port import Asynchronous, ConnectionLost, CoordinationError, Coordinator, Operation, Result
from coordination.reactor import Reactor

GROUP_MAX = 250  # operations of a group, which holds the lock of its directory

T = TypeVar("T")
Execute = Callable[[Operation], "Deferred[Result]"]


@runtime_checkable
class Grouping(Protocol):
    """A coordinator that blocks, and carries out many operations at less cost than one by one."""

    def execute_all(self, operations: Sequence[Operation]) -> list[Result | Exception]:
        """Carry out the operations in order; return the result of each, or its error."""


def executor(coordinator: Coordinator, reactor: Reactor) -> Execute:
    """Return a function that carries out an operation and fires a Deferred with its result in the reactor thread.

    A coordinator that blocks takes a thread of the reactor's pool for each operation. If it can carry out groups, it
    takes one thread: all operations that are asked for in one turn, or while it works, make the next group.
    """
    if isinstance(coordinator, Grouping):
        return _Groups(coordinator, reactor).execute
    if not isinstance(coordinator, Asynchronous):
        return lambda operation: deferToThread(coordinator.execute, operation)
    asynchronous = coordinator

    def execute(operation: Operation) -> "Deferred[Result]":
        answer: Deferred[Result] = Deferred()
        try:
            asynchronous.begin(operation, lambda outcome: reactor.callFromThread(_fire, answer, outcome))
        except CoordinationError as error:
            return fail(error)
        timeout_s = asynchronous.request_timeout_ms / 1000
        return answer.addTimeout(timeout_s, cast(Any, reactor), partial(_timed_out, coordinator.scope))

    return execute


def wake_in_reactor(coordinator: Coordinator, reactor: Reactor, wake: Callable[[], None]) -> None:
    """Call `wake` in the reactor thread when take_events may have something new.

    Wake-ups that come before the reactor has called `wake` are one call.
    """
    waiting = Flag()

    def call() -> None:
        waiting.clear()  # before `wake` takes the events, because later ones need another call
        wake()

    def woken() -> None:
        if not waiting.is_set():
            waiting.set()
            reactor.callFromThread(call)

    coordinator.on_wake(woken)


@inlineCallbacks
def carry_out(procedure: Generator[Operation, Any, T], execute: Execute) -> Generator["Deferred[Any]", Any, T]:
    """Carry out a procedure as coordination.port.run does, but non-blocking; fire with its return value."""
    try:
        operation = next(procedure)
        while True:
            try:
                result = yield execute(operation)
            except CoordinationError as error:
                operation = procedure.throw(error)
            else:
                operation = procedure.send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value


class _Groups:
    """The operations of a coordinator, carried out in one thread at a time.

    The operations of one turn of the reactor share a group, so that a directory syncs them together.
    """

    def __init__(self, coordinator: Grouping, reactor: Reactor) -> None:
        self._coordinator = coordinator
        self._reactor = reactor
        self._waiting: deque[tuple[Operation, Deferred[Result]]] = deque()
        self._works = False

    def execute(self, operation: Operation) -> "Deferred[Result]":
        answer: Deferred[Result] = Deferred()
        self._waiting.append((operation, answer))
        self._begin_soon()
        return answer

    def _begin_soon(self) -> None:
        if self._waiting and not self._works:
            self._works = True
            self._reactor.callLater(0, self._begin)

    def _begin(self) -> None:
        group = [self._waiting.popleft() for _ in range(min(GROUP_MAX, len(self._waiting)))]
        done = deferToThread(self._coordinator.execute_all, [operation for operation, _ in group])
        done.addBoth(self._done, [answer for _, answer in group])

    def _done(self, result: list[Result | Exception] | Failure, answers: "list[Deferred[Result]]") -> None:
        self._works = False
        outcomes = [result] * len(answers) if isinstance(result, Failure) else result
        for answer, outcome in zip(answers, outcomes, strict=True):
            if isinstance(outcome, Exception):
                answer.errback(outcome)
            else:
                answer.callback(outcome)  # a Failure calls the errbacks
        self._begin_soon()


def _fire(answer: "Deferred[Result]", outcome: Result | CoordinationError) -> None:
    if answer.called:
        return  # the operation timed out; its outcome was reported as unknown
    if isinstance(outcome, CoordinationError):
        answer.errback(outcome)
    else:
        answer.callback(outcome)


def _timed_out(scope: str, _: object, seconds: float) -> NoReturn:
    raise ConnectionLost(f"no answer from {scope} in {seconds:g} s")
