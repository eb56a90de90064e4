"""SHELL (threads, Twisted): the thread that runs Twisted's reactor for topologies, one for each process.

Twisted's reactor cannot be started again after it was stopped, and it takes over the thread that runs it. A thread of
its own solves both: it starts with the first topology, stays until the process ends, and serves all topologies. So
`run` works twice, in any thread, in a notebook and beside asyncio. A reactor that the program runs itself is used as
it is.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from os import getpid
from typing import TypeVar

from twisted.internet.base import ReactorBase
from twisted.internet.error import ReactorNotRestartable
from twisted.python.threadable import isInIOThread

T = TypeVar("T")

STOPPED = (
    "Twisted's reactor was stopped in this process, and cannot run again: "
    "let Flakelog run it, without reactor.run() and reactor.stop()"
)
FORKED = (
    "this process was forked after its reactor had started, so nothing runs the reactor here: "
    "start processes by spawn, or fork before the first topology runs"
)

_lock = threading.Lock()
_process: int | None = None  # the process whose reactor thread this module started


def ensure_running(reactor: ReactorBase) -> None:
    """Return when the reactor runs, here or in another thread; start it in a thread of its own if it does not.

    Raise RuntimeError if it was stopped before, or if this process was forked from one that runs it.
    """
    global _process
    with _lock:
        if _process is not None and _process != getpid():
            raise RuntimeError(FORKED)
        if reactor.running:
            return
        started: Future[None] = Future()
        threading.Thread(target=_run, args=(reactor, started), name="flakelog-reactor", daemon=True).start()
        started.result()
        _process = getpid()


def runs_here(reactor: ReactorBase) -> bool:
    """Return True if this thread runs the reactor."""
    return reactor.running and bool(isInIOThread())  # type: ignore[no-untyped-call]


def call(reactor: ReactorBase, work: Callable[[], T]) -> T:
    """Call `work` in the reactor's thread; return its result or raise its exception. Call this in another thread."""
    outcome: Future[T] = Future()

    def begin() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    reactor.callFromThread(begin)
    return outcome.result()


def _run(reactor: ReactorBase, started: "Future[None]") -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    reactor.callLater(0, _begin, started, loops)  # not callWhenRunning, which is before the loop
    # The threads of the reactor's pool must not keep the process from ending after a second Ctrl-C.
    reactor.getThreadPool().threadFactory = partial(threading.Thread, daemon=True)  # type: ignore[assignment]
    run: Callable[[], None] = partial(reactor.run, installSignalHandlers=False)
    while True:
        try:
            run()
            return
        except ReactorNotRestartable:
            started.set_exception(RuntimeError(STOPPED))
            return
        except (SystemExit, KeyboardInterrupt):
            # asyncio leaves its loop if a task raises one of these. The coroutine that awaits the task gets it next.
            run = loops[0].run_forever


def _begin(started: "Future[None]", loops: list[asyncio.AbstractEventLoop]) -> None:
    with suppress(RuntimeError):  # most reactors run on no loop
        loops.append(asyncio.get_running_loop())
    started.set_result(None)
