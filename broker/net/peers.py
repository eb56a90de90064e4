"""SHELL (Twisted): the connections of this broker to other brokers, over which the engine's calls go.

Each broker has a connection for each kind of calls (broker.membership.calls), made when a call needs one and kept. A
call without a response counts as unanswered (None): the broker was not reached, the connection was lost, the answer was
wrong, or it did not come within ANSWER_SECONDS. After such a timeout the connection is closed, so that nothing that it
still holds reaches the broker late.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, connectProtocol
from twisted.internet.interfaces import ITCPTransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure

from broker.client.connection import ClientConnection
from broker.client.core import Address
from broker.membership.calls import (
    AddressedCall,
    AnyCall,
    FetchCall,
    Link,
    exchange_of_call,
    link_of,
    response_to_call,
)
from broker.wire.errors import WireError

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0  # as `request.timeout.ms` between Kafka's brokers
RECONNECT_SECONDS = 0.1  # between two attempts, so that a broker that is being started is not asked in a tight loop

Answered: TypeAlias = Callable[[AnyCall, Any | None], None]
"""Receives the response to a call, None without one. The connections call it from the reactor, never from `send`."""
Connect: TypeAlias = Callable[[Address, Protocol], "Deferred[Any]"]


class _Peer(NamedTuple):
    broker_id: int
    kind: Link


class PeerConnections:
    """The connections to all brokers. `report` receives a line when a broker cannot be reached, and when it can again.
    """

    def __init__(
        self,
        reactor: Any,
        broker_id: int,
        answered: Answered,
        report: Callable[[str], None],
        connect: Connect | None = None,
    ) -> None:
        self.reactor = reactor
        self.client_id = str(broker_id)
        self.answered = answered
        self.report = report
        self.connect = self._connect if connect is None else connect
        self._links: dict[_Peer, _Link] = {}
        self._unreachable: set[int] = set()
        self._stopped = False

    def send(self, calls: Iterable[AddressedCall]) -> None:
        """Send each call to its broker, after the earlier ones of its connection."""
        if self._stopped:
            return
        for host, port, call in calls:
            peer = _Peer(call.broker_id, link_of(call))
            address = Address(host, port)
            link = self._links.get(peer)
            is_anew = isinstance(call, FetchCall) and call.is_anew
            if link is None or link.address != address or is_anew:
                if link is not None:
                    link.close()  # the broker has another address, or what came over the connection is not trusted
                link = self._links[peer] = _Link(self, call.broker_id, address)
            link.send(call)

    def stop(self) -> None:
        """Close all connections. No call is sent or answered from now on."""
        self._stopped = True
        self.answered = lambda call, response: None
        links, self._links = list(self._links.values()), {}
        for link in links:
            link.close()

    def reached(self, broker_id: int, address: Address) -> None:
        if broker_id in self._unreachable:
            self._unreachable.discard(broker_id)
            self.report(f"broker {broker_id} at {address} can be reached again")

    def not_reached(self, broker_id: int, address: Address, reason: str) -> None:
        if broker_id not in self._unreachable:
            self._unreachable.add(broker_id)
            self.report(f"broker {broker_id} at {address} cannot be reached: {reason}")

    def _connect(self, address: Address, protocol: Protocol) -> "Deferred[Any]":
        endpoint = HostnameEndpoint(self.reactor, address.host, address.port, timeout=CONNECT_SECONDS)
        connecting: Deferred[Any] = connectProtocol(endpoint, protocol)  # type: ignore[no-untyped-call]
        return connecting


class _Link:
    """The calls to one address of a broker, and its connection while there is one."""

    def __init__(self, owner: PeerConnections, broker_id: int, address: Address) -> None:
        self.address = address
        self._owner = owner
        self._broker_id = broker_id
        self._waiting: deque[AnyCall] = deque()
        """Calls that wait for a connection."""
        self._connection: _Connection | None = None
        self._connecting: Deferred[Any] | None = None
        self._attempt: Any = None
        self._last_attempt_s = -RECONNECT_SECONDS
        self._is_closed = False

    def send(self, call: AnyCall) -> None:
        if self._connection is not None:
            self._connection.send(call)
            return
        self._waiting.append(call)
        if self._connecting is None and self._attempt is None:
            pause_s = self._last_attempt_s + RECONNECT_SECONDS - self._owner.reactor.seconds()
            self._attempt = self._owner.reactor.callLater(max(pause_s, 0), self._begin)

    def close(self) -> None:
        """End the connection. The calls that have no answer are answered None, in the next turn of the reactor."""
        self._is_closed = True
        if self._attempt is not None:
            self._attempt.cancel()
            self._attempt = None
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.transport.abortConnection()
        self._owner.reactor.callLater(0, self._fail)

    def _begin(self) -> None:
        self._attempt = None
        self._last_attempt_s = self._owner.reactor.seconds()
        connection = _Connection(self._owner, self)
        self._connecting = self._owner.connect(self.address, connection)
        self._connecting.addCallbacks(self._connected, self._refused)

    def _connected(self, connection: "_Connection") -> None:
        self._connecting = None
        if self._is_closed:
            connection.transport.abortConnection()
            return
        self._owner.reached(self._broker_id, self.address)
        self._connection = connection
        while self._waiting:
            connection.send(self._waiting.popleft())

    def _refused(self, failure: Failure) -> None:
        self._connecting = None
        if not self._is_closed:
            self._owner.not_reached(self._broker_id, self.address, failure.getErrorMessage())
            self._fail()

    def failed(self, reason: str) -> None:
        """Report why the connection is closed from here."""
        self._owner.not_reached(self._broker_id, self.address, reason)

    def lost(self, connection: "_Connection") -> None:
        if self._connection is connection:
            self._connection = None

    def _fail(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            self._owner.answered(call, None)


class _Connection(Protocol):
    """A connection with its calls in the order of their answers."""

    transport: Any

    def __init__(self, owner: PeerConnections, link: _Link) -> None:
        self._owner = owner
        self._link = link
        self._frames = ClientConnection(owner.client_id)
        self._calls: deque[tuple[AnyCall, float]] = deque()
        """The calls under way, with the time of each when it was sent."""
        self._timer: Any = None

    def connectionMade(self) -> None:
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)

    def send(self, call: AnyCall) -> None:
        _, data = self._frames.request(exchange_of_call(self._link.address, call))
        self._calls.append((call, self._owner.reactor.seconds()))
        self.transport.write(data)
        self._watch()

    def _abort(self, reason: str) -> None:
        self._link.failed(reason)
        self.transport.abortConnection()

    def _watch(self) -> None:
        """Set the timer for the answer of the oldest call."""
        if self._timer is None and self._calls:
            due_s = self._calls[0][1] + ANSWER_SECONDS
            self._timer = self._owner.reactor.callLater(max(due_s - self._owner.reactor.seconds(), 0), self._check)

    def _check(self) -> None:
        self._timer = None
        if self._calls and self._calls[0][1] + ANSWER_SECONDS <= self._owner.reactor.seconds():
            self._abort(f"no answer within {ANSWER_SECONDS:g} s")
        else:
            self._watch()

    def dataReceived(self, data: bytes) -> None:
        try:
            answers = self._frames.receive(memoryview(bytearray(data)))
            responses = [response_to_call(self._calls[at][0], answer.body) for at, answer in enumerate(answers)]
        except WireError as error:
            self._abort(str(error))
            return
        for response in responses:
            call, _ = self._calls.popleft()
            self._owner.answered(call, response)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._link.lost(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        calls, self._calls = self._calls, deque()
        for call, _ in calls:
            self._owner.answered(call, None)
