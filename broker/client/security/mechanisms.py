"""The client's side of SASL's mechanisms, without I/O: tokens for the server, and the check of its answers.

PLAIN (RFC 4616), SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677) and OAUTHBEARER (RFC 7628), as Kafka's clients
speak them. SCRAM proves the server too: one that does not know the password is refused.
"""

import hmac
import re
from base64 import b64decode, b64encode
from datetime import UTC, datetime
from typing import Protocol

from broker.client.security.token_request import end_of
from broker.security.sasl.scram import DIGESTS
from broker.security.sasl.scram_keys import ITERATIONS_MIN, keys_of, salted
from broker.security.sasl.user_text import quoted, quoted_message

ITERATIONS_MAX = 100_000  # Kafka's brokers take at most 16,384; more would stop a reactor for long

_FIRST = re.compile(r"r=([\x21-\x2b\x2d-\x7e]+),s=([a-zA-Z0-9/+]+={0,2}),i=([0-9]{1,9})(?:,.*)?")
_FINAL = re.compile(r"(?:v=([a-zA-Z0-9/+]+={0,2})|e=([^,]*))(?:,.*)?")
_SEPARATOR = "\x01"


class LoginRefused(Exception):
    """The login cannot succeed; the message says why, and what would be right."""


class ClientExchange(Protocol):
    """The exchange of one login."""

    def first(self) -> bytes:
        """Return the first token for the server."""

    def answer(self, token: bytes) -> bytes | None:
        """Take a token of the server. Return the next one for it, None at the end. Raise LoginRefused."""

    @property
    def remedy(self) -> str:
        """Say what to check if the server refuses the login."""


CHECK_PASSWORD = "check user and password in sasl.jaas.config"


class PlainClient:
    """The exchange of PLAIN: one token, which has user and password."""

    remedy = CHECK_PASSWORD

    def __init__(self, user: str, password: str) -> None:
        self._token = f"\0{user}\0{password}".encode()

    def first(self) -> bytes:
        return self._token

    def answer(self, token: bytes) -> None:
        return None


class ScramClient:
    """The exchange of SCRAM. `nonce` is random, of printable ASCII without a comma."""

    remedy = CHECK_PASSWORD

    def __init__(self, mechanism: str, user: str, password: str, nonce: str) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={nonce}"
        self._signature: bytes | None = None
        """What a server that knows the password signs with."""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def answer(self, token: bytes) -> bytes | None:
        try:
            message = token.decode()
        except UnicodeDecodeError:
            raise LoginRefused("the server's SCRAM message is no UTF-8") from None
        if self._signature is None:
            return self._prove(message)
        self._check(message, self._signature)
        return None

    def _prove(self, message: str) -> bytes:
        match = _FIRST.fullmatch(message)
        if match is None:
            raise LoginRefused(f"the server's first SCRAM message is wrong: {quoted_message(message)}")
        nonce, salt, iterations = match[1], _decoded(match[2]), int(match[3])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise LoginRefused("the server's SCRAM nonce does not begin with this client's, so it is of another login")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            bounds = f"{ITERATIONS_MIN} to {ITERATIONS_MAX} are taken"
            raise LoginRefused(f"the server asks for {iterations} iterations of {self._mechanism}, and {bounds}")
        digest = DIGESTS[self._mechanism]
        salted_password = salted(self._password, salt, iterations, self._mechanism)
        keys = keys_of(salted_password, self._mechanism)
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._bare},{message},{without_proof}".encode()
        client_key = hmac.digest(salted_password, b"Client Key", digest)
        signature = hmac.digest(keys.stored_key, signed, digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = hmac.digest(keys.server_key, signed, digest)
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def _check(self, message: str, signature: bytes) -> None:
        match = _FINAL.fullmatch(message)
        if match is None:
            raise LoginRefused(_UNPROVED)
        if match[2] is not None:
            raise LoginRefused(f"the server refuses the proof of the password: {quoted_message(match[2])}")
        if not hmac.compare_digest(_decoded(match[1]), signature):
            raise LoginRefused(_UNPROVED)


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise LoginRefused(f"the server's SCRAM message is wrong: {quoted(text)} is no base64") from None


_UNPROVED = "the server does not prove that it knows the password, so it may not be the one that this user belongs to"


class OauthClient:
    """The exchange of OAUTHBEARER. A server that refuses the token says why, and gets a last token of one byte."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._failure: str | None = None

    @property
    def remedy(self) -> str:
        end_s = end_of(self._token)
        if end_s is None:
            return "check the token"
        return f"check the token; it says that it expires at {datetime.fromtimestamp(end_s, UTC):%Y-%m-%d %H:%M:%S} UTC"

    def first(self) -> bytes:
        return f"n,,{_SEPARATOR}auth=Bearer {self._token}{_SEPARATOR}{_SEPARATOR}".encode()

    def answer(self, token: bytes) -> bytes | None:
        if self._failure is not None:
            raise LoginRefused(self._failure)
        if not token:
            return None
        self._failure = f"the server refuses the token: {quoted_message(token.decode(errors='replace'))}"
        return _SEPARATOR.encode()


def is_token(text: str) -> bool:
    """Return True if a text has the form of a bearer token (RFC 6750), so that it fits its place in the message."""
    return re.fullmatch(r"[-a-zA-Z0-9._~+/]+=*", text) is not None
