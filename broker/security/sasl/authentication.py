"""The authentication of one connection by SASL, as a state machine. Times are arguments; no bytes are read here.

    state                          may come                      then
    INITIAL_REQUEST                ApiVersions, SaslHandshake    HANDSHAKE_OR_VERSIONS_REQUEST
    HANDSHAKE_OR_VERSIONS_REQUEST  ApiVersions                   HANDSHAKE_REQUEST, once it is answered without an error
                                   SaslHandshake                 AUTHENTICATE
    HANDSHAKE_REQUEST              SaslHandshake                 AUTHENTICATE
    AUTHENTICATE                   tokens of the mechanism       COMPLETE, once the user is proved
    COMPLETE                       all requests; SaslHandshake   AUTHENTICATE again, if sessions end (KIP-368)
    REAUTH_BAD_MECHANISM           a token                       FAILED

After SaslHandshake v0 tokens come bare, and after v1 in SaslAuthenticate. Anything else makes it FAILED. States, codes
and texts are Kafka's (SaslServerAuthenticator).
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

from broker.now import Now
from broker.security.sasl.exchange import Mechanism, Proof, Rejected, SaslExchange
from broker.security.sasl.user_text import quoted
from broker.wire.errors import ErrorCode

SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36
REAUTHENTICATION_MS = 1_000
"""The least time between two authentications of a connection, as in Kafka."""


class SaslState(Enum):
    """See the module."""

    INITIAL_REQUEST = "before any request"
    HANDSHAKE_OR_VERSIONS_REQUEST = "before SaslHandshake"
    HANDSHAKE_REQUEST = "before SaslHandshake, after ApiVersions"
    AUTHENTICATE = "while tokens come"
    COMPLETE = "authenticated"
    REAUTH_BAD_MECHANISM = "another mechanism was asked for"
    FAILED = "failed"


class AuthenticationFailed(Exception):
    """The end of an authentication. The message is for the operator.

    `code` and `client_message` are for the client, which gets no answer if `code` is None. If `is_delayed`, the answer
    comes, and the connection is closed, after `connection.failed.authentication.delay.ms`; otherwise it is closed now.
    """

    def __init__(
        self, message: str, code: ErrorCode | None = None, client_message: str | None = None, is_delayed: bool = True
    ) -> None:
        super().__init__(message)
        self.code = code
        self.client_message = client_message
        self.is_delayed = is_delayed


class Accepted(NamedTuple):
    """The answer to a token. `session_ms` is the lifetime of the session that it began, 0 without an end."""

    token: bytes
    session_ms: int = 0


class Authentication:
    """The authentication of one connection. `mechanisms` returns those of its listener, as they are at each login."""

    def __init__(self, mechanisms: Callable[[], Mapping[str, Mechanism]]) -> None:
        self.state = SaslState.INITIAL_REQUEST
        self.user: str | None = None
        """The user that the client has proved to be, also while it authenticates again."""
        self.expires_ms: int | None = None
        """When the session ends, on the monotonic clock; None without an end."""
        self._mechanisms = mechanisms
        self._mechanism: Mechanism | None = None
        self._exchange: SaslExchange | None = None
        self._takes_bare_tokens = False
        self._other_mechanism = ""
        self._began_again_ms: int | None = None

    @property
    def mechanisms(self) -> list[str]:
        return list(self._mechanisms())

    @property
    def mechanism(self) -> str:
        """Return the name of the chosen mechanism, "" before one is chosen."""
        return "" if self._mechanism is None else self._mechanism.name

    @property
    def is_complete(self) -> bool:
        return self.state is SaslState.COMPLETE

    @property
    def takes_bare_tokens(self) -> bool:
        """Return True if the next frame is a token, and no request."""
        return self._takes_bare_tokens and self.state is SaslState.AUTHENTICATE

    @property
    def refusal(self) -> str | None:
        """Return why a token proves nothing, while the client has not acknowledged that (RFC 7628); else None."""
        return None if self._exchange is None or self.state is not SaslState.AUTHENTICATE else self._exchange.refusal

    def has_expired(self, now: Now) -> bool:
        return self.expires_ms is not None and now.ms > self.expires_ms

    # --- requests ------------------------------------------------------------------------------------------------

    def check_request(self, key: int, name: str) -> None:
        """Raise AuthenticationFailed unless a request of this API may come now."""
        if self.state in (SaslState.AUTHENTICATE, SaslState.REAUTH_BAD_MECHANISM):
            if key != SASL_AUTHENTICATE:
                reason = f"Unexpected Kafka request of type {name} during SASL authentication."
                first = "" if self.refusal is None else f"{self.refusal}; then "
                raise self._failed(first + reason, ErrorCode.ILLEGAL_SASL_STATE, reason)
        elif key not in (API_VERSIONS, SASL_HANDSHAKE):
            reason = f"Unexpected Kafka request of type {name} during SASL handshake."
            if self.state is SaslState.INITIAL_REQUEST:
                reason += " Set security.protocol and sasl.mechanism at the client"
            raise self._failed(reason, is_delayed=False)
        elif key == API_VERSIONS and self.state is SaslState.HANDSHAKE_REQUEST:
            raise self._failed("it asks for ApiVersions twice before SaslHandshake", is_delayed=False)

    def versions_answered(self, error: ErrorCode) -> None:
        """Note the answer to ApiVersions. A client that got an error may ask again in another version."""
        self.state = SaslState.HANDSHAKE_OR_VERSIONS_REQUEST if error else SaslState.HANDSHAKE_REQUEST

    def handshake(self, version: int, mechanism: str) -> None:
        """Begin the exchange of a mechanism. Raise AuthenticationFailed."""
        chosen = self._mechanisms().get(mechanism)
        self._takes_bare_tokens = version == 0
        if chosen is None:
            reason = f"Unsupported SASL mechanism {quoted(mechanism)}; the listener has {', '.join(self.mechanisms)}"
            raise self._failed(reason, ErrorCode.UNSUPPORTED_SASL_MECHANISM)
        if self._is_again and mechanism != self.mechanism:
            self._other_mechanism = mechanism
            self.state = SaslState.REAUTH_BAD_MECHANISM  # a token is answered with the error
            return
        self._mechanism, self._exchange = chosen, chosen.begin()
        self.state = SaslState.AUTHENTICATE

    def token(self, token: bytes, now: Now) -> Accepted:
        """Take a token of the client, and return the answer. Raise AuthenticationFailed."""
        exchange, mechanism = self._exchange, self._mechanism
        if self.state is SaslState.REAUTH_BAD_MECHANISM:
            other = quoted(self._other_mechanism)
            reason = f"SASL mechanism {other} requested by client is not supported for re-authentication of mechanism "
            raise self._failed(
                f"{reason}'{self.mechanism}'", ErrorCode.SASL_AUTHENTICATION_FAILED, f"{reason}'{self.mechanism}'"
            )
        if exchange is None or mechanism is None or self.state is not SaslState.AUTHENTICATE:
            raise self._failed("it sends a token without a handshake", ErrorCode.ILLEGAL_SASL_STATE)
        try:
            answer = exchange.answer(token, now.wall_ms)
        except Rejected as error:
            general = f"Authentication failed during {self._text} due to invalid credentials with SASL mechanism "
            message = error.client_message or general + mechanism.name
            raise self._failed(str(error), ErrorCode.SASL_AUTHENTICATION_FAILED, message) from None
        return Accepted(answer) if exchange.proof is None else self._complete(answer, exchange.proof, mechanism, now)

    def _complete(self, answer: bytes, proof: Proof, mechanism: Mechanism, now: Now) -> Accepted:
        if self.user not in (None, proof.user):
            users = f"User.{self.user}: User.{proof.user}"
            message = f"Cannot change principals during re-authentication from {users}"
            reason = f"user {quoted(self.user or '')} authenticates again as {quoted(proof.user)}"
            raise self._failed(reason, ErrorCode.SASL_AUTHENTICATION_FAILED, message)
        ends = [mechanism.max_reauth_ms] if mechanism.max_reauth_ms > 0 else []
        if proof.expires_wall_ms is not None:
            ends.append(max(proof.expires_wall_ms - now.wall_ms, 0))
        self.user, self._exchange, self.state = proof.user, None, SaslState.COMPLETE
        self.expires_ms = now.ms + min(ends) if ends else None
        return Accepted(answer, min(ends, default=0))

    # --- KIP-368 -------------------------------------------------------------------------------------------------

    def begin_again(self, now: Now) -> bool:
        """Begin to authenticate again with a SaslHandshake. Return False if it is too early, or sessions do not end.

        Kafka answers such a handshake with ILLEGAL_SASL_STATE.
        """
        last_ms = self._began_again_ms
        is_early = last_ms is not None and now.ms - last_ms < REAUTHENTICATION_MS
        if self.state is not SaslState.COMPLETE or self.expires_ms is None or is_early:
            return False
        self._began_again_ms = now.ms
        self.state = SaslState.HANDSHAKE_REQUEST
        return True

    @property
    def _is_again(self) -> bool:
        return self.user is not None

    @property
    def _text(self) -> str:
        return "re-authentication" if self._is_again else "authentication"

    def _failed(
        self, reason: str, code: ErrorCode | None = None, client_message: str | None = None, is_delayed: bool = True
    ) -> AuthenticationFailed:
        self.state = SaslState.FAILED
        return AuthenticationFailed(reason, code, client_message, is_delayed)
