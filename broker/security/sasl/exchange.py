"""The interface of SASL mechanisms: an exchange of tokens in which one client proves its user."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

PLAIN = "PLAIN"
SCRAM_SHA_256, SCRAM_SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
OAUTHBEARER = "OAUTHBEARER"
GSSAPI = "GSSAPI"
SERVED = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)


class Rejected(Exception):
    """A token that proves nothing. The message is for the operator.

    `client_message` is for the client, None for a text that names the mechanism only.
    """

    def __init__(self, message: str, client_message: str | None = None) -> None:
        super().__init__(message)
        self.client_message = client_message


class Proof(NamedTuple):
    """The user that a client has proved to be, until a wall-clock time if its credential expires."""

    user: str
    expires_wall_ms: int | None = None


class SaslExchange(Protocol):
    """The exchange of one client. `proof` is None until the client has proved its user."""

    proof: Proof | None

    @property
    def refusal(self) -> str | None:
        """Return why a token proves nothing, after an answer that only said so; else None."""

    def answer(self, token: bytes, wall_ms: int) -> bytes:
        """Return the answer to the client's next token. Raise Rejected."""


class Mechanism(NamedTuple):
    """A mechanism of a listener. `max_reauth_ms` is `connections.max.reauth.ms`, 0 for sessions without an end."""

    name: str
    begin: Callable[[], SaslExchange]
    max_reauth_ms: int = 0
