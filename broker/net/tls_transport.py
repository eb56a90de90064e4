"""SHELL (sockets): TLS at a listener. The reads and writes are those of KafkaTransport, after a handshake.

A handshake costs the CPU as much as many requests, so HandshakeTurns lets only a few of its steps run between the
events of other connections. What a handshake is, and how many there may be: broker.security.handshakes.
"""

import ssl
import time
from collections import deque
from collections.abc import Callable
from socket import socket as Socket
from typing import Any

from broker.log.storage.os_storage import read_now_into
from broker.net.tls import ListenerTls, TlsSocket
from broker.net.transport import PREAD_BYTES, READ_AHEAD_BYTES, Broker, KafkaPort, KafkaTransport, ShortFile
from broker.security.handshakes import HandshakeFigures, Handshakes
from broker.settings.config import BrokerConfig
from broker.wire.frame import FileRegion
from idgen.peer_log import PeerLog

STEPS_PER_TURN = 2
"""Steps of handshakes that run one after the other, before other connections have their turn."""
COPY_BYTES = 128 * 1024  # of a file that are read and encrypted at once
_PLAIN_TEXT = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})
_copied = memoryview(bytearray(COPY_BYTES))
"""The part of a file that is encrypted; one for all connections, because none keeps it."""


class HandshakeTurns:
    """The handshakes of a broker in its reactor. `log` takes why they fail: a line for each address and minute."""

    def __init__(self, reactor: Any, config: BrokerConfig, log: Callable[[str], None]) -> None:
        self._reactor = reactor
        self._log = PeerLog(reactor, _now_ms, log)
        self._timeout_ms = config.tls_handshake_timeout_ms
        self._handshakes: Handshakes[TlsTransport] = Handshakes(
            config.tls_handshakes_max, config.tls_handshakes_max_per_address, self._timeout_ms
        )
        self._ready: deque[TlsTransport] = deque()
        self._steps: Any = None
        self._timer: Any = None
        self.figures = HandshakeFigures()

    def opened(self, transport: "TlsTransport") -> None:
        """Begin a handshake, or let it wait for others."""
        if not self._handshakes.opened(transport, transport.conn.address, _now_ms()):
            transport.stopReading()
        self.figures.open = len(self._handshakes)
        self._arm()

    def stirred(self, transport: "TlsTransport") -> None:
        """Take a step of a handshake when it is its turn, because its socket can be read or written."""
        if not transport.is_ready and self._handshakes.is_under_way(transport):
            transport.is_ready = True
            self._ready.append(transport)
            self._plan()

    def _plan(self) -> None:
        if self._ready and self._steps is None:
            self._steps = self._reactor.callLater(0, self._take_steps)

    def _take_steps(self) -> None:
        self._steps = None
        for _ in range(min(STEPS_PER_TURN, len(self._ready))):
            transport = self._ready.popleft()
            transport.is_ready = False
            if not transport.disconnected and not transport.disconnecting:
                transport.take_step()
        self._plan()

    def succeeded_at(self, transport: "TlsTransport") -> None:
        self.figures.succeeded += 1
        self.ended(transport)

    def failed_at(self, transport: "TlsTransport", reason: str) -> None:
        """Close a connection whose handshake cannot succeed."""
        self.figures.failed += 1
        conn = transport.conn
        self._log.note(conn.address, f"connection of {conn.peer} to {conn.listener} closed: {reason}")
        transport.abortConnection()  # it is closed in a later turn
        self.ended(transport)

    def ended(self, transport: "TlsTransport") -> None:
        """Let others begin, because a handshake is over or its connection closed."""
        for begun in self._handshakes.ended(transport):
            begun.startReading()
        self.figures.open = len(self._handshakes)
        self._arm()

    def _arm(self) -> None:
        """Set the timer to the first deadline, unless it is set already."""
        deadline_ms = self._handshakes.next_deadline_ms()
        if deadline_ms is not None and self._timer is None:
            self._timer = self._reactor.callLater(max(deadline_ms - _now_ms(), 0) / 1000, self._close_late)

    def _close_late(self) -> None:
        self._timer = None
        for transport in self._handshakes.late(_now_ms()):
            self.failed_at(transport, f"no handshake within {self._timeout_ms} ms (flakelog.tls.handshake.timeout.ms)")
        self._arm()

    def stop(self) -> None:
        """Forget the timers; the connections are closed by their owner."""
        for call in (self._timer, self._steps):
            if call is not None and call.active():
                call.cancel()
        self._timer = self._steps = None
        self._log.stop()


class TlsTransport(KafkaTransport):
    """An accepted connection that speaks TLS."""

    socket: TlsSocket

    def __init__(
        self, sock: Socket, protocol: Any, client: Any, server: "TlsPort", session: int, reactor: Any
    ) -> None:
        self.is_ready = False
        """True while a step of the handshake is due."""
        self._shakes_hands = True
        self._turns = server.handshakes
        self._tls = server.tls
        super().__init__(server.tls.wrap(sock), protocol, client, server, session, reactor)
        self._turns.opened(self)

    # --- the handshake -------------------------------------------------------------------------------------------

    def take_step(self) -> None:
        """Go on with the handshake as far as the bytes of the peer allow."""
        try:
            self.socket.do_handshake()
        except ssl.SSLWantReadError:
            self.stopWriting()
        except ssl.SSLWantWriteError:
            self.startWriting()
        except (ssl.SSLError, OSError) as error:
            self._turns.failed_at(self, _reason(error))
        else:
            self._finish()

    def _finish(self) -> None:
        try:
            user = self._tls.user_of(self.socket)
        except ssl.SSLError as error:
            self._turns.failed_at(self, _reason(error))
            return
        self._broker.secured(self.conn, user)
        self._shakes_hands = False
        self.stopWriting()
        self._turns.succeeded_at(self)
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

    # --- closing -------------------------------------------------------------------------------------------------

    def _postLoseConnection(self) -> Exception:
        self.socket.say_end()
        ended: Exception = super()._postLoseConnection()
        return ended

    def connectionLost(self, reason: Any) -> None:
        if self._shakes_hands:
            self._turns.ended(self)
        super().connectionLost(reason)


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


def _reason(error: Exception) -> str:
    """Return why a handshake has failed, in the words of an operator."""
    reason = getattr(error, "reason", None) or ""
    words = reason.lower().replace("_", " ")
    if reason in _PLAIN_TEXT:
        return "it does not speak TLS, and this listener does: set security.protocol=SSL at the client"
    if reason in ("TLSV1_ALERT_UNKNOWN_CA", "SSLV3_ALERT_CERTIFICATE_UNKNOWN", "SSLV3_ALERT_BAD_CERTIFICATE"):
        return f"it does not trust this listener's certificate ({words})"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it shows no certificate, and ssl.client.auth=required"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, (ssl.SSLEOFError, ConnectionError)):
        return "it ended in the middle of the handshake"
    return f"the handshake failed: {words or error}"


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
