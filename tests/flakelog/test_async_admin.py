"""AsyncAdmin without a broker: its calls at once, and how it ends."""

import asyncio
from threading import Barrier, Event, enumerate

import pytest

from flakelog.async_admin import CALLS_MAX, AsyncAdmin
from tests.patience import SECONDS, until


def test_a_close_that_is_cancelled_leaves_no_thread_and_the_next_one_waits_for_the_end():
    async def closed_twice():
        admin = AsyncAdmin("127.0.0.1:1")
        call = asyncio.ensure_future(admin._run(lambda _: release.wait(SECONDS)))
        await asyncio.sleep(0)
        assert threads()
        closing = asyncio.ensure_future(admin.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        again = asyncio.ensure_future(admin.close())
        await asyncio.sleep(0)
        assert not again.done()
        release.set()
        await asyncio.wait_for(asyncio.gather(call, again), SECONDS)

    def threads():
        return set(enumerate()) - before

    before, release = set(enumerate()), Event()
    with asyncio.Runner() as runner:
        runner.run(closed_twice())
        until(lambda: not threads(), "the end of the thread")


def test_calls_are_carried_out_at_once_each_with_connections_of_its_own():
    """Each call waits until all of them have begun."""
    begun = Barrier(CALLS_MAX, timeout=SECONDS)

    def call(admin):
        begun.wait()
        return admin

    async def called():
        async with AsyncAdmin("127.0.0.1:1") as admin:
            first = await asyncio.gather(*(admin._run(call) for _ in range(CALLS_MAX)))
            later = await asyncio.gather(*(admin._run(call) for _ in range(2 * CALLS_MAX)))
            return first, later

    first, later = asyncio.run(called())
    assert len(set(map(id, first))) == CALLS_MAX and set(map(id, later)) == set(map(id, first))


def test_calls_one_after_the_other_share_their_connections():
    async def called():
        async with AsyncAdmin("127.0.0.1:1") as admin:
            return [await admin._run(lambda own: own) for _ in range(5)]

    assert len(set(map(id, asyncio.run(called())))) == 1
