"""The port that drives coroutines, beside asyncio and in real threads."""

import asyncio
import threading
from queue import Queue

import pytest
from twisted.internet.asyncioreactor import AsyncioSelectorReactor
from twisted.internet.defer import Deferred, fail, succeed

from spout.background import TwistedBackground


@pytest.fixture
def on_asyncio():
    """A function that drives a coroutine under asyncioreactor and returns its error, or None."""
    loop = asyncio.new_event_loop()
    reactor = AsyncioSelectorReactor(loop)
    background = TwistedBackground(reactor)

    def drive(coroutine, on_start=lambda cancel: None):
        async def main():
            ended = loop.create_future()
            on_start(background.run_coroutine("bolt", coroutine, ended.set_result))
            return await ended

        return loop.run_until_complete(main())

    yield drive
    background.close()
    reactor.disconnectAll()
    loop.close()


def test_a_coroutine_awaits_asyncio_and_deferreds_under_asyncioreactor(on_asyncio):
    results = []

    async def work():
        later = Deferred()
        asyncio.get_running_loop().call_soon(later.callback, "later")
        results.append(await later)
        await asyncio.sleep(0.001)
        results.append(await succeed("at once"))
        try:
            await fail(KeyError("x"))
        except KeyError as error:
            results.append(error.args[0])
        async with asyncio.timeout(60):
            results.append(await asyncio.gather(asyncio.sleep(0, "a"), asyncio.sleep(0, "b")))

    assert on_asyncio(work()) is None
    assert results == ["later", "at once", "x", ["a", "b"]]


def test_what_a_coroutine_raises_under_asyncioreactor_is_its_end(on_asyncio):
    async def work():
        await asyncio.sleep(0)
        raise KeyError("x")

    assert isinstance(on_asyncio(work()), KeyError)


def test_a_coroutine_that_awaits_a_deferred_under_asyncioreactor_can_be_cancelled(on_asyncio):
    cancelled = []

    async def work():
        await Deferred(lambda deferred: cancelled.append(deferred))

    def cancel_soon(cancel):
        asyncio.get_running_loop().call_later(0.001, cancel)

    assert isinstance(on_asyncio(work(), cancel_soon), asyncio.CancelledError) and len(cancelled) == 1


class OneThread:
    """The part of a reactor that brings calls to its thread: here they wait for the test."""

    def __init__(self):
        self.calls = Queue(100)

    def callFromThread(self, call, *args):
        self.calls.put((call, args))

    def run_one(self):
        call, args = self.calls.get(timeout=60)
        call(*args)


def test_calls_run_in_as_many_threads_as_asked_for_and_their_ends_in_the_reactors():
    reactor, together, ended = OneThread(), threading.Barrier(3), []
    background = TwistedBackground(reactor)

    def call():
        together.wait(60)
        raise KeyError(threading.current_thread().name)

    for _ in range(2):
        background.run_in_thread("bolt[0]", 2, call, lambda error: ended.append((threading.get_ident(), error)))
    together.wait(60)  # both calls have begun
    for _ in range(2):
        reactor.run_one()
    background.close()
    assert {thread for thread, _ in ended} == {threading.get_ident()}
    assert {error.args[0] for _, error in ended} == {"bolt[0]-1", "bolt[0]-2"}
