"""SHELL (the reactor, OpenSSL): the handshakes of accepted connections that speak TLS, at all ports of a process.

A handshake costs the CPU as much as many requests, so HandshakeTurns lets only a few of its steps run between the
events of other connections. broker.security.handshakes limits how many are under way.
"""

import ssl
import time
from collections import deque
from collections.abc import Callable
from socket import socket as Socket
from typing import Any, cast

from twisted.internet import tcp

from broker.address import host_port
from broker.net.tls import ListenerTls
from broker.net.tls_socket import TlsSocket
from broker.security.handshakes import HandshakeFigures, Handshakes
from broker.settings.config import BrokerConfig
from idgen.peer_log import PeerLog

STEPS_PER_TURN = 2
"""Steps of handshakes that run one after the other, before other connections have their turn."""
_PLAIN_TEXT = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}
)


class HandshakeTurns:
    """The handshakes of ports that share one limit. `log` takes why they fail: a line for each address and minute.

    `figures` counts those of all ports of the process. `last` takes the last line of each listener.
    """

    def __init__(
        self,
        reactor: Any,
        config: BrokerConfig,
        log: Callable[[str], None],
        figures: HandshakeFigures,
        last: dict[str, str] | None = None,
    ) -> None:
        self._last = {} if last is None else last
        self._reactor = reactor
        self._log = PeerLog(reactor, _now_ms, log)
        self._timeout_ms = config.tls_handshake_timeout_ms
        self._handshakes: Handshakes[ShakingHands] = Handshakes(
            config.tls_handshakes_max, config.tls_handshakes_max_per_address, self._timeout_ms
        )
        self._ready: deque[ShakingHands] = deque()
        self._steps: Any = None
        self._timer: Any = None
        self._figures = figures

    def opened(self, transport: "ShakingHands") -> None:
        """Begin a handshake, or let it wait for others."""
        if not self._handshakes.opened(transport, transport.peer_address, _now_ms()):
            transport.stopReading()
        self._figures.open += 1
        self._arm()

    def stirred(self, transport: "ShakingHands") -> None:
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
        try:
            for _ in range(min(STEPS_PER_TURN, len(self._ready))):
                transport = self._ready.popleft()
                transport.is_ready = False
                if not transport.disconnected and not transport.disconnecting:
                    transport.take_step()
        finally:  # a fault at one connection leaves the others their turns
            self._plan()

    def succeeded_at(self, transport: "ShakingHands") -> None:
        self._figures.succeeded += 1
        self.ended(transport)

    def failed_at(self, transport: "ShakingHands", reason: str) -> None:
        """Close a connection whose handshake cannot succeed."""
        self._figures.failed += 1
        self.refused(transport, reason)
        transport.abortConnection()  # it is closed in a later turn
        self.ended(transport)

    def refused(self, transport: "ShakingHands", reason: str) -> None:
        """Log why a connection is closed, in or after its handshake."""
        listener = transport.tls.listener
        line = self._last[listener] = f"connection of {transport.peer} to {listener} closed: {reason}"
        self._log.note(transport.peer_address, line)

    def ended(self, transport: "ShakingHands") -> None:
        """Let others begin, because a handshake is over or its connection closed."""
        before = len(self._handshakes)
        for begun in self._handshakes.ended(transport):
            begun.startReading()
        self._figures.open -= before - len(self._handshakes)  # 0 if it has ended already, and is closed now
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


class ShakingHands(tcp.Server):
    """An accepted connection that speaks TLS: its handshake, and its reads after that.

    Until the handshake has succeeded, the transport gives no bytes to its protocol, and sends none. `server` is a port
    with the fields `tls` and `handshakes`.
    """

    socket: TlsSocket  # type: ignore[assignment]  # it has what Twisted's connection calls

    def __init__(self, sock: Socket, protocol: Any, client: Any, server: Any, session: int, reactor: Any) -> None:
        self.is_ready = False
        """True while a step of the handshake is due."""
        self.tls: ListenerTls = server.tls
        self._shakes_hands = True
        self._reads = False
        self._turns: HandshakeTurns = server.handshakes
        super().__init__(self.tls.wrap(sock), protocol, client, server, session, reactor)
        self._turns.opened(self)

    @property
    def peer(self) -> str:
        """The peer's host and port, as the log shows them."""
        host, port = cast("tuple[str, int]", self.client[:2])
        return host_port(host, port)

    @property
    def peer_address(self) -> str:
        """The peer's host."""
        return str(self.client[0])

    def _secured(self, user: str | None) -> None:
        """Go on after the handshake. `user` is that of the peer's certificate, None if it showed none."""
        raise NotImplementedError

    def take_step(self) -> None:
        """Go on with the handshake as far as the bytes of the peer allow."""
        try:
            self.socket.do_handshake()
        except ssl.SSLWantReadError:
            self.stopWriting()
        except ssl.SSLWantWriteError:
            self.startWriting()
        except (ssl.SSLError, OSError) as error:
            self._turns.failed_at(self, self._reason_of(error))
        else:
            self._finish()

    def _finish(self) -> None:
        try:
            user = self.tls.user_of(self.socket)
        except ssl.SSLError as error:
            self._turns.failed_at(self, self._reason_of(error))
            return
        self._shakes_hands = False
        self.stopWriting()
        self._turns.succeeded_at(self)
        self._secured(user)

    def _reason_of(self, error: Exception) -> str:
        return _reason(error, self.tls.hint, began_with_tls=self.socket.began_with_tls)

    # --- reading -------------------------------------------------------------------------------------------------

    def _read_once(self) -> Exception | None:
        """Read from the socket once, and hand the bytes on. Return the exception that ends the connection, if any."""
        raise NotImplementedError

    def doRead(self) -> Exception | None:  # type: ignore[override]
        if self._shakes_hands:
            self._turns.stirred(self)
            return None
        error = self._read_once()
        while error is None and self._reads and self.socket.has_more:  # the reactor has no event for them
            error = self._read_once()
        if error is not None and self.socket.refusal:
            self._turns.refused(self, self.socket.refusal)
        return error

    def startReading(self) -> None:
        self._reads = True
        super().startReading()
        if not self._shakes_hands and self.socket.has_more:
            self.reactor.callLater(0, self._read_decrypted)

    def stopReading(self) -> None:
        self._reads = False
        super().stopReading()

    def _read_decrypted(self) -> None:
        """Read the bytes that TlsSocket has received already."""
        if not self.disconnected and self._reads and self.socket.has_more and self.doRead() is not None:
            self.abortConnection()

    # --- closing -------------------------------------------------------------------------------------------------

    def connectionLost(self, reason: Any) -> None:
        if self._shakes_hands:
            self._turns.ended(self)
        super().connectionLost(reason)

    def _postLoseConnection(self) -> Exception:
        self.socket.say_end()
        ended: Exception = super()._postLoseConnection()
        return ended


def _reason(error: Exception, hint: str, *, began_with_tls: bool) -> str:
    """Return why a handshake has failed, in the words of an operator.

    `hint` says how a client gets TLS. A peer that has begun with a record of TLS does not need it.
    """
    reason = getattr(error, "reason", None) or ""
    words = reason.lower().replace("_", " ")
    if reason in _PLAIN_TEXT and not began_with_tls:
        return f"it does not speak TLS, and this listener does: {hint}"
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
