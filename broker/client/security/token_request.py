"""How a client gets tokens of OAUTHBEARER from an identity provider, without I/O.

The client proves itself to the provider's token endpoint, and gets a token:

    client credentials   by its id and secret (RFC 6749, section 4.4; KIP-768), or by its id and an assertion (RFC
                         7523, section 2.2; KIP-1258)
    JWT bearer           by an assertion alone (RFC 7523, section 2.1; KIP-1139)

Times are Unix seconds.
"""

import json
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote_plus, urlencode

from broker.security.sasl.assertion_config import AssertionConfig
from broker.security.sasl.user_text import quoted_message

CLIENT_CREDENTIALS, JWT_BEARER = "client_credentials", "urn:ietf:params:oauth:grant-type:jwt-bearer"
_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_YEAR_10000 = 253_402_300_800  # `datetime` ends there
_FRESH_SHARE = 0.8  # Kafka's sasl.login.refresh.window.factor
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.1, 10.0  # Kafka's sasl.login.retry.backoff.ms and .max.ms


class TokenRequest(NamedTuple):
    """A request to a token endpoint. No `repr` shows its secret."""

    url: str
    client_id: str = ""
    client_secret: str = ""
    scope: str | None = None
    assertion: AssertionConfig | None = None
    """The settings of the assertion that is in place of the secret."""
    grant: str = CLIENT_CREDENTIALS
    encodes_login: bool = False
    """True if id and secret are URL-encoded in the header, as RFC 6749 has it (section 2.3.1)."""

    def __repr__(self) -> str:
        return f"TokenRequest({self.url})"

    @property
    def headers(self) -> dict[str, str]:
        headers = {
            "Accept": "application/json",
            "Cache-Control": "no-cache",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        if self.assertion is None:
            login = self.client_id, self.client_secret
            text = ":".join(map(quote_plus, login) if self.encodes_login else login)
            headers["Authorization"] = f"Basic {b64encode(text.encode()).decode()}"
        return headers

    def body(self, assertion: str = "") -> bytes:
        """Return the form to send; `assertion` is the text of the assertion, if the request has one."""
        fields = {"grant_type": self.grant}
        if self.grant == JWT_BEARER:
            fields["assertion"] = assertion
        elif self.assertion is not None:
            fields |= {"client_assertion_type": _ASSERTION_TYPE, "client_assertion": assertion}
            fields |= {"client_id": self.client_id} if self.client_id else {}
        return urlencode(fields | ({"scope": self.scope} if self.scope else {})).encode()


class FetchedToken(NamedTuple):
    """A token, and when it expires; None if the provider does not say that."""

    text: str
    expires_s: float | None

    def __repr__(self) -> str:
        return "FetchedToken(hidden)"


def parse_answer(data: bytes, now_s: float) -> FetchedToken:
    """Return the token in an answer of a token endpoint. Raise ValueError."""
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, Mapping):
        raise ValueError("its answer is no JSON object")
    token = answer.get("access_token") or answer.get("id_token")
    if not isinstance(token, str):
        raise ValueError("its answer has no access_token")
    end_s = end_of(token)
    if end_s is None:
        lifetime_s = _number(answer.get("expires_in"))
        end_s = None if lifetime_s is None else now_s + lifetime_s
    return FetchedToken(token, end_s)


def reason_in(data: bytes) -> str:
    """Return what an answer that refuses a token says (RFC 6749, section 5.2), as " ('invalid_client')", or ""."""
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(answer, Mapping):
        return ""
    texts = [text for name in ("error", "error_description") if isinstance(text := answer.get(name), str)]
    return f" ({', '.join(map(quoted_message, texts))})" if texts else ""


def end_of(token: str) -> float | None:
    """Return when a signed token says that it expires (RFC 7519, `exp`); None if it is no such token.

    The signature is not checked: a client believes its own provider.
    """
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    return _number(claims.get("exp")) if isinstance(claims, dict) else None


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < _YEAR_10000 else None


class TokenCache:
    """The last token of an endpoint, and when the next one is to be fetched.

    That is once 80 % of its lifetime are over, as in Kafka. After a failure it is after a pause, which doubles from
    0.1 s to 10 s; the last token is used as long as it lives. A token without an end is fetched for each login.
    """

    def __init__(self) -> None:
        self._token: FetchedToken | None = None
        self._due_s = float("-inf")
        self._pause_s = _PAUSE_SECONDS
        self._failure = "none has been fetched yet"

    def is_due(self, now_s: float) -> bool:
        """Return True if a token is to be fetched before a login now."""
        return self._due_s <= now_s

    def fetched(self, token: FetchedToken, now_s: float) -> None:
        """Take a new token."""
        self._token, self._pause_s, self._failure = token, _PAUSE_SECONDS, "the last one has expired"
        end_s = token.expires_s
        self._due_s = now_s if end_s is None else now_s + _FRESH_SHARE * max(end_s - now_s, 0.0)

    def failed(self, reason: str, now_s: float) -> None:
        """Keep the token after a failure."""
        self._failure = reason
        self._due_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, _PAUSE_SECONDS_MAX)

    def present(self, now_s: float) -> str:
        """Return the token for a login. Raise ValueError with the reason if there is none."""
        token = self._token
        if token is None or (token.expires_s is not None and token.expires_s <= now_s):
            raise ValueError(self._failure)
        return token.text
