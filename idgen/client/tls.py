"""The port through which a client of id services uses TLS. `flakelog.id_clients` makes it of Kafka's settings."""

from typing import TYPE_CHECKING, Any, Protocol

from idgen.client.core import Address

if TYPE_CHECKING:
    import ssl


class TlsFailure(ConnectionError):
    """TLS with a service failed; the message says what would be right."""


class ClientTls(Protocol):
    """The TLS of a client, for all its connections."""

    def context(self) -> "ssl.SSLContext":
        """Return the TLS of a new connection, whose server's name is the host of its address."""

    def failure(self, address: Address, error: Exception, *, in_handshake: bool) -> TlsFailure:
        """Return the reason for an error of `ssl`, or of the socket during the handshake."""

    def connect(self, reactor: Any, address: Address, protocol: Any, timeout_s: float) -> Any:
        """Return a Deferred of a Twisted protocol, connected by TLS. It fails with TlsFailure or Twisted's errors."""
