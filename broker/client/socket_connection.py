"""SHELL (sockets): a blocking connection to one broker: requests go out, and answers come in their order."""

import socket
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from broker.client.connection import MAX_ANSWER_BYTES, ClientConnection, not_a_frame
from broker.client.exchange import Exchange
from broker.wire.errors import WireError
from broker.wire.frame import LENGTH_BYTES

if TYPE_CHECKING:
    from broker.client.security.client_security import ClientSecurity


class SocketConnection:
    """A connection over a connected socket, plain or of TLS. Errors are OSError, and WireError for a wrong answer."""

    def __init__(self, sock: socket.socket, client_id: str) -> None:
        self.socket = sock
        self.renew_at_s: float | None = None
        """When the login is to be renewed, on the monotonic clock; None without an end of the session."""
        self.has_answered = False
        """True once the peer has answered a request, so that it is a broker."""
        self._frames = ClientConnection(client_id)
        self._early: deque[memoryview] = deque()
        """Answers that `ask` has read before its own, for `receive`."""

    @property
    def waiting(self) -> int:
        """Return how many answers were not received yet."""
        return self._frames.waiting + len(self._early)

    @property
    def renewal_is_due(self) -> bool:
        return self.renew_at_s is not None and time.monotonic() >= self.renew_at_s

    def send(self, exchange: Exchange) -> None:
        self.socket.sendall(self._frames.request(exchange)[1])

    def receive(self) -> memoryview:
        """Return the answer to the earliest request whose answer was not received yet, in a buffer of its own."""
        return self._early.popleft() if self._early else self._next()

    def ask(self, exchange: Exchange) -> memoryview:
        """Send a request and return its answer. Keep the answers that come before it."""
        self.send(exchange)
        while self._frames.waiting > 1:
            self._early.append(self._next())
        return self._next()

    def _next(self) -> memoryview:
        body = self._frames.take(_read_frame(self.socket)).body
        self.has_answered = True
        return body

    def has_ended(self) -> bool:
        """Return True if an idle connection was closed by the broker (restarted, or as idle) or has unexpected bytes.

        The check before a request is sent costs nothing. If the client noticed only after sending, it could not know
        whether the broker handled the request.
        """
        timeout = self.socket.gettimeout()
        self.socket.setblocking(False)
        try:
            return self._has_bytes()
        except OSError:
            return True
        finally:
            self.socket.settimeout(timeout)

    def _has_bytes(self) -> bool:
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        return True

    def with_hint(self, reason: str, security: "ClientSecurity | None") -> str:
        """Return why the connection has ended, with what its listener may have wanted."""
        return self._frames.with_hint(reason, security)

    def interrupt(self) -> None:
        """End the call that another thread waits in."""
        with suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)  # that of ssl would let plain bytes pass

    def close(self) -> None:
        self.socket.close()


class TlsSocketConnection(SocketConnection):
    """A connection over a socket of TLS."""

    def _has_bytes(self) -> bool:
        from ssl import SSLWantReadError

        try:
            self.socket.recv(1)  # tickets for later sessions (TLS 1.3) are no bytes
        except SSLWantReadError:
            return False
        return True


def _read_frame(sock: socket.socket) -> memoryview:
    """Return the next frame, without its length, in a buffer of its own."""
    head = _exactly(sock, LENGTH_BYTES)
    size = int.from_bytes(head, "big")
    if size > MAX_ANSWER_BYTES:
        too_long = f"it sent a frame of {size} bytes, at most {MAX_ANSWER_BYTES} are taken"
        raise WireError(not_a_frame(bytes(head)) or too_long)
    return _exactly(sock, size)


def _exactly(sock: socket.socket, size: int) -> memoryview:
    view = memoryview(bytearray(size))
    got = 0
    while got < size:
        number = sock.recv_into(view[got:])
        if not number:
            raise ConnectionResetError(f"it closed the connection after {got} of {size} bytes")
        got += number
    return view
