"""SHELL (sockets): TLS at a port whose connections are Twisted protocols: HTTP and the id service.

The handshake, its limits and the certificates are those of the broker's listeners.
"""

from typing import Any, cast

from twisted.internet import main
from twisted.internet.interfaces import ISSLTransport
from zope.interface import implementer

from broker.net.tls_handshake import ShakingHands

READ_BYTES = 64 * 1024
_received = memoryview(bytearray(READ_BYTES))
"""The bytes of one read; one for all connections, because each read is copied for its protocol."""


@implementer(ISSLTransport)
class TlsStreamTransport(ShakingHands):
    """An accepted connection of TLS, for a protocol of Twisted. `user` is that of the peer's certificate, if any."""

    user: str | None = None

    def getPeerCertificate(self) -> bytes | None:
        """Return the peer's certificate (DER), None if it showed none."""
        return self.socket.certificate()

    def _secured(self, user: str | None) -> None:
        self.user = user
        self.startWriting()  # the protocol may have written already
        self.reactor.callLater(0, self._read_decrypted)

    def _read_once(self) -> Exception | None:
        try:
            size = self.socket.recv_into(_received)
        except BlockingIOError:
            return None
        except OSError:
            return main.CONNECTION_LOST
        if size == 0:
            return main.CONNECTION_DONE
        cast(Any, self.protocol).dataReceived(bytes(_received[:size]))
        return None

    # --- writing -------------------------------------------------------------------------------------------------

    def doWrite(self) -> Any:
        if self._shakes_hands and not self.disconnecting:
            self._turns.stirred(self)
            return None
        if self._shakes_hands:  # nothing can be said before the handshake
            return self._postLoseConnection()
        return super().doWrite()

    def writeSomeData(self, data: Any) -> Any:
        """Return how many bytes were sent. Twisted offers the rest again, as TlsSocket wants it."""
        if not data:
            return 0
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return main.CONNECTION_LOST
