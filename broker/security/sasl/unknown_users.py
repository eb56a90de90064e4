"""Made-up credentials of users that do not exist, so that a client does not learn which users exist.

A made-up credential looks like one of the real ones: its salt has a length, an alphabet and iterations that a real
credential has. It is made from a secret of the server, so that the same name gets the same salt at each try.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from broker.security.sasl.scram import DIGESTS, ScramCredential
from broker.security.sasl.scram_keys import ITERATIONS_MIN, SALT_CHARACTERS, SALT_LENGTH

SECRET_BYTES = 32
_TEXT = SALT_CHARACTERS.encode()


class Shape(NamedTuple):
    """The visible properties of a credential beside the salt's bytes."""

    iterations: int = ITERATIONS_MIN  # Kafka's default
    salt_bytes: int = SALT_LENGTH
    is_text: bool = True


class MadeUp(NamedTuple):
    """The credential of an unknown user; no proof fits its keys."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


C = TypeVar("C", bound=ScramCredential)


class Credentials:
    """The credentials of one mechanism. `current` returns those of all users and mechanisms, a new object after each
    change; `number` is Kafka's of the mechanism there."""

    def __init__(
        self, mechanism: str, number: int, current: Callable[[], Mapping[tuple[str, int], C]], secret: bytes
    ) -> None:
        self._digest = DIGESTS[mechanism]
        self._number = number
        self._current = current
        self._secret = hmac.digest(secret, mechanism.encode(), "sha256")
        self._known: Mapping[tuple[str, int], C] | None = None
        self._shapes: tuple[Shape, ...] = ()

    def find(self, user: str) -> tuple[ScramCredential, bool]:
        """Return a user's credential, and whether the user is known. Both cases take the same time."""
        credentials = self._current()
        if credentials is not self._known:
            self._known = credentials
            self._shapes = shapes_of(value for (_, number), value in credentials.items() if number == self._number)
        made_up = self._made_up(user)
        credential = credentials.get((user, self._number))
        return (made_up, False) if credential is None else (credential, True)

    def _made_up(self, user: str) -> MadeUp:
        name = user.encode("utf-8", "surrogatepass")
        # The shape with the highest digest: another shape that comes or goes changes the choice for few names.
        shape = max(self._shapes, key=lambda shape: self._bytes(b"shape", name, repr(tuple(shape)).encode()))
        stream = hashlib.shake_256(self._bytes(b"salt", name)).digest(shape.salt_bytes)
        salt = bytes(_TEXT[byte % len(_TEXT)] for byte in stream) if shape.is_text else stream
        size = hashlib.new(self._digest).digest_size
        keys = hashlib.shake_256(self._bytes(b"keys", name)).digest(2 * size)
        return MadeUp(salt, shape.iterations, keys[:size], keys[size:])

    def _bytes(self, *parts: bytes) -> bytes:
        return hmac.digest(self._secret, b"\0".join(parts), "sha256")


def shapes_of(credentials: Iterable[ScramCredential]) -> tuple[Shape, ...]:
    """Return the distinct shapes of credentials, or without any the shape that Kafka's tools make."""
    shapes = {
        Shape(credential.iterations, len(credential.salt), all(byte in _TEXT for byte in credential.salt))
        for credential in credentials
    }
    return tuple(sorted(shapes)) or (Shape(),)
