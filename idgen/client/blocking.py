"""SHELL (sockets, locks, a clock): a blocking client of id services."""

import socket
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from idgen import fork
from idgen.client.core import (
    NO_ANSWER,
    PREFETCH_MAX_AGE_MS,
    REQUEST_TIMEOUT_MS,
    Address,
    CallExchange,
    IdRequests,
    Outcome,
    Pipeline,
)
from idgen.client.driver import IdCalls
from idgen.client.tls import ClientTls, TlsFailure
from idgen.layout import IdParts
from idgen.wire import Reply, ThriftError

P = ParamSpec("P")
T = TypeVar("T")
READ_BYTES = 1 << 18


class _Calls(IdCalls):
    """The calls as coroutines that never wait, because the sockets block. One thread at a time may run them."""

    def __init__(self, requests: IdRequests, timeout_ms: int, tls: ClientTls | None) -> None:
        super().__init__(requests, nullcontext())
        self._tls = tls
        self._timeout_s = timeout_ms / 1000
        self._socket: socket.socket | None = None
        self._peer: Address | None = None
        self._pipeline: Pipeline[None] = Pipeline()

    def close(self) -> None:
        self._disconnect()
        self._requests.buffer.clear()

    def _check(self) -> None:
        """A forked child makes a connection of its own."""

    async def _carry(self, exchange: CallExchange) -> Outcome:
        reused = self._peer == exchange.address
        try:
            replies = self._ask(exchange)
        except (OSError, ThriftError) as error:
            stale = reused and not isinstance(error, TimeoutError)
            problem = self._problem(exchange.address, error)
            self._disconnect()
            return Outcome(self._clock.now_ms(), None, problem, stale)
        except BaseException:  # from a signal handler, say: the next call would read the rest of this answer
            self._disconnect()
            raise
        return Outcome(self._clock.now_ms(), replies)

    def _problem(self, address: Address, error: Exception) -> str:
        if isinstance(error, TlsFailure):
            return str(error)
        if isinstance(error, TimeoutError) and error.errno is None:  # of Python, whose text is "timed out"
            return f"{NO_ANSWER}{self._timeout_s * 1000:.0f} ms"
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, ConnectionError):
            return self._pipeline.with_hint(reason, is_tls=self._tls is not None)
        return reason if self._tls is None else str(self._tls.failure(address, error, in_handshake=False))

    def _ask(self, exchange: CallExchange) -> list[Reply]:
        deadline = time.monotonic() + self._timeout_s
        connection = self._connected(exchange.address)
        connection.settimeout(self._timeout_s)
        self._send(connection, self._pipeline.send(exchange.calls, None))
        while True:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError
            connection.settimeout(remaining_s)
            data = connection.recv(READ_BYTES)
            if not data:
                raise ConnectionError("it closed the connection")
            for _, replies in self._pipeline.receive(data):
                return replies

    def _send(self, connection: socket.socket, data: bytes) -> None:
        """Send bytes. In TLS 1.3 a server refuses a certificate after the handshake, so its alert may wait here."""
        try:
            connection.sendall(data)
        except TimeoutError:
            raise
        except OSError:
            if self._tls is not None:
                connection.recv(1)  # raises the alert, which says why
            raise

    def _connected(self, address: Address) -> socket.socket:
        if self._socket is None or self._peer != address:
            self._disconnect()
            connection = socket.create_connection(address, timeout=self._timeout_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = connection if self._tls is None else self._secured(self._tls, connection, address)
            self._peer = address
            self._pipeline = Pipeline()
        return self._socket

    def _secured(self, tls: ClientTls, connection: socket.socket, address: Address) -> socket.socket:
        """Return the connection once it speaks TLS. Raise TlsFailure, and close it."""
        try:
            return tls.context().wrap_socket(connection, server_hostname=address.host)
        except (OSError, ValueError) as error:
            connection.close()
            raise tls.failure(address, error, in_handshake=True) from error

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = self._peer = None


class IdClient:
    """A blocking client of one id service, or of several interchangeable ones.

        with IdClient("ids1:7609", "ids2:7609", prefetch=100) as client:
            id = client.get_id()

    The client connects on first use and keeps the connection; if a server fails, it tries the next one. With
    `prefetch`, it fetches that many ids at a time, and `get_id` hands out ids at most `prefetch_max_age_ms` old.
    `timeout_ms` limits the wait for one server's answer. Thread-safe: calls run one after another. A forked child
    starts without its parent's connection and ids.

    Raises IdServiceUnreachable (a ConnectionError), with the addresses, if no server answers, and IdServiceError, with
    the service's message, if a service refuses.
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
        self._calls = _Calls(requests, timeout_ms, tls)
        self._lock = threading.Lock()
        fork.guard(self)

    def get_id(self) -> int:
        """Return one id."""
        return self._run(self._calls.get_id)

    def get_ids(self, count: int) -> list[int]:
        """Return `count` ascending ids. A large count is split into several calls in flight at once."""
        return self._run(self._calls.get_ids, count)

    def get_worker_id(self) -> int:
        """Return the worker field of the service's ids (5 bits by default)."""
        return self._run(self._calls.get_worker_id)

    def get_datacenter_id(self) -> int:
        """Return the datacenter field of the service's ids."""
        return self._run(self._calls.get_datacenter_id)

    def get_timestamp(self) -> int:
        """Return the service's clock, Unix ms."""
        return self._run(self._calls.get_timestamp)

    def id_range(self, start_ms: int, end_ms: int) -> tuple[int, int]:
        """Return (first, end): the ids of start_ms <= time < end_ms, Unix ms, are those of first <= id < end."""
        return self._run(self._calls.id_range, start_ms, end_ms)

    def decode(self, id: int) -> IdParts:
        """Return the time, datacenter, worker and sequence of an id, by the service's layout."""
        return self._run(self._calls.decode, id)

    def close(self) -> None:
        """Close the connection and drop the prefetched ids. The next call connects again."""
        with self._exclusive():
            self._calls.close()

    def abandon(self, reason: str) -> None:
        """Start anew in a forked child. A thread that exists only in the parent may hold the old lock."""
        self._lock = threading.Lock()
        self._calls.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> str:
        raise TypeError("an IdClient cannot be pickled or copied: it has a connection; make another one")

    def _exclusive(self) -> threading.Lock:
        """Return the lock that guards the connection; a forked child gets a new one."""
        fork.check()
        return self._lock

    def _run(self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call to its end, in one step."""
        with self._exclusive():
            try:
                call(*args, **kwargs).send(None)
            except StopIteration as done:
                value: T = done.value
                return value
        raise AssertionError("a call of the blocking client waited for an event loop")
