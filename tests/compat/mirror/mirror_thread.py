"""A mirror in a thread of the test, which starts much faster than a process of its own."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from broker.client.mirror.mirror import Mirror


class MirrorThread:
    """A mirror from the beginning of a `with` block to its end. What refuses it is raised at the beginning."""

    def __init__(self, settings, names=None):
        self._mirror = Mirror(settings, names)
        self._thread = ThreadPoolExecutor(1)
        self._is_open = Event()

    def __enter__(self):
        self._loop = asyncio.new_event_loop()
        self._end = self._thread.submit(self._loop.run_until_complete, self._run())
        self._end.add_done_callback(lambda _: self._is_open.set())
        self._is_open.wait()
        if self._end.done():
            self._close()
        return self

    def __exit__(self, *_):
        if not self._end.done():
            self._loop.call_soon_threadsafe(self._mirror.stop)
        self._close()

    @property
    def group(self):
        return self._mirror.group

    def figures(self):
        return asyncio.run_coroutine_threadsafe(self._figures(), self._loop).result()

    async def _figures(self):
        return self._mirror.figures()

    async def _run(self):
        await self._mirror.open()
        self._is_open.set()
        await self._mirror.run()

    def _close(self):
        """Raise the error that ended the mirror, if there is one."""
        try:
            self._end.result()
        finally:
            self._thread.shutdown()
            self._loop.close()
