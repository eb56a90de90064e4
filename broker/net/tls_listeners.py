"""SHELL (the reactor): the ports of a process that speak TLS: their handshakes and certificates."""

from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.task import LoopingCall

from broker.net.tls import ListenerTls
from broker.net.tls_handshake import HandshakeTurns
from broker.net.tls_stream import TlsStreamTransport
from broker.net.tls_transport import TlsPort
from broker.net.transport import Broker, KafkaPort
from broker.security.handshakes import HandshakeFigures
from broker.settings.config import BrokerConfig

CERTIFICATE_SECONDS = 1.0
"""How often the files of certificates are looked at for a change."""


class TlsListeners:
    """The TLS of a broker's listeners and of other ports, by name.

    The listeners have one limit of handshakes, and the other ports another: a port that the public reaches keeps no
    client or broker from its connection.
    """

    def __init__(
        self, reactor: Any, config: BrokerConfig, listeners: Mapping[str, ListenerTls], log: Callable[[str], None]
    ) -> None:
        self.listeners = listeners
        self.figures = HandshakeFigures()
        self.last_refusals: dict[str, str] = {}
        """Why the last handshake was refused, by the listener's name."""
        self._of_listeners = HandshakeTurns(reactor, config, log, self.figures, self.last_refusals)
        self._of_ports = HandshakeTurns(reactor, config, log, self.figures)
        self._certificates = LoopingCall(self._refresh)
        self._certificates.clock = reactor

    def port(
        self, port: int, factory: Any, config: BrokerConfig, interface: str, reactor: Any, broker: Broker, listener: str
    ) -> KafkaPort:
        """Return the port of a listener. It speaks plain text if it has no TLS."""
        tls = self.listeners.get(listener)
        if tls is None:
            return KafkaPort(port, factory, config, interface, reactor, broker, listener)
        return TlsPort(port, factory, config, interface, reactor, broker, tls, self._of_listeners)

    def secure(self, port: Any, name: str) -> None:
        """Let the connections of a bound port of Twisted's speak TLS, if the name has it."""
        tls = self.listeners.get(name)
        if tls is not None:
            port.transport, port.tls, port.handshakes = TlsStreamTransport, tls, self._of_ports

    def serve(self) -> None:
        """Begin to look at the files of certificates."""
        self._certificates.start(CERTIFICATE_SECONDS, now=False)

    def stop(self) -> None:
        """Forget the timers; the connections are closed by their owner."""
        self._of_listeners.stop()
        self._of_ports.stop()
        if self._certificates.running:
            self._certificates.stop()

    def _refresh(self) -> None:
        for tls in self.listeners.values():
            tls.refresh()
