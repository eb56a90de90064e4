"""SHELL (Twisted): non-blocking operations on any coordinator, for the reactor thread."""

from collections.abc import Callable, Generator
from typing import Any, NoReturn, Protocol, TypeVar, cast, runtime_checkable

from twisted.internet.defer import Deferred, fail, inlineCallbacks
from twisted.internet.threads import deferToThread

from coordination.port import ConnectionLost, CoordinationError, Coordinator, Operation, Result
from coordination.reactor import Reactor

T = TypeVar("T")
Execute = Callable[[Operation], "Deferred[Result]"]


@runtime_checkable
class Asynchronous(Protocol):
    """A coordinator that answers by callback in its own thread, as ZooKeeper's does."""

    request_timeout_ms: int

    def begin(self, operation: Operation, done: Callable[[Result | CoordinationError], object]) -> None:
        """Send the operation; `done` is called with the result or the error."""


def executor(coordinator: Coordinator, reactor: Reactor) -> Execute:
    """Return a function that carries out an operation and fires a Deferred with its result in the reactor thread.

    A coordinator that only blocks, such as a directory, takes a thread of the reactor's pool for each operation.
    """
    if not isinstance(coordinator, Asynchronous):
        return lambda operation: deferToThread(coordinator.execute, operation)
    asynchronous = coordinator

    def execute(operation: Operation) -> "Deferred[Result]":
        answer: Deferred[Result] = Deferred()
        try:
            asynchronous.begin(operation, lambda outcome: reactor.callFromThread(_fire, answer, outcome))
        except CoordinationError as error:
            return fail(error)
        return answer.addTimeout(asynchronous.request_timeout_ms / 1000, cast(Any, reactor), _timed_out)

    return execute


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


def _fire(answer: "Deferred[Result]", outcome: Result | CoordinationError) -> None:
    if answer.called:
        return  # the operation timed out; its outcome was reported as unknown
    if isinstance(outcome, CoordinationError):
        answer.errback(outcome)
    else:
        answer.callback(outcome)


def _timed_out(_: object, seconds: float) -> NoReturn:
    raise ConnectionLost(f"no answer in {seconds:g} s")
