"""SHELL (a thread, Twisted's Deferred): one thread that does one thing at a time.

Twisted's thread pool passes a job through a dozen calls and locks, and takes the interpreter from the reactor at each
of them. A round of the journal comes every few small requests, and is over before the pool has handed it on.
"""

from collections.abc import Callable
from threading import Lock, Thread
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

Result = TypeVar("Result")


class WorkThread:
    """`start`, `defer` as often as wanted, one at a time, `stop`."""

    def __init__(self, reactor: Any, name: str) -> None:
        self._reactor = reactor
        self._job: tuple[Callable[[], Any], Deferred[Any]] | None = None
        self._nothing_to_do = Lock()
        self._nothing_to_do.acquire()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, once what it was handed last has come back."""
        if self._thread.is_alive():
            self._nothing_to_do.release()
            self._thread.join()

    def defer(self, work: Callable[[], Result]) -> "Deferred[Result]":
        """Call `work` in the thread, when what it was handed before has come back; fires in the reactor's thread with
        what it returns, or fails with what it raises."""
        assert self._job is None, "one thing at a time"
        done: Deferred[Result] = Deferred()
        self._job = work, done
        self._nothing_to_do.release()
        return done

    def _run(self) -> None:
        call, wait = self._reactor.callFromThread, self._nothing_to_do.acquire
        while wait() and (job := self._job) is not None:
            self._job = None
            work, done = job
            try:
                result = work()
            except BaseException as error:  # an end of the thread nobody would see
                call(done.errback, error)
            else:
                call(done.callback, result)
            del job, work, done  # a file must not stay open until the next job comes
