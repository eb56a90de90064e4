"""SHELL (Twisted, asyncio, threads): coroutines and threads of bolts.

A coroutine may await Deferreds and other coroutines. It may await asyncio's futures too if Twisted's reactor runs on an
asyncio loop, because asyncio's timers and sockets work only while their loop runs.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from queue import Queue
from threading import Thread
from types import coroutine as as_coroutine
from typing import Any, cast

from twisted.internet.asyncioreactor import AsyncioSelectorReactor
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorFromThreads
from twisted.python.failure import Failure

from spout.reactor_thread import claim
from spout.work import EXITS, Done

INSTALL = "from twisted.internet import asyncioreactor; asyncioreactor.install()"


class TwistedBackground:
    """The spout.work.Background of a Twisted reactor. Coroutines that await only Deferreds need no reactor."""

    def __init__(self, reactor: object = None) -> None:
        self._reactor = reactor
        self._running: set[Deferred[Any]] = set()
        self._pools: dict[str, _Pool] = {}

    def run_coroutine(self, name: str, coroutine: Coroutine[Any, Any, object], done: Done) -> Callable[[], None]:
        """Drive a coroutine of the component `name` and call `done` at its end. Return a function that cancels it."""
        loop = self._loop()
        if loop is None:
            running = Deferred.fromCoroutine(self._only_deferreds(name, coroutine))
        else:
            task: asyncio.Task[Any] = loop.create_task(with_deferreds(loop, coroutine))
            running = Deferred.fromFuture(task)
        self._running.add(running)

        def ended(result: object) -> None:
            self._running.discard(running)
            done(_error_of(result) if isinstance(result, Failure) else cast(BaseException | None, result))

        running.addBoth(ended)
        return running.cancel

    def run_in_thread(self, pool: str, threads: int, call: Callable[[], object], done: Done) -> None:
        """Make the call in the pool of that name, which has at most `threads` threads."""
        if pool not in self._pools:
            self._pools[pool] = _Pool(pool, threads, cast(IReactorFromThreads, self._reactor))
        self._pools[pool].run(call, done)

    def close(self) -> None:
        """Cancel the coroutines, and end each thread after its present call."""
        for running in list(self._running):
            running.cancel()
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def _loop(self) -> asyncio.AbstractEventLoop | None:
        return asyncio.get_running_loop() if isinstance(self._reactor, AsyncioSelectorReactor) else None

    @as_coroutine
    def _only_deferreds(
        self, name: str, coroutine: Coroutine[Any, Any, object]
    ) -> Generator["Deferred[Any]", object, None]:
        """Drive a coroutine; raise a TypeError in it where it awaits what needs an asyncio loop."""
        send: Callable[[Any], object] = coroutine.send
        value: object = None
        while True:
            try:
                awaited = send(value)
            except StopIteration:
                return
            except RuntimeError as error:
                if str(error) == "no running event loop":
                    raise self._needs_asyncio(name) from error
                raise
            send = coroutine.send
            if not isinstance(awaited, Deferred):
                send, value = coroutine.throw, self._needs_asyncio(name)
                continue
            try:
                value = yield awaited
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:
                send, value = coroutine.throw, error

    def _needs_asyncio(self, name: str) -> TypeError:
        reactor = type(self._reactor).__name__ if self._reactor is not None else "no reactor"
        return TypeError(
            f"{name!r} awaits an asyncio future, and no asyncio loop runs under {reactor}: begin the program with "
            f"`{INSTALL}`, or await Deferreds"
        )


async def with_deferreds(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, object]
) -> BaseException | None:
    """Await a coroutine that awaits Deferreds beside asyncio's futures.

    Return a SystemExit or KeyboardInterrupt of it, because raised ones end the loop. Raise its other exceptions.
    """
    try:
        await _translated(loop, coroutine)
    except EXITS as error:
        claim(error)
        return error
    return None


@as_coroutine
def _translated(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, object]
) -> Generator[Any, object, None]:
    send: Callable[[Any], object] = coroutine.send
    value: object = None
    while True:
        try:
            awaited = send(value)
        except StopIteration:
            return
        send, value = coroutine.send, None
        try:
            if isinstance(awaited, Deferred):
                yield from _fired(loop, awaited).__await__()
            else:
                value = yield awaited
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:
            if isinstance(awaited, Deferred):
                awaited.cancel()
                awaited.addErrback(lambda failure: None)  # its outcome is of no use to anyone now
            send, value = coroutine.throw, error


def _fired(loop: asyncio.AbstractEventLoop, deferred: "Deferred[Any]") -> "asyncio.Future[None]":
    """Return a future that is done when the Deferred has fired. The result stays in the Deferred."""
    future = loop.create_future()

    def fired(result: object) -> object:
        if not future.done():
            future.set_result(None)
        return result

    deferred.addBoth(fired)
    return future


def _error_of(failure: Failure) -> BaseException:
    error = cast(BaseException, failure.value)
    return error.with_traceback(failure.getTracebackObject())  # type: ignore[no-untyped-call]


class _Pool:
    """The threads of one bolt task. They are daemons, so that a call that hangs does not keep the process alive."""

    def __init__(self, name: str, threads: int, reactor: IReactorFromThreads) -> None:
        self._name = name
        self._limit = threads
        self._reactor = reactor
        self._threads = 0
        self._jobs: Queue[tuple[Callable[[], object], Done] | None] = Queue(2 * threads)  # calls, then an end for each

    def run(self, call: Callable[[], object], done: Done) -> None:
        if self._threads < self._limit:
            self._threads += 1
            Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()
        self._jobs.put_nowait((call, done))

    def close(self) -> None:
        for _ in range(self._threads):
            self._jobs.put_nowait(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            call, done = job
            error: BaseException | None = None
            try:
                call()
            except BaseException as raised:
                error = raised
            self._reactor.callFromThread(done, error)
