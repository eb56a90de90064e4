"""SHELL (Twisted): operations carried out without blocking the reactor, on any coordinator."""

from collections.abc import Callable
from typing import Any, NoReturn, cast

from twisted.internet.defer import Deferred, fail
from twisted.internet.threads import deferToThread

from coordination.port import ConnectionLost, CoordinationError, Coordinator, Operation, Result
from coordination.reactor import Reactor

Execute = Callable[[Operation], "Deferred[Result]"]


def executor(coordinator: Coordinator, reactor: Reactor) -> Execute:
    """A function that carries out an operation and answers by a Deferred, in the reactor's thread.

    ZooKeeper's answers come as callbacks; a directory's take a thread of the reactor's pool.
    """
    if not hasattr(coordinator, "begin"):
        return lambda operation: deferToThread(coordinator.execute, operation)
    from coordination.zookeeper import REQUEST_TIMEOUT_MS, ZooKeeperCoordinator

    ensemble = cast(ZooKeeperCoordinator, coordinator)

    def execute(operation: Operation) -> "Deferred[Result]":
        answer: Deferred[Result] = Deferred()
        try:
            ensemble.begin(operation, lambda outcome: reactor.callFromThread(_fire, answer, outcome))
        except CoordinationError as error:
            return fail(error)
        return answer.addTimeout(REQUEST_TIMEOUT_MS / 1000, cast(Any, reactor), _timed_out)

    return execute


def _fire(answer: "Deferred[Result]", outcome: Result | CoordinationError) -> None:
    if answer.called:
        return  # given up on: its outcome was reported as unknown
    if isinstance(outcome, CoordinationError):
        answer.errback(outcome)
    else:
        answer.callback(outcome)


def _timed_out(_: object, seconds: float) -> NoReturn:
    raise ConnectionLost(f"no answer in {seconds:g} s")
