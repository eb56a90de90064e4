"""The life of a server process: it starts, serves and stops. What its start took is released in one order."""

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, inlineCallbacks, maybeDeferred, succeed
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

Report = Callable[[str], None]


class StartError(Exception):
    """The reason why the server does not start, in one line."""


class StoppedWhileStarting(StartError):
    """The start ended because the server was told to stop."""

    def __init__(self) -> None:
        super().__init__("it was told to stop while it started")


class Stage(IntEnum):
    """The order in which things are released. It differs from the order in which a start takes them.

    No new work comes first, then the end of the work under way, then the things that the work needed: the broker's
    threads end before the logs are closed, and connections are closed before they could be refused ids. The
    session of a cluster ends after the logs (rule S6): a broker that still writes is not dead.
    """

    TIMERS = 0
    ID_PORTS = 1
    ID_CONNECTIONS = 2
    LEADERSHIP = 3
    BROKER = 4
    HANDSHAKES = 5
    WORKER_NUMBERS = 6
    REGISTRY = 7
    LOGS = 8
    SESSION = 9
    DIRECTORY = 10


class Lifecycle:
    """The state of one process, and the functions that release what its start took."""

    def __init__(self, reactor: Any, report: Report, grace_ms: int) -> None:
        self._reactor = reactor
        self._report = report
        self._grace_ms = grace_ms
        self._grace: Deferred[None] = succeed(None)
        self._started = False
        self._stopped = False
        self._taken: list[tuple[Stage, Callable[[], object]]] = []

    @property
    def stopped(self) -> bool:
        """True once the process was told to stop, or its start failed."""
        return self._stopped

    @property
    def serving(self) -> bool:
        """True if the server has started and was not told to stop."""
        return self._started and not self._stopped

    def take(self, stage: Stage, release: Callable[[], object]) -> None:
        """Have `release` called at the stop; it may return a Deferred.

        If the process was stopped, release at once and raise StoppedWhileStarting.
        """
        if self._stopped:
            release()
            raise StoppedWhileStarting
        self._taken.append((stage, release))

    def begin_serving(self) -> None:
        """Note the end of the start."""
        self._started = True

    @inlineCallbacks
    def stop(self) -> Any:
        """Release everything, so that the next start has nothing to recover. A second call does nothing.

        If flakelog.shutdown.grace.ms is set, a started server first reports that it is not ready, and serves for that
        time. A release that fails leaves out no other; the first failure is raised at the end. Begin and end of the
        stop of a started server are reported, so that a log tells a stop from a kill.
        """
        if self._stopped:
            return
        self._stopped = True
        if self._started and self._grace_ms:
            self._report(
                f"told to stop: not ready any more, serving {self._grace_ms} ms on (flakelog.shutdown.grace.ms)"
            )
            self._grace = deferLater(self._reactor, self._grace_ms / 1000)
            try:
                yield self._grace
            except CancelledError:
                pass  # asked to stop again
        elif self._started:
            self._report("told to stop")
        failures = []
        for _, release in sorted(self._taken, key=lambda taken: taken[0]):
            try:
                yield maybeDeferred(release)
            except Exception:
                failures.append(Failure())  # type: ignore[no-untyped-call]
        self._taken.clear()
        if failures:
            failures[0].raiseException()
        if self._started:
            self._report("stopped")

    def end_grace(self) -> None:
        """End the grace period, because a second request to stop came; the rest of the stop is unchanged."""
        if not self._grace.called:
            self._report("told to stop again: the grace ends now")
            self._grace.cancel()
