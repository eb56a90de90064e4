"""SHELL (asyncio: sockets, timers): a client of id services for programs under asyncio."""

import asyncio
from types import TracebackType
from typing import Self, TypeVar, cast

from idgen import fork
from idgen.client.core import (
    PREFETCH_MAX_AGE_MS,
    REQUEST_TIMEOUT_MS,
    Address,
    Exchange,
    IdRequests,
    Operation,
    Outcome,
    Pipeline,
)
from idgen.clock import IdClock
from idgen.errors import Fenced
from idgen.layout import IdParts
from idgen.wire import Reply, ThriftError

T = TypeVar("T")
Replies = list[Reply]


class Connection(asyncio.Protocol):
    """A connection to one server; several exchanges may be in flight on it."""

    def __init__(self) -> None:
        self.open = False
        self._pipeline: Pipeline[asyncio.Future[Replies]] = Pipeline()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # asyncio sets TCP_NODELAY itself
        self.open = True

    async def ask(self, exchange: Exchange) -> Replies:
        """Send an exchange and return its answers. A cancelled exchange keeps its place in the order of answers.

        Raises ConnectionError, ThriftError, TooManyCalls.
        """
        waiting: asyncio.Future[Replies] = asyncio.get_running_loop().create_future()
        self._transport.write(self._pipeline.send(exchange.calls, waiting))
        return await waiting

    def data_received(self, data: bytes) -> None:
        try:
            for waiting, replies in self._pipeline.receive(data):
                if not waiting.done():
                    waiting.set_result(replies)
        except ThriftError as error:
            self._fail(error)
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        self._fail(ConnectionError("it closed the connection"))

    def abort(self) -> None:
        self.open = False
        self._transport.abort()

    def _fail(self, error: Exception) -> None:
        for waiting in self._pipeline.take_waiting():
            if not waiting.done():
                waiting.set_exception(error)


class AsyncIdClient:
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
    ) -> None:
        self._requests = IdRequests(
            servers, user_agent=user_agent, prefetch=prefetch, prefetch_max_age_ms=prefetch_max_age_ms
        )
        self._timeout_s = timeout_ms / 1000
        self._clock = IdClock()
        self._connections: dict[Address, Connection] = {}
        self._connecting = asyncio.Lock()
        self._filling = asyncio.Lock()  # callers that find the buffer empty share one fetch
        self._abandoned: str | None = None
        fork.guard(self)

    async def get_id(self) -> int:
        """Return one id."""
        if not self._requests.prefetch:
            return await self._run(self._requests.get_id(self._clock.now_ms()))
        self._check()
        id = self._requests.buffer.take(self._clock.now_ms())
        if id is not None:
            return id
        async with self._filling:
            return await self._run(self._requests.get_id(self._clock.now_ms()))

    async def get_ids(self, count: int) -> list[int]:
        """Return `count` ascending ids."""
        return await self._run(self._requests.get_ids(count, self._clock.now_ms()))

    async def get_worker_id(self) -> int:
        """Return the worker field of the service's ids."""
        return await self._run(self._requests.number("get_worker_id", self._clock.now_ms()))

    async def get_datacenter_id(self) -> int:
        """Return the datacenter field of the service's ids."""
        return await self._run(self._requests.number("get_datacenter_id", self._clock.now_ms()))

    async def get_timestamp(self) -> int:
        """Return the service's clock, Unix ms."""
        return await self._run(self._requests.number("get_timestamp", self._clock.now_ms()))

    async def id_range(self, start_ms: int, end_ms: int) -> tuple[int, int]:
        """Return (first, end): the ids of start_ms <= time < end_ms, Unix ms, are those of first <= id < end."""
        return await self._run(self._requests.id_range(start_ms, end_ms, self._clock.now_ms()))

    async def decode(self, id: int) -> IdParts:
        """Return the time, datacenter, worker and sequence of an id, by the service's layout."""
        return await self._run(self._requests.decode(id, self._clock.now_ms()))

    def close(self) -> None:
        """Close the connections; calls in flight fail."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.abort()
        self._requests.buffer.clear()

    def abandon(self, reason: str) -> None:
        """Drop the parent's connections and ids in a forked child, where each call then raises Fenced."""
        self._abandoned = reason
        self._connections = {}
        self._requests.buffer.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> str:
        raise TypeError("a client cannot be pickled or copied: it has connections; make another one")

    def _check(self) -> None:
        fork.check()
        if self._abandoned is not None:
            raise Fenced("this process was forked from its client's; make a client of its own after the fork")

    async def _run(self, operation: Operation[T]) -> T:
        self._check()
        try:
            exchange = next(operation)
            while True:
                outcome = await self._carry(exchange)
                self._check()  # if this process was forked meanwhile, its parent receives the same answer
                exchange = operation.send(outcome)
        except StopIteration as done:
            value: T = done.value
            return value

    async def _carry(self, exchange: Exchange) -> Outcome:
        kept = self._open(exchange.address) is not None
        connection = None
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._connected(exchange.address)
                replies = await connection.ask(exchange)
        except TimeoutError:
            if connection is not None:
                connection.abort()  # no call waits for a late answer
            return Outcome(self._clock.now_ms(), None, f"no answer in {self._timeout_s * 1000:.0f} ms")
        except (OSError, ThriftError) as error:
            return Outcome(self._clock.now_ms(), None, str(error) or type(error).__name__, kept)
        return Outcome(self._clock.now_ms(), replies)

    def _open(self, address: Address) -> Connection | None:
        connection = self._connections.get(address)
        return connection if connection is not None and connection.open else None

    async def _connected(self, address: Address) -> Connection:
        connection = self._open(address)
        if connection is not None:
            return connection
        async with self._connecting:
            connection = self._open(address)
            if connection is None:
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_connection(Connection, address.host, address.port)
                self._connections[address] = connection
            return connection
