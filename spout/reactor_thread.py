"""SHELL (threads, Twisted): the thread that runs Twisted's reactor for topologies, one for each process.

Twisted's reactor cannot be started again after it was stopped, and it takes over the thread that runs it. A thread of
its own solves both: it starts with the first topology, stays until the process ends, and serves all topologies. So
`run` works twice, in any thread, in a notebook and beside asyncio. A reactor that the program runs itself is used as
it is.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from traceback import extract_stack
from typing import TypeVar

from twisted.internet.base import ReactorBase
from twisted.internet.error import ReactorNotRestartable
from twisted.logger import Logger
from twisted.python import threadable
from twisted.python.threadable import isInIOThread

CLAIM_SECONDS = 1.0  # until then an exit has gone from its task to the coroutine that awaits it

T = TypeVar("T")

STOPPED = (
    "Twisted's reactor was stopped in this process, and cannot run again: "
    "let Flakelog run it, without reactor.run() and reactor.stop()"
)
FORKED = (
    "this process was forked after its reactor had started, so nothing runs the reactor here: "
    "start processes by spawn, or fork before the first topology runs"
)


class Blocked(Exception):
    """The reactor's thread does not answer, because some code holds it; the text has the line of code."""


_log = Logger("flakelog.topology")
_unclaimed: list[BaseException] = []  # exits that left asyncio's loop, until a component's coroutine gets them
_lock = threading.Lock()
_process: int | None = None  # the process whose reactor thread this module started


def ensure_running(reactor: ReactorBase) -> None:
    """Return when the reactor runs, here or in another thread; start it in a thread of its own if it does not.

    Raise RuntimeError if it was stopped before, or if this process was forked from one that runs it.
    """
    global _process
    with _lock:
        if _process is not None and _process != os.getpid():
            raise RuntimeError(FORKED)
        if reactor.running:
            return
        started: Future[None] = Future()
        threading.Thread(target=_run, args=(reactor, started), name="flakelog-reactor", daemon=True).start()
        started.result()
        _process = os.getpid()


def runs_here(reactor: ReactorBase) -> bool:
    """Return True if this thread runs the reactor."""
    return reactor.running and bool(isInIOThread())  # type: ignore[no-untyped-call]


def call(reactor: ReactorBase, work: Callable[[], T], timeout: float | None = None) -> T:
    """Call `work` in the reactor's thread; return its result or raise its exception. Call this in another thread.

    Raise Blocked if the reactor's thread has not called it after `timeout` seconds.
    """
    outcome: Future[T] = Future()

    def begin() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    reactor.callFromThread(begin)
    if timeout is not None and not wait([outcome], timeout).done:
        raise Blocked(f"the engine's thread has not answered for {timeout:.1f} s: {_where_it_works()}")
    return outcome.result()


def _where_it_works() -> str:
    """Return the line of code that the reactor's thread works on: the innermost outside libraries, if there is one."""
    frame = sys._current_frames().get(threadable.ioThread or 0)
    if frame is None:
        return "it has ended"
    stack = extract_stack(frame)[::-1]
    line = next((line for line in stack if not _is_library(line.filename)), stack[0])
    return f'it is at "{line.filename}", line {line.lineno}, in {line.name}, and nothing else runs meanwhile'


def _is_library(file: str) -> bool:
    return "site-packages" in file or file.startswith((os.path.dirname(os.__file__), "<frozen"))


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
        except (SystemExit, KeyboardInterrupt) as error:
            # asyncio leaves its loop if a task raises one of these. The coroutine that awaits the task gets it next.
            _unclaimed.append(error)
            reactor.callLater(CLAIM_SECONDS, _tell_unclaimed, error)
            run = loops[0].run_forever


def claim(error: BaseException) -> None:
    """Say that a component's coroutine ended with this exception, so that the topology stops because of it."""
    _unclaimed[:] = [other for other in _unclaimed if other is not error]


def _tell_unclaimed(error: BaseException) -> None:
    if any(other is error for other in _unclaimed):
        claim(error)
        text = "{error} ends nothing, because a task or callback raised it that no component awaits"
        _log.error(text, error=type(error).__name__)


def _begin(started: "Future[None]", loops: list[asyncio.AbstractEventLoop]) -> None:
    with suppress(RuntimeError):  # most reactors run on no loop
        loops.append(asyncio.get_running_loop())
    started.set_result(None)
