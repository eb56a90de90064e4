"""SHELL (threads, signals, asyncio, exit of the process): ways to run a topology from a program.

    run(topology)                             # until Ctrl-C or SIGTERM, or until a spout raises; blocks
    running = run_in_background(topology)     # returns at once: running.stop(), running.wait()
    await run_async(topology)                 # beside asyncio: until it is cancelled, or until a spout raises

All three work any number of times in one process, in any thread, and in a notebook. The methods of spouts and bolts are
called in the reactor's thread (spout/reactor_thread.py), so open a connection that belongs to one thread in `open` or
`prepare`. A program that runs Twisted's reactor itself makes a `spout.runner.Runner` instead.
"""

import asyncio
import atexit
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, TypeVar, cast

from twisted.internet.base import ReactorBase
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.client.old_spellings import renamed
from spout import stderr_log
from spout.api import World
from spout.config import TopologyConfig
from spout.figures.model import Snapshot
from spout.reactor_thread import call, ensure_running, runs_here
from spout.runner import FINISH_MS, Runner, RunnerState, installed_reactor
from spout.topology import Topology
from spout.work import Mode, mode_of

T = TypeVar("T")

BLOCKS = (
    "run() blocks, and this is the thread that runs Twisted's reactor: "
    "use spout.runner.Runner(topology).start(), which returns a Deferred, or await run_async(topology)"
)
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Python's default is 700 or 2,000 new objects. More messages than that wait, and the collector would visit each several
# times before it is done: a fifth of the CPU time with 1,000 partitions, and pauses of 50 ms.
GC_OBJECTS = 100_000
FROZEN_SECONDS = 1.0  # beyond the time of a stop: a turn of the engine takes 10 ms, and more on a busy machine
SAME_SIGNAL_SECONDS = 0.3  # timeout(1) and others that pass a signal on send it twice, to the process and to its group

_log = Logger()


class BackgroundRun:
    """A topology that runs in the reactor's thread. Its methods may be called in any other thread.

    When the program ends, the topology is stopped first, as by `stop`.
    """

    def __init__(self, runner: Runner, reactor: ReactorBase) -> None:
        """Start `runner`; call this in the reactor's thread. An exception from `prepare` or `open` is raised here."""
        self.runner = runner
        self._reactor = reactor
        self._ended: Future[None] = Future()
        runner.start().addCallbacks(self._set, self._fail)
        _running.add(self)
        self._ended.add_done_callback(lambda _: _running.discard(self))

    @property
    def ended(self) -> bool:
        """Return True if the topology has stopped or failed."""
        return self._ended.done()

    def stop(self) -> None:
        """Begin to stop: tuples in flight complete and progress is stored. Return at once; `wait` waits for the end."""
        self._reactor.callFromThread(self.runner.stop)

    def pause(self, spout: str | None = None) -> None:
        """Let the spouts emit nothing, all of them or one. Tuples in flight are still processed.

        Raise RuntimeError if the topology does not run, TopologyError if there is no such spout.
        """
        call(self._reactor, partial(self.runner.pause, spout))

    def resume(self, spout: str | None = None) -> None:
        """Let paused spouts emit again, all of them or one; raise as `pause` does."""
        call(self._reactor, partial(self.runner.resume, spout))

    def abort(self) -> None:
        """Stop at once: messages in flight are abandoned, and come again at the next start."""
        _running.discard(self)
        self._reactor.callFromThread(self.runner.abort)

    @renamed(by_position=True, timeout="timeout_ms=, in milliseconds")
    def snapshot(self, *, timeout_ms: int | None = None) -> Snapshot:
        """Return the figures of the topology as they are now.

        Raise Blocked, with the line of code, if a component holds the engine's thread for `timeout_ms` meanwhile.
        """
        return call(self._reactor, self.runner.snapshot, _seconds(timeout_ms))

    def call(self, work: Callable[[Any], T]) -> T:
        """Call `work(reactor)` in the reactor's thread and return its result, or raise its exception."""
        return call(self._reactor, partial(work, self._reactor))

    @renamed(by_position=True, timeout="timeout_ms=, in milliseconds")
    def wait(self, *, timeout_ms: int | None = None) -> None:
        """Block until the topology has ended, and raise the exception of its spout if one ended it.

        Raise TimeoutError if it still runs after `timeout_ms`.
        """
        self._ended.result(_seconds(timeout_ms))

    def future(self) -> "asyncio.Future[None]":
        """Return the end of the run as a future of the asyncio loop that runs in this thread."""
        return asyncio.wrap_future(self._ended)

    def _set(self, _: None) -> None:
        self._ended.set_result(None)

    def _fail(self, failure: Failure) -> None:
        traceback = failure.getTracebackObject()  # type: ignore[no-untyped-call]
        assert failure.value is not None, "Twisted allows none, the runner gives one"
        self._ended.set_exception(failure.value.with_traceback(traceback))


def _seconds(timeout_ms: int | None) -> float | None:
    return None if timeout_ms is None else timeout_ms / 1000


_running: set[BackgroundRun] = set()


@atexit.register
def _stop_all() -> None:
    """Stop the topologies that still run when the program ends."""
    running = list(_running)
    for background_run in running:
        background_run.stop()
    for background_run in running:
        try:
            background_run.wait()
        except BaseException:
            pass  # the runner has logged it


def run(topology: Topology, *, config: TopologyConfig = TopologyConfig(), world: World | None = None) -> None:
    """Run a topology until SIGINT (Ctrl-C) or SIGTERM, then stop it cleanly. Block until it has ended.

    A second signal stops at once: run raises KeyboardInterrupt after SIGINT, SystemExit after SIGTERM, and messages in
    flight come again at the next start. If a component blocks for longer than `flakelog.topology.drain.ms` after the
    first signal, run does the same. If a component raises SystemExit or KeyboardInterrupt, the topology stops as at a
    first signal, and run raises it; the message that the component worked on comes again. Signals are handled if this
    is called in the main thread; in another thread the topology runs until it fails or the program ends. Log to stderr
    unless the program has configured logging. Raise TopologyError if the topology is not valid, the exception of a
    spout, or one from `prepare` or `open`.

    Meanwhile Python's garbage collector runs after 100,000 new objects, and does not visit those that exist at the
    start, unless the program has called `gc.freeze` itself (https://docs.python.org/3/library/gc.html).
    """
    run_until_stopped(topology, config=config, world=world, watch=BackgroundRun.wait)


def run_until_stopped(
    topology: Topology,
    *,
    config: TopologyConfig,
    world: World | None = None,
    watch: Callable[[BackgroundRun], None],
) -> None:
    """Run a topology as `run` does, and call `watch` in this thread meanwhile; return when both have ended."""
    with rare_collections(), _Signals(config.topology_drain_ms) as signals:
        running = run_in_background(topology, config=config, world=world)
        signals.stop(running)
        watch(running)
        running.wait()


def run_in_background(
    topology: Topology, *, config: TopologyConfig = TopologyConfig(), world: World | None = None
) -> BackgroundRun:
    """Start a topology in the reactor's thread and return it. It logs and raises as `run` does at its start."""
    _install_asyncio(topology)
    reactor = installed_reactor()
    if runs_here(reactor):
        raise RuntimeError(BLOCKS)
    stderr_log.attach()
    ensure_running(reactor)
    return call(reactor, lambda: BackgroundRun(Runner(topology, config=config, world=world, reactor=reactor), reactor))


async def run_async(
    topology: Topology, *, config: TopologyConfig = TopologyConfig(), world: World | None = None
) -> None:
    """Run a topology beside a running asyncio loop until it fails, or until this is cancelled; then stop it cleanly.

    The topology runs in the reactor's thread, so a slow bolt does not delay the loop. If the program has installed
    Twisted's AsyncioSelectorReactor and started it on this loop, the topology runs in this thread instead. Exceptions
    are those of `run`. A second cancellation stops at once.
    """
    _install_asyncio(topology)
    reactor = installed_reactor()
    if runs_here(reactor):
        runner = Runner(topology, config=config, world=world, reactor=reactor)
        stderr_log.attach()
        await _until_cancelled(runner.start().asFuture(asyncio.get_running_loop()), runner.stop, runner.abort)
        return
    begin = partial(run_in_background, topology, config=config, world=world)
    loop = asyncio.get_running_loop()
    starting = loop.run_in_executor(None, begin)  # `prepare` of the bolts may take long

    async def live() -> None:
        await (await starting).future()

    def tell(method: str) -> None:
        starting.add_done_callback(lambda done: done.exception() or getattr(done.result(), method)())

    await _until_cancelled(asyncio.ensure_future(live()), partial(tell, "stop"), partial(tell, "abort"))


async def _until_cancelled(
    ended: "asyncio.Future[None]", stop: Callable[[], object], abort: Callable[[], object]
) -> None:
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        if not ended.done():
            stop()
            try:
                await asyncio.shield(ended)
            except asyncio.CancelledError:
                abort()
                raise
        raise


def _install_asyncio(topology: Topology) -> None:
    """Install Twisted's reactor on an asyncio loop if a bolt is asynchronous and no reactor is installed yet.

    Its coroutines can then await what needs an asyncio loop.
    """
    if "twisted.internet.reactor" in sys.modules:
        return
    if any(mode_of(node.make()) is Mode.COROUTINE for node in topology.plan().bolts):
        from twisted.internet import asyncioreactor

        asyncioreactor.install(asyncio.new_event_loop())  # type: ignore[no-untyped-call]


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the garbage collector run rarely, and skip the objects that exist now. Restore its settings at the end.

    Change nothing for a second topology of the process, or in a program that has frozen its objects itself.
    """
    before = gc.get_threshold()
    if gc.get_freeze_count() or not 0 < before[0] < GC_OBJECTS:
        yield
        return
    gc.collect()  # first, because garbage that is frozen stays
    gc.freeze()
    gc.set_threshold(GC_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


class _Signals:
    """Handlers of STOP_SIGNALS while `run` blocks in the main thread; those before are restored."""

    def __init__(self, drain_ms: int) -> None:
        self._drain_seconds = drain_ms / 1000 + FROZEN_SECONDS
        self._has_ended = threading.Event()
        self._running: BackgroundRun | None = None
        self._first_at: float | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "_Signals":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def stop(self, running: BackgroundRun) -> None:
        """Stop `running` at a signal; at once if one has come while it was being started."""
        self._running = running
        if self._first_at is not None:
            running.stop()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._first_at is None:
            self._first_at = time.monotonic()
            text = "{signal}: stopping, which waits for tuples in flight; a second one stops at once"
            installed_reactor().callFromThread(_log.info, text, signal=signal.Signals(number).name)
            if self._running is not None:
                self._running.stop()
            threading.Thread(target=self._watch, args=(number,), name="flakelog-stop", daemon=True).start()
        elif time.monotonic() > self._first_at + SAME_SIGNAL_SECONDS:
            if self._running is not None:
                self._running.abort()
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    def _watch(self, number: int) -> None:
        """Send the signal a second time, in a thread, if the stop takes longer than it may."""
        if self._has_ended.wait(self._drain_seconds):
            return
        if self._running is not None and self._running.runner.state in (RunnerState.FINISHING, RunnerState.STOPPED):
            if self._has_ended.wait(FINISH_MS / 1000):
                return
        _log.error("the topology does not stop, because a component blocks: it is left, and its messages come again")
        signal.pthread_kill(cast(int, threading.main_thread().ident), number)  # wakes the thread, whatever it waits for
