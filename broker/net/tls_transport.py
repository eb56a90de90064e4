"""SHELL (sockets): TLS at a listener. The reads and writes are those of KafkaTransport, after a handshake."""

from typing import Any

from broker.log.storage.os_storage import read_now_into
from broker.net.tls import ListenerTls
from broker.net.tls_handshake import HandshakeTurns, ShakingHands
from broker.net.transport import PREAD_BYTES, READ_AHEAD_BYTES, Broker, KafkaPort, KafkaTransport, ShortFile
from broker.settings.config import BrokerConfig
from broker.wire.frame import FileRegion

COPY_BYTES = 128 * 1024  # of a file that are read and encrypted at once
_copied = memoryview(bytearray(COPY_BYTES))
"""The part of a file that is encrypted; one for all connections, because none keeps it."""


class TlsTransport(ShakingHands, KafkaTransport):
    """An accepted connection that speaks TLS."""

    @property
    def peer(self) -> str:
        return str(self.conn.peer)

    @property
    def peer_address(self) -> str:
        return str(self.conn.address)

    def _secured(self, user: str | None) -> None:
        self._broker.secured(self.conn, user)
        if self._queue:
            self.startWriting()
        self._read_decrypted()

    # --- reading and writing -------------------------------------------------------------------------------------

    def doRead(self) -> Exception | None:  # type: ignore[override]
        if self._shakes_hands:
            self._turns.stirred(self)
            return None
        error = super().doRead()
        while error is None and not self._paused and self.socket.pending():  # no event tells of what is decrypted
            error = super().doRead()
        return error

    def startReading(self) -> None:
        super().startReading()
        if not self._shakes_hands and self.socket.pending():
            self.reactor.callLater(0, self._read_decrypted)

    def _read_decrypted(self) -> None:
        """Read what OpenSSL has decrypted already."""
        if not self.disconnected and not self._paused and self.socket.pending() and self.doRead() is not None:
            self.abortConnection()

    def doWrite(self) -> Exception | None:  # type: ignore[override]
        if self._shakes_hands and not self.disconnecting:
            self._turns.stirred(self)
            return None
        if self._shakes_hands:
            self._queue.clear()  # nothing can be said before the handshake
        return super().doWrite()

    def send(self, parts: list[Any]) -> int:
        if self._shakes_hands:  # only the answer to a connection over a limit comes so early
            self._queue.extend(parts)
            return 0
        return super().send(parts)

    def _send_region(self, region: FileRegion, budget: int) -> int:
        """Encrypt a piece of a file. The piece is read again if the socket is full: its bytes are the same then."""
        at = region.file.descriptor()
        if at is None or region.length <= PREAD_BYTES:
            return super()._send_region(region, budget)
        piece = _copied[: min(region.length, budget, COPY_BYTES)]
        if not self._was_read and not read_now_into(at.fd, region.position, piece):
            self._read_ahead(FileRegion(region.file, region.position, max(len(piece), READ_AHEAD_BYTES)))
            raise BlockingIOError
        if self._was_read:
            self._was_read = False
            data = region.file.read(region.position, len(piece))
            if len(data) < len(piece):
                raise ShortFile(f"a region of {region.length} bytes is past the end of its file")
            piece[:] = data
        sent = self.socket.send(piece)
        self._queue[0] = FileRegion(region.file, region.position + sent, region.length - sent)
        return sent


class TlsPort(KafkaPort):
    """A listening port whose connections speak TLS."""

    transport = TlsTransport

    def __init__(
        self,
        port: int,
        factory: Any,
        config: BrokerConfig,
        interface: str,
        reactor: Any,
        broker: Broker,
        tls: ListenerTls,
        handshakes: HandshakeTurns,
    ) -> None:
        super().__init__(port, factory, config, interface, reactor, broker, tls.listener)
        self.tls = tls
        self.handshakes = handshakes
