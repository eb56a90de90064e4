"""SHELL (Twisted): connections of clients, plain or over TLS.

Twisted's own TLS needs pyOpenSSL, and reads keys from files only; `TlsStream` needs Python's `ssl` only.
"""

import ssl
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import HostnameEndpoint, connectProtocol
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure

from broker.client.address import Address
from broker.client.errors import NotAuthenticated, Unreachable
from broker.client.security.client_security import ClientSecurity
from broker.client.security.tls_failures import handshake_failure, tls_failure
from broker.client.security.tls_stream import TlsStream


def connect(
    reactor: Any, address: Address, protocol: Protocol, security: ClientSecurity | None, timeout_s: float
) -> "Deferred[Any]":
    """Connect a protocol to a broker; return a Deferred of it, once TLS is in place where the security has it.

    The Deferred fails with NotAuthenticated or Unreachable for TLS, and else with the errors of Twisted's endpoints.
    """
    endpoint = HostnameEndpoint(reactor, address.host, address.port, timeout=timeout_s)
    context = None if security is None else security.context()
    if context is None:
        plain: Deferred[Any] = connectProtocol(endpoint, protocol)  # type: ignore[no-untyped-call]
        return plain
    made = TlsProtocol(protocol, address, context)
    connecting: Deferred[Any] = connectProtocol(endpoint, made)  # type: ignore[no-untyped-call]
    return connecting.addCallback(lambda _: made.secured.addTimeout(timeout_s, reactor, onTimeoutCancel=made.is_late))


class TlsProtocol(Protocol):
    """A connection that speaks TLS. To the protocol inside it is the transport, once the handshake has succeeded."""

    transport: Any

    def __init__(self, inner: Protocol, address: Address, context: ssl.SSLContext) -> None:
        self.secured: Deferred[Protocol] = Deferred(self._cancelled)
        """Fires with the protocol inside, or fails."""
        self._inner = inner
        self._address = address
        self._stream = TlsStream(context, address.host)
        self._has_begun = False
        self._failure: NotAuthenticated | Unreachable | None = None

    # --- the protocol outside ------------------------------------------------------------------------------------

    def connectionMade(self) -> None:
        self.transport.setTcpNoDelay(True)
        self._flush()

    def dataReceived(self, data: bytes) -> None:
        try:
            plain = self._stream.receive(data)
        except ssl.SSLError as error:
            self._flush()  # the alert
            failure = tls_failure if self._has_begun else handshake_failure
            self._fail(failure(self._address, error))
            return
        self._flush()
        if self._stream.is_secured and not self._has_begun:
            self._has_begun = True
            self._inner.makeConnection(self)  # type: ignore[no-untyped-call]
            self.secured.callback(self._inner)
        if plain:
            self._inner.dataReceived(plain)
        if self._stream.has_ended:
            self.transport.loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._has_begun:
            lost = Failure(self._failure) if self._failure is not None else reason  # type: ignore[no-untyped-call]
            self._inner.connectionLost(lost)
        elif not self.secured.called:
            self.secured.errback(self._failure or handshake_failure(self._address, ssl.SSLEOFError()))

    # --- the transport inside ------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        try:
            self._stream.send(data)
        except ssl.SSLError as error:  # the peer has ended TLS; `connectionLost` follows
            self._failure = self._failure or tls_failure(self._address, error)
            return
        self._flush()

    def loseConnection(self) -> None:
        self._stream.end()
        self._flush()
        self.transport.loseConnection()

    def abortConnection(self) -> None:
        self.transport.abortConnection()

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Do nothing, because it is set."""

    # -------------------------------------------------------------------------------------------------------------

    def is_late(self, value: Any, timeout_s: float) -> Any:
        """Replace the error of a handshake that did not end in time."""
        raise handshake_failure(self._address, TimeoutError(f"no TLS handshake within {timeout_s:g} s"))

    def _flush(self) -> None:
        data = self._stream.take_outgoing()
        if data:
            self.transport.write(data)

    def _fail(self, failure: NotAuthenticated | Unreachable) -> None:
        self._failure = failure
        self.transport.loseConnection()
        if not self._has_begun and not self.secured.called:
            self.secured.errback(failure)

    def _cancelled(self, secured: "Deferred[Protocol]") -> None:
        secured.errback(CancelledError())
        self.transport.abortConnection()
