"""The login of a connection, as an operation: a generator of requests and their answers, without I/O (KIP-43, KIP-152).

    client   SaslHandshake v1           the mechanism
    server   its mechanisms
    client   SaslAuthenticate           a token, as often as the mechanism needs
    server   a token, and at the end the lifetime of the session

A session that ends is renewed over the same connection by another login (KIP-368). It begins after 85 to 95 % of the
lifetime, as with Kafka's clients, so that many connections do not renew at once.
"""

from broker.client.address import Address
from broker.client.api_versions import SASL_AUTHENTICATE, SASL_HANDSHAKE
from broker.client.errors import BrokerError, NotAuthenticated
from broker.client.exchange import Exchange, Steps
from broker.client.security.mechanisms import ClientExchange, LoginRefused
from broker.security.sasl.user_text import quoted_message
from broker.wire import cold
from broker.wire.errors import ErrorCode
from broker.wire.schema import schema

NEWEST_VERSION = 2  # of SaslAuthenticate
RENEWAL_MS_MIN = 1_000  # Kafka's brokers refuse a second renewal within a second
_EARLIEST, _LATEST = 0.85, 0.95


def log_in(address: Address, mechanism: str, exchange: ClientExchange, version: int = NEWEST_VERSION) -> Steps[int]:
    """Log in, with SaslAuthenticate of this version. Return the session's lifetime in ms, 0 for one without an end.

    Raise NotAuthenticated.
    """
    yield from _shake_hands(address, mechanism)
    token: bytes | None = exchange.first()
    lifetime_ms = 0
    flexible = bool(schema(SASL_AUTHENTICATE, version, "request").__flexible__)
    while token is not None:
        body = cold.encode(SASL_AUTHENTICATE, version, "request", {"auth_bytes": token})
        answer = yield Exchange(address, SASL_AUTHENTICATE, version, flexible, body)
        response = cold.decode(SASL_AUTHENTICATE, version, "response", answer, 0, NEWEST_VERSION).newest
        if response.error_code:
            reason = _refused(mechanism, response.error_code, response.error_message, exchange.remedy)
            raise NotAuthenticated(str(address), reason)
        try:
            token = exchange.answer(bytes(response.auth_bytes))
        except LoginRefused as error:
            raise NotAuthenticated(str(address), f"the login by {mechanism} failed: {error}") from None
        lifetime_ms = int(response.session_lifetime.total_seconds() * 1_000)
    return lifetime_ms


def renewal_ms(lifetime_ms: int, share: float) -> int:
    """Return how long after a login the next one begins; `share` is random, between 0 and 1.

    A session that is shorter than a second ends before, and with it its connection.
    """
    return max(round(lifetime_ms * (_EARLIEST + share * (_LATEST - _EARLIEST))), RENEWAL_MS_MIN)


def _shake_hands(address: Address, mechanism: str) -> Steps[None]:
    body = cold.encode(SASL_HANDSHAKE, 1, "request", {"mechanism": mechanism})
    answer = yield Exchange(address, SASL_HANDSHAKE, 1, False, body)
    response = cold.decode(SASL_HANDSHAKE, 1, "response", answer, 0, 1).newest
    if response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        reason = "the listener asks for no login: set security.protocol=PLAINTEXT, or SSL where it speaks TLS"
        raise NotAuthenticated(str(address), reason)
    if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        served = ", ".join(response.mechanisms)
        raise NotAuthenticated(str(address), f"the listener has no {mechanism}: set sasl.mechanism to one of {served}")
    if response.error_code:
        raise NotAuthenticated(str(address), _refused(mechanism, response.error_code, None))


def _refused(mechanism: str, code: int, message: str | None, remedy: str = "") -> str:
    shown = f" ({quoted_message(message)})" if message else ""
    if code == ErrorCode.SASL_AUTHENTICATION_FAILED:
        return f"the broker refuses the login by {mechanism}{shown}; {remedy}"
    return f"the broker refuses the login by {mechanism}: {BrokerError(code, 'login').code.name}{shown}"
