"""The settings of OAUTHBEARER: where the keys of tokens are, and what a token must say."""

from collections.abc import Collection
from dataclasses import dataclass


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
