"""SHELL (threads): several iterators consumed side by side, each in a thread, within a limit on items in flight.

    with SideBySide([lambda: iter(a), lambda: iter(b), lambda: iter(c)], threads=2, in_flight=8) as items:
        for item in items: ...

The items of one iterator keep their order. Items of different iterators come in the order of their arrival.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Stopped(Exception):
    """The reader was closed; a thread raises this to end its work."""


class SideBySide(Iterator[T], Generic[T]):
    """The items of all `jobs`. Each job is called in one of `threads` threads, in the order given.

    At most `in_flight` items wait to be taken; with that many the threads wait. They wait too while the items that
    wait have `bytes_in_flight` or more by `size_of`, and so the thread that reaches this limit makes no further item
    before. The threads start with the first `next`. An exception of a job ends the others and is raised by `next`.
    `on_stop` is called once, by `close`, before the threads are joined; it has to end whatever they wait for. `on_end`
    is called after that.
    """

    def __init__(
        self,
        jobs: Sequence[Callable[[], Iterator[T]]],
        threads: int,
        in_flight: int,
        on_stop: Callable[[], object] = lambda: None,
        on_end: Callable[[], object] = lambda: None,
        *,
        bytes_in_flight: int = 1,
        size_of: Callable[[T], int] = lambda item: 0,
    ) -> None:
        self._jobs = deque(jobs)
        self._jobs_left = len(self._jobs)
        self._in_flight = in_flight
        self._bytes_in_flight = bytes_in_flight
        self._size_of = size_of
        self._waiting_bytes = 0
        self._on_stop = on_stop
        self._on_end = on_end
        self._changed = threading.Condition()
        self._waiting: deque[T] = deque()
        self._error: BaseException | None = None
        self._closed = False
        number = min(threads, len(self._jobs))
        self._unstarted = [
            threading.Thread(target=self._work, name="flakelog-read", daemon=True) for _ in range(number)
        ]
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "SideBySide[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> T:
        while self._unstarted:
            self._threads.append(self._unstarted.pop())
            self._threads[-1].start()
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._error or not self._jobs_left or self._closed)
            error = self._error
            if error is None and self._waiting and not self._closed:
                self._changed.notify_all()
                item = self._waiting.popleft()
                self._waiting_bytes -= self._size_of(item)
                return item
        self.close()
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """Stop the threads and wait for their end. Drop the items that wait."""
        with self._changed:
            first, self._closed = not self._closed, True
            self._waiting.clear()
            self._unstarted.clear()
            self._changed.notify_all()
        if first:
            self._on_stop()
        for thread in self._threads:
            if thread is not threading.current_thread():  # a garbage collection may run in any thread
                thread.join()
        if first:
            self._on_end()

    def _work(self) -> None:
        try:
            while self._jobs and not self._closed:
                with suppress(IndexError):  # another thread took the last one
                    self._run(self._jobs.popleft())
        except Stopped:
            pass
        except BaseException as error:
            with self._changed:
                if self._error is None and not self._closed:
                    self._error = error
                self._changed.notify_all()

    def _run(self, job: Callable[[], Iterator[T]]) -> None:
        items = job()
        with closing(items) if hasattr(items, "close") else suppress():  # type: ignore[type-var]
            for item in items:
                self._put(item)
                del item  # a large one, once taken, is not held while the next one is made
        with self._changed:
            self._jobs_left -= 1
            self._changed.notify_all()

    def _put(self, item: T) -> None:
        with self._changed:
            self._wait_until(lambda: len(self._waiting) < self._in_flight and self._has_room())
            self._waiting.append(item)
            self._waiting_bytes += self._size_of(item)
            del item
            self._changed.notify_all()
            self._wait_until(self._has_room)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._closed or self._error or condition())
        if self._closed or self._error:
            raise Stopped

    def _has_room(self) -> bool:
        return self._waiting_bytes < self._bytes_in_flight
