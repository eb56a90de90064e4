"""SHELL (a thread, Twisted's Deferred): one thread that does what it is handed, in order.

Twisted's thread pool passes a job through a dozen calls and locks, and takes the interpreter from the reactor at each
of them. A round of the journal comes every few small requests, and is over before the pool has handed it on.
"""

import queue
from collections.abc import Callable
from threading import Thread
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

Result = TypeVar("Result")


class WorkThread:
    """`start`, `defer` as often as wanted, `stop`."""

    def __init__(self, reactor: Any, name: str) -> None:
        self._reactor = reactor
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Deferred[Any]] | None] = queue.SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Wait until all is done that it was handed."""
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def defer(self, work: Callable[[], Result]) -> "Deferred[Result]":
        """Call `work` in the thread; fires in the reactor's with what it returns, or fails with what it raises."""
        done: Deferred[Result] = Deferred()
        self._jobs.put((work, done))
        return done

    def _run(self) -> None:
        call = self._reactor.callFromThread
        while (job := self._jobs.get()) is not None:
            work, done = job
            try:
                result = work()
            except Exception as error:
                call(done.errback, error)
            else:
                call(done.callback, result)
            del job, work, done  # a file must not stay open until the next job comes
