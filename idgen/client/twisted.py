"""SHELL (Twisted: sockets, timers): a client of id services for programs under a reactor."""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from twisted.internet import defer
from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.error import ConnectError, ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.protocol import Factory, Protocol
from twisted.python.failure import Failure

from idgen.client.core import PREFETCH_MAX_AGE_MS, REQUEST_TIMEOUT_MS, Address, CallExchange, IdRequests
from idgen.client.driver import Lock, PipelinedCalls, PipelinedConnection, Replies
from idgen.client.tls import ClientTls
from idgen.layout import IdParts
from idgen.wire import Reply, ThriftError

_ENDS = (ConnectionDone, ConnectionLost, ConnectionAborted)


class Connection(PipelinedConnection["Deferred[Replies]"], Protocol):
    """A connection to one server."""

    def __init__(self, address: Address, tls: ClientTls | None) -> None:
        super().__init__()
        self._address = address
        self._tls = tls
        self.is_tls = tls is not None

    def connectionMade(self) -> None:
        self.open = True
        cast(Any, self.transport).setTcpNoDelay(True)

    def ask(self, exchange: CallExchange) -> "Deferred[Replies]":
        """Send an exchange and fire with its answers. Fails with ConnectionError, ThriftError; raises TooManyCalls.

        If the Deferred is cancelled, the connection is closed.
        """
        waiting: Deferred[Replies] = Deferred(lambda _: self.abort())
        data = self._pipeline.send(exchange.calls, waiting)
        cast(Any, self.transport).write(data)
        return waiting

    def dataReceived(self, data: bytes) -> None:
        self.received(data)

    def connectionLost(self, reason: Failure = Failure(ConnectionDone())) -> None:  # type: ignore[no-untyped-call]
        if self._tls is not None and not isinstance(reason.value, _ENDS):
            self.lost(self._tls.failure(self._address, cast(Exception, reason.value), in_handshake=False))
        else:
            self.lost()

    def abort(self) -> None:
        self.open = False
        cast(Any, self.transport).abortConnection()

    def _answer(self, waiter: "Deferred[Replies]", outcome: Replies | Exception) -> None:
        if waiter.called:  # it timed out
            return
        if isinstance(outcome, Exception):
            waiter.errback(outcome)
        else:
            waiter.callback(outcome)


class _Lock(DeferredLock):
    """A DeferredLock for any number of waiters, which wakes them after the holder has gone on.

    `DeferredLock.release` calls the next waiter before it returns. So the first holder would send its call last, and a
    thousand waiters that release at once would exceed Python's limit of recursion. Here they are called in a loop.
    """

    def __init__(self, reactor: Any) -> None:
        super().__init__()
        self._reactor = reactor
        self._waking = False

    def release(self) -> None:
        if self.waiting and not self._waking:
            self._reactor.callLater(0, self._wake)  # it stays locked, so that later callers queue behind
        else:
            self.locked = False

    def _wake(self) -> None:
        self._waking, self.locked = True, False
        try:
            while self.waiting and not self.locked:
                self.locked = True
                self.waiting.pop(0).callback(cast(Any, self))
        finally:
            self._waking = False


class _Calls(PipelinedCalls[Connection]):
    """The calls as coroutines that wait for Deferreds."""

    timeouts = (defer.TimeoutError,)
    failures = (OSError, ConnectError, ThriftError)

    def __init__(self, reactor: Any, requests: IdRequests, timeout_ms: int, tls: ClientTls | None) -> None:
        self._reactor = reactor
        self._tls = tls
        super().__init__(requests, self._new_lock(), timeout_ms)

    def _new_lock(self) -> Lock:
        return cast(Lock, _Lock(self._reactor))

    async def _connect(self, address: Address) -> Connection:
        if self._tls is not None:
            secured = Connection(address, self._tls)
            await self._tls.connect(self._reactor, address, secured, self._timeout_ms / 1000)
            return secured
        endpoint = HostnameEndpoint(self._reactor, address.host, address.port, timeout=self._timeout_ms / 1000)
        made = Factory.forProtocol(partial(Connection, address, None))
        return cast(Connection, await endpoint.connect(cast(Any, made)))

    async def _exchange(self, exchange: CallExchange) -> Sequence[Reply]:
        connection = await self._connected(exchange.address)
        return await connection.ask(exchange).addTimeout(self._timeout_ms / 1000, self._reactor)


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
        tls: ClientTls | None = None,
    ) -> None:
        requests = IdRequests(
            servers, user_agent=user_agent, prefetch=prefetch, prefetch_max_age_ms=prefetch_max_age_ms
        )
        self._calls = _Calls(reactor, requests, timeout_ms, tls)

    def get_id(self) -> "Deferred[int]":
        """Return one id."""
        return Deferred.fromCoroutine(self._calls.get_id())

    def get_ids(self, count: int) -> "Deferred[list[int]]":
        """Return `count` ascending ids."""
        return Deferred.fromCoroutine(self._calls.get_ids(count))

    def get_worker_id(self) -> "Deferred[int]":
        """Return the worker field of the service's ids."""
        return Deferred.fromCoroutine(self._calls.get_worker_id())

    def get_datacenter_id(self) -> "Deferred[int]":
        """Return the datacenter field of the service's ids."""
        return Deferred.fromCoroutine(self._calls.get_datacenter_id())

    def get_timestamp(self) -> "Deferred[int]":
        """Return the service's clock, Unix ms."""
        return Deferred.fromCoroutine(self._calls.get_timestamp())

    def id_range(self, start_ms: int, end_ms: int) -> "Deferred[tuple[int, int]]":
        """Return (first, end): the ids of start_ms <= time < end_ms, Unix ms, are those of first <= id < end."""
        return Deferred.fromCoroutine(self._calls.id_range(start_ms, end_ms))

    def decode(self, id: int) -> "Deferred[IdParts]":
        """Return the time, datacenter, worker and sequence of an id, by the service's layout."""
        return Deferred.fromCoroutine(self._calls.decode(id))

    def close(self) -> None:
        """Close the connections; calls in flight fail."""
        self._calls.close()

    def abandon(self, reason: str) -> None:
        """Drop the parent's connections and ids in a forked child, where each call then fails with Fenced."""
        self._calls.abandon(reason)

    def __reduce__(self) -> str:
        return self._calls.__reduce__()
