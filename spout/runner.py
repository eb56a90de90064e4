"""SHELL (Twisted reactor, clock, chance): the embedded engine, which runs a topology inside this process.

It shares the reactor: it works for a few milliseconds at a time and sleeps until the next deadline or answer.

    runner = Runner(topology)
    runner.start()              # a Deferred: fires when stopped, fails when the topology crashed
    runner.stop()               # lets tuples in flight complete, stores progress, closes

    run(topology)               # the same for a program that does nothing else: until SIGINT or SIGTERM
"""

import time
from collections.abc import Callable
from enum import Enum
from functools import partial
from random import Random
from typing import cast
from uuid import uuid4

from twisted.internet.base import DelayedCall, ReactorBase
from twisted.internet.defer import Deferred
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure

from spout.api import Report, World
from spout.config import TopologyConfig
from spout.executor import Executor
from spout.topology import Topology
from spout.world import TwistedWorld

SLICE_MS = 10  # longest delay of the reactor's other work, plus one execute
SLEEP_MAX_MS = 60_000  # longest sleep with nothing due: a check each minute costs nothing
FINISH_MS = 10_000  # longest wait for the last commit at a stop: longer than a coordinator's own time limits


class State(Enum):
    """The states of a runner, in this order."""

    NEW = "new"
    RUNNING = "running"
    DRAINING = "draining"  # spouts no longer emit, tuples in flight complete
    FINISHING = "finishing"  # progress is stored
    STOPPED = "stopped"


class Runner:
    """A single run of a topology. Raise TopologyError if the topology is not valid."""

    log = Logger()

    def __init__(
        self,
        topology: Topology,
        *,
        config: TopologyConfig = TopologyConfig(),
        world: World | None = None,
        reactor: ReactorBase | None = None,
    ) -> None:
        self._reactor = reactor if reactor is not None else _installed_reactor()
        self._config = config
        self.state = State.NEW
        self.executor = Executor(
            topology.plan(),
            config,
            world if world is not None else TwistedWorld(self._reactor),
            run_id=uuid4().hex,
            random_bits=partial(Random().getrandbits, 64),  # seeded by the system: edges need randomness, not secrecy
            wake=self._wake,
            report=self._report,
        )
        self._call: DelayedCall | None = None
        self._until_ms = 0
        self._done: Deferred[None] = Deferred()
        self._stopped: list[Deferred[None]] = []

    def start(self) -> "Deferred[None]":
        """Start the run. The Deferred fires when the topology has stopped, or fails with the exception of a spout.

        An exception from `prepare` or `open` is raised here.
        """
        if self.state is not State.NEW:
            raise RuntimeError(f"this runner is {self.state.value}: a run begins once, make another Runner")
        self.state = State.RUNNING
        self.executor.start(_now_ms())
        self._schedule(0)
        return self._done

    def stop(self) -> "Deferred[None]":
        """Stop the run. The Deferred fires when progress is stored and all is closed, even if the run failed."""
        stopped: Deferred[None] = Deferred()
        if self.state in (State.NEW, State.STOPPED):
            stopped.callback(None)
            return stopped
        self._stopped.append(stopped)
        if self.state is State.RUNNING:
            self.state = State.DRAINING
            self._until_ms = _now_ms() + self._config.topology_drain_ms
            self._guarded(lambda: self.executor.deactivate(_now_ms()))
            self._wake()
        return stopped

    # --- internals

    def _turn(self) -> None:
        self._call = None
        self._guarded(self._work)

    def _work(self) -> None:
        now_ms = _now_ms()
        end_ms = now_ms + SLICE_MS
        worked = True
        while worked and now_ms < end_ms:
            worked = self.executor.step(now_ms)
            now_ms = _now_ms()
        if self.state is not State.RUNNING:
            self._wind_up(now_ms)
        if self.state is not State.STOPPED and self._call is None:
            self._schedule(0 if worked else self._sleep_ms(now_ms))

    def _sleep_ms(self, now_ms: int) -> int:
        due_ms = self.executor.next_deadline_ms()
        if self.state is not State.RUNNING:
            due_ms = self._until_ms if due_ms is None else min(due_ms, self._until_ms)
        return SLEEP_MAX_MS if due_ms is None else min(SLEEP_MAX_MS, max(0, due_ms - now_ms))

    def _wind_up(self, now_ms: int) -> None:
        overdue = now_ms >= self._until_ms
        if self.state is State.DRAINING and (overdue or not self.executor.in_flight):
            if overdue:
                self.log.warn("{n} tuples still in flight: they will come again", n=self.executor.in_flight)
            self.state = State.FINISHING
            self._until_ms = now_ms + FINISH_MS
            self.executor.finish(now_ms)
            self._schedule(0)
        elif self.state is State.FINISHING and (overdue or self.executor.idle):
            if overdue:
                self.log.warn("progress could not be stored: what it covers will come again")
            self._end(None)

    def _end(self, failure: Failure | None) -> None:
        self.state = State.STOPPED
        if self._call is not None:
            self._call.cancel()
            self._call = None
        try:
            self.executor.close(_now_ms())
        except Exception:
            failure = failure or Failure()  # type: ignore[no-untyped-call]
        stopped, self._stopped = self._stopped, []
        if failure is None:
            self._done.callback(None)
        else:
            self._done.errback(failure)
        for waiting in stopped:
            waiting.callback(None)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            if self.state is not State.STOPPED:
                self._end(Failure())  # type: ignore[no-untyped-call]

    def _schedule(self, in_ms: int) -> None:
        if self._call is not None:
            self._call.cancel()
        self._call = self._reactor.callLater(in_ms / 1000, self._turn)

    def _wake(self) -> None:
        """Schedule a turn at once because an answer has arrived; the current turn may already process it."""
        if self.state is not State.STOPPED:
            self._schedule(0)

    def _report(self, report: Report) -> None:
        level = LogLevel.levelWithName(report.level)
        self.log.emit(level, "{task}: {text}", task=report.task, text=report.traceback or report.text)


def run(topology: Topology, *, config: TopologyConfig = TopologyConfig(), world: World | None = None) -> None:
    """Run a topology until SIGINT or SIGTERM, then stop it cleanly. Blocks. Raises the exception of a spout."""
    reactor = _installed_reactor()
    runner = Runner(topology, config=config, world=world, reactor=reactor)
    failures: list[Failure] = []

    def ended(failure: Failure | None) -> None:
        if failure is not None:
            failures.append(failure)
        if reactor.running:
            reactor.stop()

    runner.start().addCallbacks(ended, ended)
    reactor.addSystemEventTrigger("before", "shutdown", runner.stop)
    reactor.run()
    if failures:
        failures[0].raiseException()


def _installed_reactor() -> ReactorBase:
    from twisted.internet import reactor

    return cast(ReactorBase, reactor)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
