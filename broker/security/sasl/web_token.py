"""Signed tokens (JWT, RFC 7519) that prove a client's user: their signature, their claims, and their time.

The rules are those of Kafka's BrokerJwtValidator. PyJWT was not taken, because it reads the clock itself; the signature
is checked by `cryptography` (broker.security.sasl.web_keys).
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from broker.security.sasl.exchange import Proof, Rejected
from broker.security.sasl.token_rules import TokenRules
from broker.security.sasl.user_text import quoted
from broker.security.sasl.web_keys import WebKey, decoded

FindKeys = Callable[[str | None], Iterable[WebKey]]
"""Returns the keys of a name, all keys for None."""


def read_token(token: str, find_keys: FindKeys, rules: TokenRules, wall_ms: int) -> Proof:
    """Return the user of a token, and its end. Raise Rejected."""
    parts = token.split(".")
    if len(parts) != 3:
        raise Rejected(f"a signed token has three parts, and this one has {len(parts)}")
    header, claims = _object(parts[0], "header"), _object(parts[1], "claims")
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or not isinstance(key_id, str | None) or "crit" in header:
        raise Rejected("the header of the token is not understood")
    try:
        signature = decoded(parts[2])
    except ValueError:
        raise Rejected("the signature of the token is no base64url") from None
    signed = f"{parts[0]}.{parts[1]}".encode()
    keys = list(find_keys(key_id))
    if not keys:
        raise Rejected(f"no key signs tokens under the name {quoted(str(key_id))}")
    if not any(algorithm in key.algorithms for key in keys):
        raise Rejected(f"the key of the token does not sign by {quoted(algorithm)}")
    if not any(key.verifies(algorithm, signature, signed) for key in keys):
        raise Rejected("the signature of the token is not by a key of the identity provider")
    return _proof(claims, rules, wall_ms)


def _object(part: str, name: str) -> dict[str, Any]:
    try:
        value = json.loads(decoded(part))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Rejected(f"the {name} of the token cannot be read")
    return value


def _proof(claims: dict[str, Any], rules: TokenRules, wall_ms: int) -> Proof:
    expires_ms, begins_ms = _time(claims, "exp"), _time(claims, "nbf")
    if expires_ms is None or _time(claims, "iat") is None:
        raise Rejected("the token does not say when it was issued and when it expires (iat, exp)")
    if wall_ms - rules.clock_skew_ms >= expires_ms:
        raise Rejected(f"the token expired {(wall_ms - expires_ms) // 1_000} s ago")
    if begins_ms is not None and wall_ms + rules.clock_skew_ms < begins_ms:
        raise Rejected(f"the token is not valid for another {(begins_ms - wall_ms) // 1_000} s")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise Rejected(f"the token is of the issuer {quoted(str(claims.get('iss')))}")
    _check_audience(claims, rules)
    _check_scopes(claims.get(rules.scope_claim), rules.scope_claim)
    user = claims.get(rules.user_claim)
    if not isinstance(user, str) or not user.strip():
        raise Rejected(f"the token names no user in its claim {rules.user_claim}")
    return Proof(user.strip(), expires_ms)


def _time(claims: dict[str, Any], name: str) -> int | None:
    seconds = claims.get(name)
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not abs(seconds) < 1 << 40:
        raise Rejected(f"the claim {name} of the token is no time")
    return int(seconds * 1_000)


def _check_audience(claims: dict[str, Any], rules: TokenRules) -> None:
    audience = claims.get("aud")
    named = [audience] if isinstance(audience, str) else audience
    if named is None and not rules.audiences:
        return
    if not isinstance(named, list) or not any(name in rules.audiences for name in named if isinstance(name, str)):
        raise Rejected(f"the token is for the audience {quoted(str(audience))}")


def _check_scopes(scopes: Any, claim: str) -> None:
    listed = [] if scopes is None else [scopes] if isinstance(scopes, str) else scopes
    are_texts = isinstance(listed, list) and all(isinstance(scope, str) and scope.strip() for scope in listed)
    if not are_texts or len(set(listed)) < len(listed):
        raise Rejected(f"the claim {claim} of the token is no list of scopes")
