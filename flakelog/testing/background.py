"""Asynchronous and blocking bolts in the test driver, without threads, and with the driver's simulated clock.

`await asyncio.sleep(1)` in a bolt ends when the driver has advanced by a second. Nothing waits for sockets, so a test
gives its bolts stand-ins for remote services.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import Context
from heapq import heappop, heappush
from math import ceil
from typing import Any, TypeVar, TypeVarTuple

from spout.background import with_deferreds
from spout.work import Done

Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")


class SimulatedBackground:
    """The spout.work.Background of a test. Its coroutines run on an asyncio loop whose time is the driver's.

    They may await asyncio's futures and Twisted's Deferreds. The calls of threads are made at once.
    """

    def __init__(self) -> None:
        self._loop: _SimulatedLoop | None = None  # made for the first coroutine, because a loop has open files
        self._tasks: set[asyncio.Task[BaseException | None]] = set()

    def run_coroutine(self, name: str, coroutine: Coroutine[Any, Any, object], done: Done) -> Callable[[], None]:
        """Start a coroutine, which `step` drives. Return a function that cancels it."""
        if self._loop is None:
            self._loop = _SimulatedLoop()
        task = self._loop.create_task(with_deferreds(self._loop, coroutine))
        self._tasks.add(task)

        def ended(task: "asyncio.Task[BaseException | None]") -> None:
            self._tasks.discard(task)
            coroutine.close()  # if it was cancelled before it began
            done(asyncio.CancelledError() if task.cancelled() else task.exception() or task.result())

        task.add_done_callback(ended)

        def cancel() -> None:
            task.cancel()

        return cancel

    def run_in_thread(self, pool: str, threads: int, call: Callable[[], object], done: Done) -> None:
        """Make the call now."""
        error: BaseException | None = None
        try:
            call()
        except BaseException as raised:
            error = raised
        done(error)

    def step(self, now_ms: int) -> bool:
        """Drive the coroutines until all of them wait. Return True if one of them did something."""
        return self._loop is not None and self._loop.drive(now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return when the next timer of a coroutine is due, or None."""
        return None if self._loop is None else self._loop.next_deadline_ms()

    def close(self) -> None:
        """Cancel the coroutines that still run."""
        for task in list(self._tasks):
            task.cancel()
        if self._loop is not None:
            self._loop.drive(self._loop.now_ms)
            self._loop.close()
            self._loop = None

    def __del__(self) -> None:
        with suppress(RuntimeError):  # the test abandoned its driver, perhaps inside another loop
            self.close()


class _SimulatedLoop(asyncio.SelectorEventLoop):
    """A loop that runs what is ready, and never waits. Its timers are due at whole milliseconds of `now_ms`."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._calls = 0  # callbacks that became ready since the last round
        self._timers: list[tuple[int, int, asyncio.TimerHandle]] = []
        super().__init__()

    def drive(self, now_ms: int) -> bool:
        """Run callbacks until none is ready. Return True if there was one."""
        self.now_ms = now_ms
        worked = False
        while self._pop_due() or self._calls:
            self._calls = 0
            super().call_soon(self.stop)
            self.run_forever()  # one round, because `stop` is ready
            worked = True
        return worked

    def next_deadline_ms(self) -> int | None:
        while self._timers and self._timers[0][2].cancelled():
            heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def time(self) -> float:
        return self.now_ms / 1000

    def call_soon(
        self, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        self._calls += 1
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.TimerHandle:
        due_ms = ceil(when * 1000 - 1e-6)
        timer = super().call_at(due_ms / 1000, callback, *args, context=context)
        heappush(self._timers, (due_ms, id(timer), timer))
        return timer

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Arguments], T], *args: *Arguments
    ) -> "asyncio.Future[T]":
        """Call the function now; asyncio.to_thread comes here."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except BaseException as error:
            future.set_exception(error)
        return future

    def _pop_due(self) -> bool:
        """Forget the timers that are due, which the next round runs. Return True if there was one."""
        popped = False
        while self._timers and self._timers[0][0] <= self.now_ms:
            popped |= not heappop(self._timers)[2].cancelled()
        return popped
