"""SHELL (a thread, Twisted's Deferred): one thread that runs one job at a time.

Twisted's thread pool passes a job through a dozen calls and locks, and each of them takes the interpreter from the
reactor. A round of the journal comes every few small requests, and is over before the pool has passed it on.
"""

from collections.abc import Callable
from threading import Lock, Thread
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

Result = TypeVar("Result")


class WorkerThread:
    """A worker thread. Call `start`, then `defer` for one job at a time, then `stop`."""

    def __init__(self, reactor: Any, name: str) -> None:
        self._reactor = reactor
        self._job: tuple[Callable[[], Any], Deferred[Any]] | None = None
        self._nothing_to_do = Lock()
        self._nothing_to_do.acquire()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its last job."""
        if self._thread.is_alive():
            self._nothing_to_do.release()
            self._thread.join()

    def defer(self, work: Callable[[], Result]) -> "Deferred[Result]":
        """Call `work` in the thread after the previous job.

        The Deferred fires in the reactor's thread with the result of `work`, or fails with its exception.
        """
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
            except BaseException as error:  # otherwise the thread would end without a report
                call(done.errback, error)
            else:
                call(done.callback, result)
            del job, work, done  # because a file must not stay open until the next job comes
