"""SHELL (Twisted reactor, clock, chance): the embedded engine, which runs a topology inside this process.

It shares the reactor: it works for a few milliseconds at a time and sleeps until the next deadline or answer.

    runner = Runner(topology)
    runner.start()              # a Deferred: fires when stopped, fails when the topology crashed, or at sys.exit in it
    runner.stop()               # lets tuples in flight complete, stores progress, closes

This is for a program that runs Twisted's reactor. spout/run.py has `run`, `run_in_background` and `run_async` for all
others.
"""

import os
import time
from collections.abc import Callable
from enum import Enum
from functools import partial
from random import Random
from socket import gethostname
from typing import cast
from uuid import uuid4

from twisted.internet.base import DelayedCall, ReactorBase
from twisted.internet.defer import Deferred
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure

from spout.api import Report, Spout, World
from spout.background import TwistedBackground
from spout.config import TopologyConfig
from spout.error_text import traceback_of
from spout.executor import Executor
from spout.figures.collect import snapshot
from spout.figures.model import Snapshot
from spout.figures.publisher import Publishing
from spout.log_spout import clusters_read
from spout.run_log import Line, RunLog
from spout.topology import Topology
from spout.work import EXITS
from spout.world import TwistedWorld

SLICE_MS = 10  # longest delay of the reactor's other work, plus one execute
SLEEP_MAX_MS = 60_000  # longest sleep with nothing due: a check each minute costs nothing
FINISH_MS = 10_000  # longest wait for the last commit at a stop: longer than a coordinator's own time limits


class RunnerState(Enum):
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
        self._reactor = reactor if reactor is not None else installed_reactor()
        self._config = config
        self._log = RunLog()
        self._publishing = Publishing({}, self.snapshot, self._reactor)
        self._started_ms = 0
        self.state = RunnerState.NEW
        self.executor = Executor(
            topology.plan(),
            config,
            world if world is not None else TwistedWorld(self._reactor),
            run_id=f"{gethostname()}-{os.getpid()}-{uuid4().hex[:12]}",  # see offset_document.process_of
            random_bits=partial(Random().getrandbits, 64),  # seeded by the system: edges need randomness, not secrecy
            wake=self._wake,
            report=self._report,
            background=TwistedBackground(self._reactor),
            clock_ns=time.monotonic_ns,
        )
        self._call: DelayedCall | None = None
        self._until_ms = 0
        self._done: Deferred[None] = Deferred()
        self._stopped: list[Deferred[None]] = []

    def start(self) -> "Deferred[None]":
        """Start the run. The Deferred fires when the topology has stopped, or fails with the exception of a spout.

        It also fails with the SystemExit or KeyboardInterrupt of a component, after a stop that is otherwise clean. An
        exception from `prepare` or `open` is raised here.
        """
        if self.state is not RunnerState.NEW:
            raise RuntimeError(f"this runner is {self.state.value}: a run begins once, make another Runner")
        self.state = RunnerState.RUNNING
        self._started_ms = _now_ms()
        self.log.info("{text}", text=f"topology {self.executor.plan.name!r} starts: {_components(self.executor)}")
        try:
            self.executor.start(self._started_ms)
        except BaseException:
            self.state = RunnerState.STOPPED
            raise
        self._schedule(0)
        self._publish()
        return self._done

    def stop(self) -> "Deferred[None]":
        """Stop the run. The Deferred fires when progress is stored and all is closed, even if the run failed."""
        stopped: Deferred[None] = Deferred()
        if self.state in (RunnerState.NEW, RunnerState.STOPPED):
            stopped.callback(None)
            return stopped
        self._stopped.append(stopped)
        if self.state is RunnerState.RUNNING:
            self._guarded(self._drain)
            self._wake()
        return stopped

    def pause(self, spout: str | None = None) -> None:
        """Let the spouts emit nothing, all of them or one. Tuples in flight are still processed.

        Raise RuntimeError if the topology does not run, TopologyError if there is no such spout.
        """
        self._check_running("pause")
        self.executor.deactivate(_now_ms(), spout)
        self._wake()

    def resume(self, spout: str | None = None) -> None:
        """Let paused spouts emit again, all of them or one; raise as `pause` does."""
        self._check_running("resume")
        self.executor.activate(_now_ms(), spout)
        self._wake()

    def abort(self) -> None:
        """Stop at once: close everything without a further commit. Messages in flight come again at the next start."""
        if self.state not in (RunnerState.NEW, RunnerState.STOPPED):
            self._end(None)

    def snapshot(self) -> Snapshot:
        """Return the figures of the topology as they are now."""
        at_ms, now_ms = time.time_ns() // 1_000_000, _now_ms()
        started_ms = at_ms - (now_ms - self._started_ms) if self._started_ms else at_ms
        return snapshot(self.executor, state=self.state.value, started_ms=started_ms, at_ms=at_ms, now_ms=now_ms)

    # --- internals

    def _check_running(self, verb: str) -> None:
        if self.state is not RunnerState.RUNNING:
            raise RuntimeError(f"this runner is {self.state.value}: only a running topology can {verb}")

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
        if self.executor.exit is not None and self.state is RunnerState.RUNNING:
            self._drain()
        if self.state is not RunnerState.RUNNING:
            self._wind_up(now_ms)
        for line in self._log.due(now_ms):
            self._write(line)
        if self.state is not RunnerState.STOPPED and self._call is None:
            self._schedule(0 if worked else self._sleep_ms(now_ms))

    def _sleep_ms(self, now_ms: int) -> int:
        times = [self.executor.next_deadline_ms(), self._log.next_deadline_ms()]
        if self.state is not RunnerState.RUNNING:
            times.append(self._until_ms)
        due_ms = min((at_ms for at_ms in times if at_ms is not None), default=now_ms + SLEEP_MAX_MS)
        return min(SLEEP_MAX_MS, max(0, due_ms - now_ms))

    def _drain(self) -> None:
        now_ms = _now_ms()
        self.state = RunnerState.DRAINING
        self._until_ms = now_ms + self._config.topology_drain_ms
        self.executor.deactivate(now_ms)

    def _wind_up(self, now_ms: int) -> None:
        overdue = now_ms >= self._until_ms
        if self.state is RunnerState.DRAINING and (overdue or not self.executor.in_flight):
            if overdue:
                text = "{n} tuples are still in flight after {ms} ms: they come again at the next start"
                self.log.warn(text, n=self.executor.in_flight, ms=self._config.topology_drain_ms)
            self.state = RunnerState.FINISHING
            self._until_ms = now_ms + FINISH_MS
            self.executor.finish(now_ms)
            self._publishing.stop(self._wake)
            self._schedule(0)
        elif self.state is RunnerState.FINISHING and (overdue or (self.executor.idle and self._publishing.idle)):
            if overdue and not self.executor.idle:
                self.log.warn("progress could not be stored: the messages it covers come again at the next start")
            self._end(None)

    def _end(self, failure: Failure | None) -> None:
        self.state = RunnerState.STOPPED
        if self._call is not None:
            self._call.cancel()
            self._call = None
        self._publishing.abandon()
        try:
            self.executor.close(_now_ms())
        except BaseException:
            failure = failure or Failure()  # type: ignore[no-untyped-call]
        self._tell_end(failure)
        stopped, self._stopped = self._stopped, []
        if failure is None and self.executor.exit is not None:
            failure = Failure(self.executor.exit)  # type: ignore[no-untyped-call]
        if failure is None:
            self._done.callback(None)
        else:
            self._done.errback(failure)
        for waiting in stopped:
            waiting.callback(None)

    def _publish(self) -> None:
        """Publish figures at each cluster that a spout reads, unless the world has no network."""
        if not self._config.topology_publish or type(self.executor.world) is not TwistedWorld:
            return
        spouts = [spout for node in self.executor.plan.spouts for spout in self.executor.instances_of(node.name)]
        self._publishing = Publishing(clusters_read(spouts), self.snapshot, self._reactor)
        self._publishing.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException:  # the reactor would write it to the log and go on, and nothing would come after it
            if self.state is not RunnerState.STOPPED:
                self._end(Failure())  # type: ignore[no-untyped-call]

    def _schedule(self, in_ms: int) -> None:
        if self._call is not None:
            self._call.cancel()
        self._call = self._reactor.callLater(in_ms / 1000, self._turn)

    def _wake(self) -> None:
        """Schedule a turn at once because an answer has arrived; the current turn may already process it."""
        if self.state is not RunnerState.STOPPED:
            self._schedule(0)

    def _report(self, report: Report) -> None:
        line = self._log.line(report, _now_ms())
        if line is not None:
            self._write(line)

    def _write(self, line: Line) -> None:
        more = "\n" + line.traceback.rstrip() if line.traceback else ""
        level = LogLevel.levelWithName(line.level)
        self.log.emit(level, "{text}{more}", text=line.text, more=more, traceback=line.traceback, facts=line.facts)

    def _tell_end(self, failure: Failure | None) -> None:
        now_ms = _now_ms()
        for line in self._log.end(now_ms):
            self._write(line)
        seconds = (now_ms - self._started_ms) / 1000
        facts = totals(self.executor)
        counts = ", ".join(f"{number:,} {name}" for name, number in facts.items())
        clean = failure is None or isinstance(failure.value, EXITS)
        end = "stopped" if clean else "failed"
        text = f"topology {self.executor.plan.name!r} {end} after {seconds:.1f} s: {counts}"
        if failure is None or clean:
            self.log.info("{text}", text=text, facts=facts)
            return
        self._write(Line("error", text, traceback_of(cast(BaseException, failure.value)), facts))


def totals(executor: Executor) -> dict[str, int]:
    """Return the counts of all spout tasks together: tuples emitted, acked, failed, and of these timed out."""
    names = ("emitted", "acked", "failed", "timed_out")
    spouts = [counts for node in executor.plan.spouts for counts in executor.counts()[node.name]]
    return {name.replace("_", " "): sum(getattr(counts, name) for counts in spouts) for name in names}


def _components(executor: Executor) -> str:
    """Return the plan in words: spouts with what they read, and bolts, each with its number of tasks."""
    components = []
    for node in executor.plan.nodes:
        instances = executor.instances_of(node.name)
        tasks = f" x{len(instances)}" if len(instances) > 1 else ""
        kind = "spout" if isinstance(instances[0], Spout) else "bolt"
        described = f" ({instances[0].described})" if instances[0].described else ""
        components.append(f"{kind} {node.name}{tasks}{described}")
    return "; ".join(components)


def installed_reactor() -> ReactorBase:
    """Return Twisted's reactor; the first call in a process installs it, unless the program has."""
    from twisted.internet import reactor

    return cast(ReactorBase, reactor)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
