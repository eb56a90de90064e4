"""SHELL (Twisted): a connection to another broker, with its calls in the order of their answers.

    begin -> login -> ready: calls, and another login before the session ends (KIP-368) -> lost

Without logins it is ready at once. Calls that are sent during another login wait for its end.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from socket import SO_RCVLOWAT, SOL_SOCKET
from typing import Any, NamedTuple
from typing import Protocol as Port

from twisted.internet.defer import Deferred, fail
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import ITCPTransport
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.tcp import Connection as TcpConnection
from twisted.python.failure import Failure

from broker.client.connection import ClientConnection
from broker.client.core import Address
from broker.client.errors import NotAuthenticated, Unreachable
from broker.client.exchange import Exchange, Steps
from broker.client.security.client_security import ClientSecurity
from broker.client.security.twisted_session import TwistedSession
from broker.membership.calls import AnyCall, exchange_of_call, response_to_call
from broker.wire.errors import WireError

LOGIN_SECONDS = 10.0  # for the login over a new connection, as for the connection before
ANSWER_SECONDS = 30.0  # as `request.timeout.ms` between Kafka's brokers
PIECE_BYTES = 256 * 1024  # a large answer is read in pieces of at least this size, and its last piece


class Calls(Port):
    """The calls to a broker, for which the connection is made."""

    def ready(self, connection: "PeerConnection") -> None:
        """Take a connection to which calls may be sent."""

    def reached(self) -> None:
        """Take once that the other broker let this one in: by a login, or without one by its first answer.

        In TLS 1.3 the handshake of a client ends before the server judges the certificate of the client.
        """

    def answered(self, call: AnyCall, response: Any | None) -> None:
        """Take the response to a call, None if none will come."""

    def failed(self, reason: str, *, is_refused: bool) -> None:
        """Take the reason why the connection is closed from here.

        It `is_refused` if the two brokers did not prove to each other who they are.
        """

    def lost(self, connection: "PeerConnection") -> None:
        """Take the end of the connection. Its calls without an answer are `answered` with None next."""


class _Request(NamedTuple):
    """A request under way: a call, or the Deferred of a part of a login."""

    call: "AnyCall | Deferred[memoryview]"
    sent_s: float


class PeerConnection(Protocol):
    """One connection, which has TLS already if its security has. `security` returns that of a login that begins now."""

    transport: Any

    def __init__(
        self,
        reactor: Any,
        client_id: str,
        address: Address,
        security: Callable[[], ClientSecurity | None],
        calls: Calls,
    ) -> None:
        self._reactor = reactor
        self._address = address
        self._present_security = security
        self._security = security()
        """The security of the last login."""
        self._calls = calls
        self._frames = ClientConnection(client_id, is_trusted=True)
        self._under_way: deque[_Request] = deque()
        self._held: deque[AnyCall] = deque()
        """Calls that wait for the end of another login."""
        self._session: TwistedSession | None = None
        if self._security is not None and self._security.asks_login:
            present = partial(self._security_of_login, self._security)
            self._session = TwistedSession(reactor, present, self._log_in, self._ask)
        self._timer: Any = None
        self._late: Any = None
        """The timer of the first login, while it is under way."""
        self._has_reached = False
        self._plain: TcpConnection | None = None
        """The transport, if no TLS lies between."""
        self._room: memoryview | None = None
        """The place of the bytes that an incomplete answer still lacks."""
        self._is_lost = False

    def connectionMade(self) -> None:
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)
        if isinstance(self.transport, TcpConnection):
            self._plain = self.transport

    # --- logins --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Log in, if the security asks for it, and tell when the connection is ready."""
        if self._session is None:
            self._calls.ready(self)
            return
        self._late = self._reactor.callLater(LOGIN_SECONDS, self._give_up)
        self._session.renew().addCallbacks(self._logged_in, self._not_logged_in)

    def _security_of_login(self, first: ClientSecurity) -> ClientSecurity:
        """Return the present security, or the first one if a session may not change to the present one's user."""
        present = self._present_security()
        security = present if present is not None and present.renews(first) else self._security or first
        self._security = security
        return security

    def _log_in(self) -> Steps[int]:
        assert self._security is not None, "it was there when the connection was made"
        return self._security.log_in(self._address)

    def _give_up(self) -> None:
        self._late = None
        self._abort(f"no login within {LOGIN_SECONDS:g} s")

    def _logged_in(self, _: None) -> None:
        self._end_first_login()
        self._reach()
        self._calls.ready(self)

    def _end_first_login(self) -> None:
        late, self._late = self._late, None
        if late is not None:
            late.cancel()

    def _reach(self) -> None:
        if not self._has_reached:
            self._has_reached = True
            self._calls.reached()

    def _renewed(self, _: None) -> None:
        held, self._held = self._held, deque()
        for call in held:
            self.send(call)

    def _not_logged_in(self, failure: Failure) -> None:
        error = failure.value
        if isinstance(error, NotAuthenticated):
            self._abort(error.reason, is_refused=True)
        elif not isinstance(error, Unreachable):  # the connection is lost
            self._abort(failure.getErrorMessage())

    # --- calls ---------------------------------------------------------------------------------------------------

    def send(self, call: AnyCall) -> None:
        """Send a call, once the connection is ready."""
        session = self._session
        if session is None or not session.has_to_wait:
            self._write(exchange_of_call(self._address, call), call)
            return
        self._held.append(call)
        if len(self._held) == 1:
            session.renew().addCallbacks(self._renewed, self._not_logged_in)

    def _ask(self, exchange: Exchange) -> "Deferred[memoryview]":
        """Send a part of a login."""
        if self._is_lost:  # while a token was fetched
            return fail(Unreachable(str(self._address), "the connection was lost"))
        answer: Deferred[memoryview] = Deferred()
        self._write(exchange, answer)
        return answer

    def _write(self, exchange: Exchange, call: "AnyCall | Deferred[memoryview]") -> None:
        _, data = self._frames.request(exchange)
        self._under_way.append(_Request(call, self._reactor.seconds()))
        self._send_at_once(data)
        self._watch()

    def _send_at_once(self, data: bytes) -> None:
        """Send what the socket takes now, and leave the rest to the reactor, with an error that it meets again.

        By itself the transport has the reactor watch its socket for each write, which takes two calls of the system.
        """
        plain, sent = self._plain, 0
        if plain is not None and plain.connected and not (plain.dataBuffer or plain._tempDataBuffer):
            outcome = plain.writeSomeData(data)
            sent = 0 if isinstance(outcome, Exception) else outcome
        if sent < len(data):
            self.transport.write(data[sent:])

    def _watch(self) -> None:
        """Set the timer for the answer of the oldest request."""
        if self._timer is None and self._under_way:
            due_s = self._under_way[0].sent_s + ANSWER_SECONDS
            self._timer = self._reactor.callLater(max(due_s - self._reactor.seconds(), 0), self._check)

    def _check(self) -> None:
        self._timer = None
        if self._under_way and self._under_way[0].sent_s + ANSWER_SECONDS <= self._reactor.seconds():
            self._abort(f"no answer within {ANSWER_SECONDS:g} s")
        else:
            self._watch()

    def dataReceived(self, data: bytes | memoryview) -> None:
        try:
            answers = self._frames.receive(memoryview(data), is_reused=False)
            responses: list[Any] = [
                answer.body if isinstance(request.call, Deferred) else response_to_call(request.call, answer.body)
                for request, answer in zip(self._under_way, answers, strict=False)
            ]
        except WireError as error:
            self._abort(str(error))
            return
        room = self._frames.wanted()
        if self._plain is not None and (room is not None or self._room is not None):
            self._expect(self._plain, room)
        for response in responses:
            call = self._under_way.popleft().call
            if isinstance(call, Deferred):
                call.callback(response)
            else:
                self._reach()
                self._calls.answered(call, response)

    def _expect(self, plain: TcpConnection, room: memoryview | None) -> None:
        """Read the rest of an incomplete answer into its place from now on, or, without one, whatever comes.

        Twisted would copy all that it reads, and the reactor would wake up for each few packets.
        """
        if room is None:
            del plain.doRead  # its class has the usual one
        elif self._room is None:
            plain.doRead = self._read_rest  # type: ignore[method-assign]
        self._room = room
        piece_bytes = 1 if room is None else min(len(room), PIECE_BYTES)
        plain.socket.setsockopt(SOL_SOCKET, SO_RCVLOWAT, piece_bytes)

    def _read_rest(self) -> ConnectionDone | ConnectionLost | None:
        """Read as a transport's `doRead` does: return why the connection is lost, None if it is not."""
        assert self._plain is not None and self._room is not None, "an answer is incomplete"
        try:
            size = self._plain.socket.recv_into(self._room)
        except BlockingIOError:
            return None
        except OSError:
            return CONNECTION_LOST
        if not size:
            return CONNECTION_DONE
        self.dataReceived(self._room[:size])
        return None

    # --- the end -------------------------------------------------------------------------------------------------

    def _abort(self, reason: str, *, is_refused: bool = False) -> None:
        self._end_first_login()
        self._calls.failed(reason, is_refused=is_refused)
        self.transport.abortConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._is_lost = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if isinstance(reason.value, NotAuthenticated):  # the other broker has refused the certificate of this one
            self._calls.failed(reason.value.reason, is_refused=True)
        elif self._late is not None:
            hint = self._frames.with_hint(reason.getErrorMessage(), self._security)
            self._calls.failed(f"the connection ended during the login: {hint}", is_refused=True)
        self._end_first_login()
        self._calls.lost(self)
        calls, held = self._under_way, self._held
        self._under_way, self._held = deque(), deque()
        for call, _ in calls:
            if isinstance(call, Deferred):
                call.errback(Unreachable(str(self._address), reason.getErrorMessage()))
            else:
                self._calls.answered(call, None)
        for waiting in held:
            self._calls.answered(waiting, None)
