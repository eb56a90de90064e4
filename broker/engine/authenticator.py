"""Authentication at the engine: requests of a connection whose listener asks who its client is (SASL).

Until a client is authenticated, its requests come here and nowhere else: ApiVersions, SaslHandshake, SaslAuthenticate,
and bare tokens. They are small. Settings limit the clients that authenticate at once, in all and of one address. The
other clients wait, and addresses take turns. A client that takes too long is disconnected.

A failure is answered after `connection.failed.authentication.delay.ms`. Its connection alone waits, and is not read.
broker.security.sasl.authentication decides which request may come when.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from broker.channel.connection import Connection
from broker.channel.request_channel import RequestChannel
from broker.engine.api_table import Api
from broker.now import Now
from broker.security.handshakes import Handshakes
from broker.security.sasl.authentication import (
    API_VERSIONS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Authentication,
    AuthenticationFailed,
)
from broker.services.context import BrokerServices, RequestContext
from broker.wire.errors import ErrorCode, WireError
from broker.wire.frame import LENGTH_BYTES, RequestHeader, read_request_header
from broker.wire.request_limits import DEFAULT_LIMITS

RECEIVE_LIMIT = "sasl.server.max.receive.size"
REQUEST_LIMIT = "socket.request.max.bytes"
_HANDSHAKE_KEY = SASL_HANDSHAKE.to_bytes(2, "big")


@dataclass(slots=True)
class SaslRequest:
    """A request of a client that is not authenticated: its row of the API table, header and content."""

    api: Api
    header: RequestHeader
    content: Any


class Authenticator:
    """The authentications of an engine's connections."""

    def __init__(self, services: BrokerServices, channel: RequestChannel, apis: Mapping[int, Api]) -> None:
        self._services = services
        self._channel = channel
        self._apis = apis
        config = services.config
        self._timeout_ms = config.authentication_timeout_ms
        self._under_way: Handshakes[Connection] = Handshakes(
            config.authentications_max, config.authentications_max_per_address, self._timeout_ms
        )
        self._figures = services.sasl.figures

    # --- connections ---------------------------------------------------------------------------------------------

    def opened(self, conn: Connection, now: Now) -> None:
        """Ask a new client who it is, if its listener does. Over TLS that begins once the connection is `secured`."""
        sasl = self._services.sasl
        if conn.listener in sasl:
            conn.authentication = sasl.begin(conn.listener)
            conn.decoder.limit(sasl.max_receive_bytes(conn.listener), RECEIVE_LIMIT)
            if not sasl.is_over_tls(conn.listener):
                self.secured(conn, now)

    def secured(self, conn: Connection, now: Now) -> None:
        """Begin an authentication, or let it wait for others."""
        if conn.authentication is None:
            return
        if not self._under_way.opened(conn, conn.address, now.ms):
            conn.wait_for_turn(True)
            self._channel.connections.stalled.append(conn)
        self._figures.open = len(self._under_way)

    def closed(self, conn: Connection) -> None:
        """Forget a connection. If its client leaves because its token was refused, that is why it is closed."""
        if conn.authentication is None:
            return
        refusal = conn.authentication.refusal
        if refusal is not None and conn.close(refusal):
            self._figures.failed += 1
        self._ended(conn)

    def _ended(self, conn: Connection) -> None:
        """Let others begin, because an authentication is over or its connection closed."""
        for begun in self._under_way.ended(conn):
            begun.wait_for_turn(False)
            self._channel.connections.stalled.append(begun)  # so that the shell reads from it again
            self._channel.queue.resume(begun)
        self._figures.open = len(self._under_way)

    def next_deadline_ms(self) -> int | None:
        return self._under_way.next_deadline_ms()

    def close_late(self, now: Now) -> None:
        """Close the connections whose clients did not authenticate in time."""
        for conn in self._under_way.late(now.ms):
            self._figures.failed += 1
            reason = f"it did not authenticate within {self._timeout_ms} ms (flakelog.authentication.timeout.ms)"
            self._channel.connections.close(conn, reason)
            self._ended(conn)

    # --- requests ------------------------------------------------------------------------------------------------

    def admits(self, conn: Connection, frame: memoryview) -> bool:
        """Return True if a request is of an authenticated client. Otherwise take it. Raise WireError or ApiError."""
        authentication, now = conn.authentication, self._channel.clock.now
        if authentication is None:
            return True
        if authentication.is_complete:
            if frame[:2] == _HANDSHAKE_KEY and authentication.begin_again(now):
                conn.decoder.limit(self._services.sasl.max_receive_bytes(conn.listener), RECEIVE_LIMIT)
            elif authentication.has_expired(now):
                self._figures.expired += 1
                raise WireError("its session has expired without another login (connections.max.reauth.ms)")
            else:
                return True
        if authentication.takes_bare_tokens:
            self._take_bare_token(conn, authentication, bytes(frame))
        else:
            self._take_request(conn, authentication, frame)
        if not conn.readable:
            self._channel.connections.stalled.append(conn)
        return False

    def _take_request(self, conn: Connection, authentication: Authentication, frame: memoryview) -> None:
        header = read_request_header(frame)
        key, api = header.api_key, self._apis.get(header.api_key)
        try:
            authentication.check_request(key, f"with key {key}" if api is None else api.name)
        except AuthenticationFailed as error:
            self._fail(conn, error, None)
            return
        assert api is not None, "the three APIs are served"
        if not api.serves(header.version):
            self._take_unsupported(conn, authentication, api, header)
            return
        content = api.codec.decode(header.version, frame, api.body(frame, header), DEFAULT_LIMITS)[0]
        request = SaslRequest(api, header, content)
        if key == API_VERSIONS:
            self._answer_versions(conn, authentication, request)
        elif key == SASL_HANDSHAKE:
            self._shake_hands(conn, authentication, request)
        else:
            assert key == SASL_AUTHENTICATE
            self._take_token(conn, authentication, request)

    def _take_unsupported(
        self, conn: Connection, authentication: Authentication, api: Api, header: RequestHeader
    ) -> None:
        """Answer an unknown version of ApiVersions (KIP-511). Raise WireError for another API."""
        if api.key != API_VERSIONS:
            raise WireError(api.not_served(header.version))
        authentication.versions_answered(ErrorCode.UNSUPPORTED_VERSION)
        self._channel.reply(conn, api.codec, 0, header.correlation_id, api.unsupported_versions(), None)

    def _answer_versions(self, conn: Connection, authentication: Authentication, request: SaslRequest) -> None:
        header = request.header
        call = RequestContext(
            self._services, header.version, header.client_id, conn.peer, request.content, listener=conn.listener
        )
        response = request.api.handle(call, self._channel.clock.now)
        authentication.versions_answered(response["error_code"])
        self._reply(conn, request, response)

    def _shake_hands(self, conn: Connection, authentication: Authentication, request: SaslRequest) -> None:
        response = {"error_code": ErrorCode.NONE, "mechanisms": authentication.mechanisms}
        try:
            authentication.handshake(request.header.version, request.content.mechanism)
        except AuthenticationFailed as error:
            self._fail(conn, error, request, response | {"error_code": error.code})
        else:
            self._reply(conn, request, response)

    def _take_token(self, conn: Connection, authentication: Authentication, request: SaslRequest) -> None:
        try:
            accepted = authentication.token(bytes(request.content.auth_bytes), self._channel.clock.now)
        except AuthenticationFailed as error:
            response = {"error_code": error.code, "error_message": error.client_message, "auth_bytes": b""}
            self._fail(conn, error, request, response)
            return
        response = {"error_code": ErrorCode.NONE, "error_message": None, "auth_bytes": accepted.token}
        self._reply(conn, request, response | {"session_lifetime": accepted.session_ms})
        self._succeed(conn, authentication)

    def _take_bare_token(self, conn: Connection, authentication: Authentication, token: bytes) -> None:
        """Take a token after SaslHandshake v0. The answer is bare too, and a failure has none."""
        try:
            accepted = authentication.token(token, self._channel.clock.now)
        except AuthenticationFailed as error:
            self._fail(conn, error, None)
            return
        conn.put_reply(len(accepted.token).to_bytes(LENGTH_BYTES, "big") + accepted.token)
        self._channel.connections.answered.append(conn)
        self._succeed(conn, authentication)

    def _succeed(self, conn: Connection, authentication: Authentication) -> None:
        """Serve the client as the user that it has proved to be, once it has."""
        if authentication.is_complete and authentication.user is not None:
            conn.user = authentication.user
            conn.decoder.limit(self._services.config.socket_request_max_bytes, REQUEST_LIMIT)
            self._figures.succeeded += 1
            self._ended(conn)

    # --- failures ------------------------------------------------------------------------------------------------

    def _fail(
        self, conn: Connection, error: AuthenticationFailed, request: SaslRequest | None, response: Any | None = None
    ) -> None:
        """Answer a failure, if it has a response, and close the connection: now, or after the delay."""
        self._figures.failed += 1
        self._ended(conn)
        end = partial(self._end, conn, str(error), request, response)
        now, delay_ms = self._channel.clock.now, self._services.config.connection_failed_authentication_delay_ms
        if error.is_delayed and delay_ms:
            conn.mute(self._services.purgatory.call_at(now.ms + delay_ms, end))
        else:
            end(now)

    def _end(self, conn: Connection, reason: str, request: SaslRequest | None, response: Any | None, now: Now) -> None:
        conn.mute(None)
        if request is not None:
            self._reply(conn, request, response)
        self._channel.connections.close(conn, reason)

    def _reply(self, conn: Connection, request: SaslRequest, response: Any) -> None:
        header = request.header
        self._channel.reply(conn, request.api.codec, header.version, header.correlation_id, response, None)
