"""The driver of every client of id services: its calls are coroutines, which carry the core's exchanges.

    IdCalls           the calls, the prefetch buffer, and the way from an operation to its exchanges
      PipelinedCalls  one connection a server, with several calls in flight: for asyncio and Twisted

A shell adds what touches the world: it makes connections and locks, and waits for answers with a time limit. asyncio's
client is made of these coroutines, Twisted's client turns each into a Deferred, and the blocking client's coroutines
never wait, so that it runs each in one step.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from idgen import fork
from idgen.client.core import NO_ANSWER, Address, CallExchange, IdRequests, Operation, Outcome, Pipeline
from idgen.clock import IdClock
from idgen.errors import Fenced
from idgen.layout import IdParts
from idgen.wire import Reply, ThriftError

T = TypeVar("T")
Waiter = TypeVar("Waiter")
Replies = list[Reply]
Lock = AbstractAsyncContextManager[Any]


class IdCalls(ABC):
    """The calls of a client. Callers that find the prefetch buffer empty share one fetch, under the lock `filling`."""

    def __init__(self, requests: IdRequests, filling: Lock) -> None:
        self._requests = requests
        self._clock = IdClock()
        self._filling = filling

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
        """Return `count` ascending ids. A large count is split into several calls in flight at once."""
        return await self._run(self._requests.get_ids(count, self._clock.now_ms()))

    async def get_worker_id(self) -> int:
        """Return the worker field of the service's ids (5 bits by default)."""
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

    @abstractmethod
    def close(self) -> None:
        """Close the connections and drop the prefetched ids."""

    @abstractmethod
    def _check(self) -> None:
        """Raise Fenced if this process may not use the client."""

    @abstractmethod
    async def _carry(self, exchange: CallExchange) -> Outcome:
        """Send an exchange, wait for its answers, and return them or the problem."""

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


class PipelinedConnection(ABC, Generic[Waiter]):
    """A connection to one server; several exchanges may be in flight on it. A shell's protocol calls `received`."""

    is_tls = False

    def __init__(self) -> None:
        self.open = False
        self._pipeline: Pipeline[Waiter] = Pipeline()

    def received(self, data: bytes) -> None:
        """Give each exchange that `data` completes its answers; fail all if an answer does not match."""
        try:
            for waiter, replies in self._pipeline.receive(data):
                self._answer(waiter, replies)
        except ThriftError as error:
            self._fail(error)
            self.abort()

    def lost(self, reason: Exception | None = None) -> None:
        """Fail the exchanges in flight, because the connection has ended; `reason` is why, if more is known."""
        self.open = False
        hinted = self._pipeline.with_hint("it closed the connection", is_tls=self.is_tls)
        self._fail(reason or ConnectionError(hinted))

    def _fail(self, error: Exception) -> None:
        for waiter in self._pipeline.take_waiting():
            self._answer(waiter, error)

    @abstractmethod
    def abort(self) -> None:
        """Close the connection at once, so that every exchange in flight on it fails."""

    @abstractmethod
    def _answer(self, waiter: Waiter, outcome: Replies | Exception) -> None:
        """Wake the waiter with the answers or the error, unless its call was cancelled."""


Connection = TypeVar("Connection", bound=PipelinedConnection[Any])


class Peer(Generic[Connection]):
    """A server: its last connection, and its attempts to connect, one at a time."""

    def __init__(self, connecting: Lock) -> None:
        self.connecting = connecting
        self.connection: Connection | None = None
        self.attempts = 0
        self.failure: Exception | None = None
        """The error of the last attempt, if it failed."""

    @property
    def open_connection(self) -> Connection | None:
        return self.connection if self.connection is not None and self.connection.open else None


class PipelinedCalls(IdCalls, Generic[Connection]):
    """The calls of a client that keeps one connection a server, and belongs to an event loop.

    A forked child also has its parent's loop, so every call in the child raises Fenced.
    """

    timeouts: tuple[type[Exception], ...] = (TimeoutError,)
    """The exceptions of `_exchange` that mean that no answer came in time."""
    failures: tuple[type[Exception], ...] = (OSError, ThriftError)
    """The exceptions of `_exchange` that mean another failure of the server or the connection."""

    def __init__(self, requests: IdRequests, filling: Lock, timeout_ms: int) -> None:
        super().__init__(requests, filling)
        self._timeout_ms = timeout_ms
        self._peers: dict[Address, Peer[Connection]] = {}
        self._abandoned = False
        fork.guard(self)

    @abstractmethod
    def _new_lock(self) -> Lock: ...

    @abstractmethod
    async def _connect(self, address: Address) -> Connection: ...

    @abstractmethod
    async def _exchange(self, exchange: CallExchange) -> Sequence[Reply]:
        """Return the answers within the time limit; raise one of `timeouts` or `failures`."""

    def close(self) -> None:
        """Close the connections; calls in flight fail."""
        for peer in self._peers.values():
            if (connection := peer.open_connection) is not None:
                connection.abort()
        self._requests.buffer.clear()

    def abandon(self, reason: str) -> None:
        """Drop the parent's connections and ids in a forked child, where each call then fails with Fenced."""
        self._abandoned = True
        self._peers = {}
        self._requests.buffer.clear()

    def __reduce__(self) -> str:
        raise TypeError("a client cannot be pickled or copied: it has connections; make another one")

    def _check(self) -> None:
        fork.check()
        if self._abandoned:
            raise Fenced("this process was forked from its client's; make a client of its own after the fork")

    async def _carry(self, exchange: CallExchange) -> Outcome:
        reused = self._peer(exchange.address).open_connection is not None
        try:
            replies = await self._exchange(exchange)
        except self.timeouts:
            return Outcome(self._clock.now_ms(), None, f"{NO_ANSWER}{self._timeout_ms:.0f} ms")
        except self.failures as error:
            return Outcome(self._clock.now_ms(), None, str(error) or type(error).__name__, reused)
        return Outcome(self._clock.now_ms(), replies)

    def _peer(self, address: Address) -> Peer[Connection]:
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = Peer(self._new_lock())
        return peer

    async def _connected(self, address: Address) -> Connection:
        """Return the open connection to a server, or make it. Calls that wait for one attempt share its failure."""
        peer = self._peer(address)
        if (connection := peer.open_connection) is not None:
            return connection
        attempts = peer.attempts
        async with peer.connecting:
            if (connection := peer.open_connection) is not None:
                return connection
            if peer.attempts != attempts and peer.failure is not None:
                raise peer.failure
            peer.failure = None
            try:
                peer.connection = await self._connect(address)
            except self.failures as error:
                peer.failure = error
                raise
            finally:
                peer.attempts += 1
            return peer.connection
