"""SHELL (sockets): TLS at a listener. The reads and writes are those of KafkaTransport, after a handshake."""

from typing import Any

from broker.log.storage.page_cache import read_now_into
from broker.net.tls import ListenerTls
from broker.net.tls_handshake import HandshakeTurns, ShakingHands
from broker.net.tls_socket import WRITE_BYTES
from broker.net.transport import PREAD_BYTES, READ_AHEAD_BYTES, Broker, KafkaPort, KafkaTransport, ShortFile
from broker.settings.config import BrokerConfig
from broker.wire.frame import FileRegion, RegionDescriptor

_copied = memoryview(bytearray(WRITE_BYTES))
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

    def _read_once(self) -> Exception | None:
        return KafkaTransport.doRead(self)

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
        """Encrypt a piece of a file, unless the socket has not taken the last one yet."""
        if self.socket.is_blocked:
            sent = self.socket.flush()
        else:
            at = region.file.descriptor()
            if at is None or region.length <= PREAD_BYTES:
                return super()._send_region(region, budget)
            sent = self.socket.send(self._piece_of(region, at, min(region.length, budget, self.socket.send_bytes)))
        self._queue[0] = FileRegion(region.file, region.position + sent, region.length - sent)
        return sent

    def _piece_of(self, region: FileRegion, at: RegionDescriptor, size: int) -> memoryview:
        """Return the first bytes of a region. Raise BlockingIOError if a worker thread has to read them first."""
        piece = _copied[:size]
        if not self._was_read and not read_now_into(at.fd, region.position, piece):
            self._read_ahead(FileRegion(region.file, region.position, max(size, READ_AHEAD_BYTES)))
            raise BlockingIOError
        if self._was_read:
            self._was_read = False
            data = region.file.read(region.position, size)
            if len(data) < size:
                raise ShortFile(f"a region of {region.length} bytes is past the end of its file")
            piece[:] = data
        return piece


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
