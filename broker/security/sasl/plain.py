"""PLAIN (RFC 4616): the client sends its user and password, which the listener's JAAS text has."""

import hmac
from collections.abc import Mapping

from broker.security.sasl.exchange import Proof, Rejected
from broker.security.sasl.user_text import quoted

_WRONG = "Authentication failed: Invalid username or password"
_OTHER_IDENTITY = "Authentication failed: Client requested an authorization id that is different from username"


class Passwords:
    """The passwords of a listener's users. `key` is random: it makes all digests equally long, and says nothing."""

    def __init__(self, passwords: Mapping[str, str], key: bytes) -> None:
        self._key = key
        self._digests = {user: self._digest(password) for user, password in passwords.items()}
        self._nobodys = self._digest("")
        """The digest that an unknown user's password is compared with; no client sends an empty password."""

    def fits(self, user: str, password: str) -> bool:
        """Return True if the user has this password. An unknown user takes as long as a wrong password."""
        digest = self._digests.get(user, self._nobodys)
        return hmac.compare_digest(self._digest(password), digest)

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._key, password.encode(), "sha256")


class PlainExchange:
    """The exchange of a client: one token of authorization id, user and password, separated by zero bytes."""

    refusal = None

    def __init__(self, passwords: Passwords) -> None:
        self._passwords = passwords
        self.proof: Proof | None = None

    def answer(self, token: bytes, wall_ms: int) -> bytes:
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            raise Rejected("its PLAIN token is no UTF-8") from None
        if len(parts) != 3:
            raise Rejected(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        identity, user, password = parts
        if not user:
            raise Rejected("Authentication failed: username not specified")
        if not password:
            raise Rejected("Authentication failed: password not specified")
        if not self._passwords.fits(user, password):
            raise Rejected(f"unknown user or wrong password: {quoted(user)}", _WRONG)
        if identity not in ("", user):
            raise Rejected(f"user {quoted(user)} asks for the rights of {quoted(identity)}", _OTHER_IDENTITY)
        self.proof = Proof(user)
        return b""
