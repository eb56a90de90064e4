"""OAUTHBEARER (RFC 7628, KIP-255, KIP-768): the client shows a token that an identity provider has signed.

A token that proves nothing is answered with its error as JSON. The client acknowledges that with the byte 1, and only
then the authentication has failed.
"""

import re
from collections.abc import Callable

from broker.security.sasl.exchange import Proof, Rejected
from broker.security.sasl.user_text import quoted

_NAME = r"(?:[^\x00=,]|=2C|=3D)+"
_FIRST = re.compile(rf"n,(?:a=({_NAME}))?,\x01((?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01")
_AUTH = re.compile(r"(\w+) +([-_.a-zA-Z0-9]+)")
_INVALID = '{"status":"invalid_token"}'

ReadToken = Callable[[str, int], Proof]
"""Returns the user of a token at a wall-clock time. Raises Rejected."""


class OauthExchange:
    """The exchange of a client."""

    def __init__(self, read: ReadToken) -> None:
        self._read = read
        self._failure: Rejected | None = None
        self.proof: Proof | None = None

    @property
    def refusal(self) -> str | None:
        return None if self._failure is None else str(self._failure)

    def answer(self, token: bytes, wall_ms: int) -> bytes:
        if self._failure is not None:
            raise Rejected(str(self._failure), _INVALID)
        identity, web_token = _parts(token)
        try:
            proof = self._read(web_token, wall_ms)
        except Rejected as failure:
            self._failure = failure
            return _INVALID.encode()
        if identity is not None and identity != proof.user:
            message = (
                f"Authentication failed: Client requested an authorization id ({identity}) that is different from the "
                f"token's principal name ({proof.user})"
            )
            raise Rejected(f"user {quoted(proof.user)} asks for the rights of {quoted(identity)}", message)
        self.proof = proof
        return b""


def _parts(message: bytes) -> tuple[str | None, str]:
    """Return the authorization id, if there is one, and the token. Raise Rejected."""
    try:
        match = _FIRST.fullmatch(message.decode())
    except UnicodeDecodeError:
        match = None
    if match is None:
        raise Rejected("Invalid OAUTHBEARER client first message")
    pairs = dict(pair.partition("=")[::2] for pair in match[2].split("\x01") if pair)
    auth = _AUTH.fullmatch(pairs.get("auth", ""))
    if auth is None or auth[1].lower() != "bearer":
        raise Rejected("Invalid OAUTHBEARER client first message: 'auth' has no bearer token")
    identity = match[1]
    return (identity and identity.replace("=2C", ",").replace("=3D", "=")), auth[2]
