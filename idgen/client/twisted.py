"""SHELL (Twisted: sockets, timers): a client of id services for programs under a reactor."""

from collections.abc import Generator
from typing import Any, Generic, TypeVar, cast

from twisted.internet.defer import Deferred, TimeoutError, inlineCallbacks
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.error import ConnectError, ConnectionDone
from twisted.internet.protocol import Factory, Protocol
from twisted.python.failure import Failure

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


class Connection(Protocol):
    """A connection to one server; several exchanges may be in flight on it."""

    def __init__(self) -> None:
        self.open = False
        self._pipeline: Pipeline[Deferred[Replies]] = Pipeline()

    def connectionMade(self) -> None:
        self.open = True
        cast(Any, self.transport).setTcpNoDelay(True)

    def ask(self, exchange: Exchange) -> "Deferred[Replies]":
        """Send an exchange and fire with its answers. Fails with ConnectionError, ThriftError; raises TooManyCalls."""
        waiting: Deferred[Replies] = Deferred(lambda _: self.abort())
        data = self._pipeline.send(exchange.calls, waiting)
        cast(Any, self.transport).write(data)
        return waiting

    def dataReceived(self, data: bytes) -> None:
        try:
            for waiting, replies in self._pipeline.receive(data):
                if not waiting.called:  # skip an exchange that timed out
                    waiting.callback(replies)
        except ThriftError as error:
            self._fail(error)
            self.abort()

    def connectionLost(self, reason: Failure = Failure(ConnectionDone())) -> None:  # type: ignore[no-untyped-call]
        self.open = False
        self._fail(ConnectionError("it closed the connection"))

    def abort(self) -> None:
        """Close the connection at once, so that every exchange in flight on it fails."""
        self.open = False
        cast(Any, self.transport).abortConnection()

    def _fail(self, error: Exception) -> None:
        for waiting in self._pipeline.take_waiting():
            if not waiting.called:
                waiting.errback(error)


class Once(Generic[T]):
    """Work that several callers want and one of them starts. All get its result, in the order in which they came."""

    def __init__(self) -> None:
        self.under_way = False
        self._waiting: list[Deferred[T]] = []

    def do(self, work: "Deferred[T]") -> "Deferred[T]":
        self.under_way = True
        first = self.wait()
        work.addBoth(self._done)
        return first

    def wait(self) -> "Deferred[T]":
        waiting: Deferred[T] = Deferred()
        self._waiting.append(waiting)
        return waiting

    def _done(self, result: T | Failure) -> None:
        self.under_way = False
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.called:
                each.callback(cast(T, result))  # with a Failure this fails the Deferred


class TwistedIdClient:
    """The Twisted version of `IdClient`: Deferreds, and one connection per server with several calls in flight.

    A forked child also has its parent's reactor, so every call in the child fails with Fenced: make a new client there.
    """

    def __init__(
        self,
        reactor: Any,
        *servers: str,
        user_agent: str = "flakelog",
        timeout_ms: int = REQUEST_TIMEOUT_MS,
        prefetch: int = 0,
        prefetch_max_age_ms: int = PREFETCH_MAX_AGE_MS,
    ) -> None:
        self._requests = IdRequests(
            servers, user_agent=user_agent, prefetch=prefetch, prefetch_max_age_ms=prefetch_max_age_ms
        )
        self._reactor = reactor
        self._timeout_s = timeout_ms / 1000
        self._clock = IdClock()
        self._connections: dict[Address, Connection] = {}
        self._connecting: dict[Address, Once[Connection]] = {}
        self._filling: Once[int] = Once()  # callers that find the buffer empty share one fetch
        self._abandoned: str | None = None
        fork.guard(self)

    @inlineCallbacks
    def get_id(self) -> Generator["Deferred[Any]", Any, int]:
        """Return one id."""
        if not self._requests.prefetch:
            return cast(int, (yield self._run(self._requests.get_id(self._clock.now_ms()))))
        self._check()
        while (id := self._requests.buffer.take(self._clock.now_ms())) is None:
            if not self._filling.under_way:
                fetched = self._run(self._requests.get_id(self._clock.now_ms()))
                return cast(int, (yield self._filling.do(fetched)))
            yield self._filling.wait()
            self._check()
        return id

    def get_ids(self, count: int) -> "Deferred[list[int]]":
        """Return `count` ascending ids."""
        return self._run(self._requests.get_ids(count, self._clock.now_ms()))

    def get_worker_id(self) -> "Deferred[int]":
        """Return the worker field of the service's ids."""
        return self._run(self._requests.number("get_worker_id", self._clock.now_ms()))

    def get_datacenter_id(self) -> "Deferred[int]":
        """Return the datacenter field of the service's ids."""
        return self._run(self._requests.number("get_datacenter_id", self._clock.now_ms()))

    def get_timestamp(self) -> "Deferred[int]":
        """Return the service's clock, Unix ms."""
        return self._run(self._requests.number("get_timestamp", self._clock.now_ms()))

    def id_range(self, start_ms: int, end_ms: int) -> "Deferred[tuple[int, int]]":
        """Return (first, end): the ids of start_ms <= time < end_ms, Unix ms, are those of first <= id < end."""
        return self._run(self._requests.id_range(start_ms, end_ms, self._clock.now_ms()))

    def decode(self, id: int) -> "Deferred[IdParts]":
        """Return the time, datacenter, worker and sequence of an id, by the service's layout."""
        return self._run(self._requests.decode(id, self._clock.now_ms()))

    def close(self) -> None:
        """Close the connections; calls in flight fail."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.abort()
        self._requests.buffer.clear()

    def abandon(self, reason: str) -> None:
        """Drop the parent's connections and ids in a forked child, where each call then fails with Fenced."""
        self._abandoned = reason
        self._connections = {}
        self._requests.buffer.clear()

    def __reduce__(self) -> str:
        raise TypeError("a client cannot be pickled or copied: it has connections; make another one")

    def _check(self) -> None:
        fork.check()
        if self._abandoned is not None:
            raise Fenced("this process was forked from its client's; make a client of its own after the fork")

    @inlineCallbacks
    def _run(self, operation: Operation[T]) -> Generator["Deferred[Any]", Any, T]:
        self._check()
        try:
            exchange = next(operation)
            while True:
                outcome = yield self._carry(exchange)
                self._check()  # if this process was forked meanwhile, its parent receives the same answer
                exchange = operation.send(outcome)
        except StopIteration as done:
            return cast(T, done.value)

    @inlineCallbacks
    def _carry(self, exchange: Exchange) -> Generator["Deferred[Any]", Any, Outcome]:
        kept = self._open(exchange.address) is not None
        try:
            connection = yield self._connected(exchange.address)
            replies = yield connection.ask(exchange).addTimeout(self._timeout_s, self._reactor)
        except TimeoutError:
            problem = f"no answer in {self._timeout_s * 1000:.0f} ms"
            return Outcome(self._clock.now_ms(), None, problem)
        except (OSError, ConnectError, ThriftError) as error:
            return Outcome(self._clock.now_ms(), None, str(error) or type(error).__name__, kept)
        return Outcome(self._clock.now_ms(), replies)

    def _open(self, address: Address) -> Connection | None:
        connection = self._connections.get(address)
        return connection if connection is not None and connection.open else None

    @inlineCallbacks
    def _connected(self, address: Address) -> Generator["Deferred[Any]", Any, Connection]:
        connecting = self._connecting.setdefault(address, Once())
        while (connection := self._open(address)) is None:
            if not connecting.under_way:
                endpoint = HostnameEndpoint(self._reactor, address.host, address.port, timeout=self._timeout_s)
                made = cast("Deferred[Connection]", endpoint.connect(cast(Any, Factory.forProtocol(Connection))))
                made.addCallback(self._keep, address)
                return cast(Connection, (yield connecting.do(made)))
            yield connecting.wait()
        return connection

    def _keep(self, connection: Connection, address: Address) -> Connection:
        self._connections[address] = connection
        return connection
