"""SHELL (asyncio: sockets, timers): a client of id services for programs under asyncio."""

import asyncio
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Self, cast

from idgen.client.core import PREFETCH_MAX_AGE_MS, REQUEST_TIMEOUT_MS, Address, CallExchange, IdRequests
from idgen.client.driver import Lock, PipelinedCalls, PipelinedConnection, Replies
from idgen.client.tls import ClientTls
from idgen.wire import Reply


class Connection(PipelinedConnection["asyncio.Future[Replies]"], asyncio.Protocol):
    """A connection to one server."""

    def __init__(self, address: Address, tls: ClientTls | None) -> None:
        super().__init__()
        self._address = address
        self._tls = tls
        self.is_tls = tls is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # asyncio sets TCP_NODELAY itself
        self.open = True

    async def ask(self, exchange: CallExchange) -> Replies:
        """Send an exchange and return its answers. A cancelled exchange keeps its place in the order of answers.

        Raises ConnectionError, ThriftError, TooManyCalls.
        """
        waiting: asyncio.Future[Replies] = asyncio.get_running_loop().create_future()
        self._transport.write(self._pipeline.send(exchange.calls, waiting))
        return await waiting

    def data_received(self, data: bytes) -> None:
        self.received(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._tls is not None and error is not None and not isinstance(error, ConnectionError):
            self.lost(self._tls.failure(self._address, error, in_handshake=False))
        else:
            self.lost()

    def abort(self) -> None:
        self.open = False
        self._transport.abort()

    def _answer(self, waiter: "asyncio.Future[Replies]", outcome: Replies | Exception) -> None:
        if waiter.done():
            return
        if isinstance(outcome, Exception):
            waiter.set_exception(outcome)
        else:
            waiter.set_result(outcome)


class AsyncIdClient(PipelinedCalls[Connection]):
    """The asyncio version of `IdClient`: one connection per server, with several calls in flight.

        async with AsyncIdClient("ids1:7609", "ids2:7609", prefetch=100) as client:
            id = await client.get_id()

    A client belongs to the event loop that first uses it. A forked child also has its parent's loop, so every call in
    the child raises Fenced: make a new client there.
    """

    def __init__(
        self,
        *servers: str,
        user_agent: str = "flakelog",
        timeout_ms: int = REQUEST_TIMEOUT_MS,
        prefetch: int = 0,
        prefetch_max_age_ms: int = PREFETCH_MAX_AGE_MS,
        tls: ClientTls | None = None,
    ) -> None:
        requests = IdRequests(
            servers, user_agent=user_agent, prefetch=prefetch, prefetch_max_age_ms=prefetch_max_age_ms
        )
        super().__init__(requests, asyncio.Lock(), timeout_ms)
        self._tls = tls

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def _new_lock(self) -> Lock:
        return asyncio.Lock()

    async def _connect(self, address: Address) -> Connection:
        tls, loop = self._tls, asyncio.get_running_loop()
        made = partial(Connection, address, tls)
        if tls is None:
            _, connection = await loop.create_connection(made, address.host, address.port)
            return connection
        try:
            _, connection = await loop.create_connection(
                made, address.host, address.port, ssl=tls.context(), ssl_handshake_timeout=self._timeout_ms / 1000
            )
            return connection
        except (OSError, ValueError) as error:
            raise tls.failure(address, error, in_handshake=True) from error

    async def _exchange(self, exchange: CallExchange) -> Sequence[Reply]:
        connection = None
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                connection = await self._connected(exchange.address)
                return await connection.ask(exchange)
        except TimeoutError:
            if connection is not None:
                connection.abort()  # no call waits for a late answer
            raise
