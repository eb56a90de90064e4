"""AsyncAdmin without a broker: how it ends."""

import asyncio
from functools import partial
from threading import Event, enumerate

import pytest

from flakelog.async_admin import AsyncAdmin
from tests.patience import SECONDS, until


def test_a_close_that_is_cancelled_leaves_no_thread_and_the_next_one_waits_for_the_end():
    async def closed_twice():
        admin = AsyncAdmin("127.0.0.1:1")
        call = asyncio.ensure_future(admin._run(partial(release.wait, SECONDS)))
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
