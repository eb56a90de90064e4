"""SHELL (a clock, connections): ask an id service for ids from several connections, and measure it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from flakelog.bench.load import Limit
from flakelog.bench.meter import Figures, Meter
from idgen.client.asyncio import AsyncIdClient
from idgen.client.tls import ClientTls

LOOK_SECONDS = 0.25

_now = time.perf_counter


class IdRun:
    """Asks for `batch` ids at a time on each connection, one request outstanding, until the limit."""

    def __init__(
        self,
        servers: Sequence[str],
        batch: int,
        connections: int,
        limit: Limit,
        tell: Callable[[Figures], None],
        tls: ClientTls | None = None,
    ) -> None:
        self._tls = tls
        self._servers, self._batch, self._connections = servers, batch, connections
        self._limit, self._tell = limit, tell
        self._sent = 0
        self._meter = Meter(_now())

    def figures(self) -> Figures:
        """Return the figures until the last answer."""
        return self._meter.total()

    async def run(self, timeout_ms: int) -> None:
        """Ask. Raise IdServiceUnreachable or IdServiceError if a request fails, which ends the others too."""
        with ExitStack() as stack:
            clients = [
                AsyncIdClient(*self._servers, user_agent="bench", timeout_ms=timeout_ms, tls=self._tls)
                for _ in range(self._connections)
            ]
            for client in clients:
                stack.callback(client.close)
            self._meter = Meter(_now())
            progress = asyncio.create_task(self._progress())
            asking = [asyncio.create_task(self._ask(client, _now())) for client in clients]
            try:
                await asyncio.gather(*asking)
            finally:
                for task in (progress, *asking):
                    task.cancel()
                await asyncio.gather(progress, *asking, return_exceptions=True)

    async def _ask(self, client: AsyncIdClient, begun: float) -> None:
        sent = begun
        while not self._limit.is_reached(self._sent, sent - begun):
            batch = self._batch if self._limit.things is None else min(self._batch, self._limit.things - self._sent)
            self._sent += batch
            ids = await client.get_ids(batch)
            now = _now()
            self._meter.count(len(ids), 0, now)
            self._meter.took(now - sent)
            sent = now

    async def _progress(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = _now()
            if self._meter.is_due(now):
                self._tell(self._meter.take_window(now))
