"""SHELL (the reactor): the ports of a broker: when they begin to accept connections, and when they rest."""

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, DeferredList, maybeDeferred

from broker.net.transport import KafkaPort


class Ports:
    """The ports of a BrokerServer.

    `pause_ms` returns how long a listener, by its name, must not accept connections because they come too fast.
    """

    def __init__(self, reactor: Any, pause_ms: Callable[[str], int]) -> None:
        self._reactor = reactor
        self._pause_ms = pause_ms
        self._ports: list[KafkaPort] = []
        self._late: list[KafkaPort] = []
        """Bound ports that listen once `serve_clients` is called, and are in `_ports` from then on."""
        self._resting: set[KafkaPort] = set()
        self._stopped = False

    def add(self, port: KafkaPort) -> None:
        """Listen at a port. Raise CannotListenError. Its connections are accepted after `serve`."""
        port.startListening()
        port.stopReading()
        self._ports.append(port)

    def add_late(self, port: KafkaPort) -> None:
        """Bind a port. Raise CannotListenError. Its connections are refused before `serve_clients`."""
        port.bind()
        self._late.append(port)

    def serve(self) -> None:
        """Accept connections, except at the ports that wait for `serve_clients`."""
        for port in self._ports:
            port.startReading()

    def serve_clients(self) -> None:
        """Listen at the late ports. Raise CannotListenError if another process has begun to listen there."""
        late, self._late = self._late, []
        self._ports += late
        for port in late:
            port.listen()

    def pause(self) -> None:
        """Stop accepting for a while at each port whose connections come too fast."""
        for port in self._ports:
            self._pause(port)

    def rest(self, port: KafkaPort, seconds: float) -> None:
        """Stop accepting at a port for this time, unless it rests already."""
        if port not in self._resting:
            self._resting.add(port)
            port.stopReading()
            self._reactor.callLater(seconds, self._accept_again, port)

    def _pause(self, port: KafkaPort) -> None:
        pause_ms = self._pause_ms(port.listener)
        if pause_ms:
            self.rest(port, pause_ms / 1000)

    def _accept_again(self, port: KafkaPort) -> None:
        """Accept at a port again, unless connections still come too fast."""
        if self._stopped:
            return
        self._resting.discard(port)
        self._pause(port)
        if port not in self._resting:
            port.startReading()

    def stop(self) -> "Deferred[Any]":
        """Accept no more connections. Fire once all ports are closed."""
        self._stopped = True
        ports = [*self._ports, *self._late]
        return DeferredList([maybeDeferred(port.stopListening) for port in ports], consumeErrors=True)
