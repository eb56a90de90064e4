"""The settings of OAUTHBEARER: where keys and tokens are, and what a token must say."""

from collections.abc import Collection
from dataclasses import dataclass

TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID = "sasl.oauthbearer.client.credentials.client.id"
CLIENT_SECRET = "sasl.oauthbearer.client.credentials.client.secret"
SCOPE = "sasl.oauthbearer.scope"
_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_HANDLERS = _HANDLER, _HANDLER.replace("OAuthBearerL", "secured.OAuthBearerL")


def check_token_url(value: str) -> str | None:
    """Return what a valid value of TOKEN_URL would be, None if this is one."""
    is_known = value.startswith(("https://", "http://", "file:///"))
    return None if is_known else "must be https://..., http://... or file:///..., a file that has the token"


def check_handler(value: str) -> str | None:
    """Return what a valid callback handler of logins would be, None if this is one."""
    return None if value in _HANDLERS else f"a class in Java cannot be used; leave it out, or give {_HANDLER}"


@dataclass(frozen=True)
class KeySource:
    """The place of a key set, and how often it is fetched."""

    url: str
    refresh_ms: int
    backoff_ms: int
    backoff_max_ms: int


@dataclass(frozen=True)
class TokenRules:
    """The demands on a token. Without expected audiences it must have no audience, as in Kafka."""

    audiences: Collection[str] = ()
    issuer: str | None = None
    clock_skew_ms: int = 30_000
    scope_claim: str = "scope"
    user_claim: str = "sub"
