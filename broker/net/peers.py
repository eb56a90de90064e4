"""SHELL (Twisted): the connections of this broker to other brokers, over which the engine's calls go.

Each broker has a connection for each kind of calls (broker.membership.calls), made when a call needs one and kept. A
call without a response counts as unanswered (None): the broker was not reached or let this one not in, the connection
was lost, the answer was wrong, or it did not come within ANSWER_SECONDS. After such a timeout the connection is closed,
so that nothing that it still holds reaches the broker late.
"""

from collections import deque
from collections.abc import Callable, Iterable
from ssl import SSLError
from typing import Any, NamedTuple, TypeAlias

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure

from broker.client.core import Address
from broker.client.errors import NotAuthenticated, Unreachable
from broker.client.security.client_security import ClientSecurity
from broker.client.security.twisted_tls import connect
from broker.cluster.channel import Call
from broker.membership.calls import AddressedCall, AnyCall, FetchCall, Link, is_denied, link_of, name_of_call
from broker.net.peer_connection import PeerConnection

CONNECT_SECONDS = 10.0
RECONNECT_SECONDS = 0.1  # between two attempts, so that a broker that is being started is not asked in a tight loop
REFUSED_SECONDS = 1.0  # the same after a failed login or handshake, which costs both sides more, and a wrong name
DENIED_SECONDS = 60.0  # between two lines about a broker that denies what this one asks
_LASTING = NotAuthenticated, ValueError, SSLError  # a retry meets them again; ValueError is of a host without a name

Answered: TypeAlias = Callable[[AnyCall, Any | None], None]
"""Receives the response to a call, None without one. The connections call it from the reactor, never from `send`."""
Connect: TypeAlias = Callable[[Address, Protocol, ClientSecurity | None], "Deferred[Any]"]


class _Peer(NamedTuple):
    broker_id: int
    kind: Link


class PeerConnections:
    """The connections to all brokers. `report` receives a line when a broker cannot be reached, and when it can again.

    `security` returns what protects a connection or a login that begins now; None for plain text.
    """

    def __init__(
        self,
        reactor: Any,
        broker_id: int,
        answered: Answered,
        report: Callable[[str], None],
        connect: Connect | None = None,
        security: Callable[[], ClientSecurity | None] = lambda: None,
    ) -> None:
        self.reactor = reactor
        self.client_id = str(broker_id)
        self.answered = answered
        self.report = report
        self.connect = self._connect if connect is None else connect
        self.security = security
        self._links: dict[_Peer, _Link] = {}
        self._reasons: dict[int, set[str]] = {}
        """The reasons why brokers cannot be reached, each of which was reported."""
        self.problems: dict[int, str] = {}
        """The last reason why a broker cannot be reached, by its id."""
        self._denied_s: dict[int, float] = {}
        """When it was reported that a broker denies something."""
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
        self.problems.pop(broker_id, None)
        if self._reasons.pop(broker_id, None):
            self.report(f"broker {broker_id} at {address} can be reached again")

    def not_reached(self, broker_id: int, address: Address, reason: str) -> None:
        reasons = self._reasons.setdefault(broker_id, set())
        problem = self.problems[broker_id] = f"broker {broker_id} at {address} cannot be reached: {reason}"
        if reason not in reasons:
            reasons.add(reason)
            self.report(problem)

    def denied(self, broker_id: int, address: Address, call: AnyCall) -> None:
        """Report that a broker denies a call, once a minute."""
        now_s = self.reactor.seconds()
        if self._denied_s.get(broker_id, -DENIED_SECONDS) + DENIED_SECONDS <= now_s:
            self._denied_s[broker_id] = now_s
            self.report(
                f"broker {broker_id} at {address} denies {name_of_call(call)}: this broker's user there needs a rule "
                "that allows cluster-action on the cluster, or to be one of super.users"
            )

    def _connect(
        self, address: Address, protocol: Protocol, security: ClientSecurity | None
    ) -> "Deferred[Any]":
        return connect(self.reactor, address, protocol, security, CONNECT_SECONDS)


class _Link:
    """The calls to one address of a broker, and its connection while there is one."""

    def __init__(self, owner: PeerConnections, broker_id: int, address: Address) -> None:
        self.address = address
        self._owner = owner
        self._broker_id = broker_id
        self._waiting: deque[AnyCall] = deque()
        """Calls that wait for a connection."""
        self._connection: PeerConnection | None = None
        self._connecting: Deferred[Any] | None = None
        self._logging_in: PeerConnection | None = None
        """A connection whose login is under way."""
        self._attempt: Any = None
        self._next_attempt_s = 0.0
        self._is_closed = False

    def send(self, call: AnyCall) -> None:
        if self._connection is not None:
            self._connection.send(call)
            return
        self._waiting.append(call)
        if self._connecting is None and self._logging_in is None and self._attempt is None:
            pause_s = self._next_attempt_s - self._owner.reactor.seconds()
            self._attempt = self._owner.reactor.callLater(max(pause_s, 0), self._begin)

    def close(self) -> None:
        """End the connection. The calls that have no answer are answered None, in the next turn of the reactor."""
        self._is_closed = True
        if self._attempt is not None:
            self._attempt.cancel()
            self._attempt = None
        if self._connecting is not None:
            self._connecting.cancel()
        connection = self._connection or self._logging_in
        if connection is not None:
            connection.transport.abortConnection()
        self._owner.reactor.callLater(0, self._fail)

    def _begin(self) -> None:
        self._attempt = None
        self._next_attempt_s = self._owner.reactor.seconds() + RECONNECT_SECONDS
        owner = self._owner
        connection = PeerConnection(owner.reactor, owner.client_id, self.address, owner.security, self)
        self._connecting = maybeDeferred(owner.connect, self.address, connection, owner.security())
        self._connecting.addCallbacks(self._connected, self._refused)

    def _connected(self, connection: PeerConnection) -> None:
        self._connecting = None
        if self._is_closed:
            connection.transport.abortConnection()
            return
        self._logging_in = connection
        connection.begin()

    def ready(self, connection: PeerConnection) -> None:
        self._logging_in = None
        self._connection = connection
        while self._waiting:
            connection.send(self._waiting.popleft())

    def reached(self) -> None:
        self._owner.reached(self._broker_id, self.address)

    def answered(self, call: AnyCall, response: Any | None) -> None:
        if response is not None and is_denied(response):
            self._owner.denied(self._broker_id, self.address, call)
            if isinstance(call, Call):
                response = None  # so that the controller repeats it: no other order replaces it
        self._owner.answered(call, response)

    def _refused(self, failure: Failure) -> None:
        self._connecting = None
        if not self._is_closed:
            error = failure.value
            reason = error.reason if isinstance(error, Unreachable | NotAuthenticated) else failure.getErrorMessage()
            self.failed(reason, is_refused=isinstance(error, _LASTING))
            self._fail()

    def failed(self, reason: str, *, is_refused: bool) -> None:
        if is_refused:
            self._next_attempt_s = self._owner.reactor.seconds() + REFUSED_SECONDS
        if not self._is_closed:
            self._owner.not_reached(self._broker_id, self.address, reason)

    def lost(self, connection: PeerConnection) -> None:
        if self._connection is connection:
            self._connection = None
        if self._logging_in is connection:
            self._logging_in = None
            self._fail()

    def _fail(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            self._owner.answered(call, None)
