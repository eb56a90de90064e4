"""The keys that a server keeps of a password for SCRAM (RFC 5802, section 3), and Kafka's bounds of the iterations."""

import hashlib
import hmac
from typing import NamedTuple

from broker.security.sasl.scram import DIGESTS

SALT_CHARACTERS, SALT_LENGTH = "0123456789abcdefghijklmnopqrstuvwxyz", 26  # of the salts that Kafka's tools make
ITERATIONS_MIN, ITERATIONS_MAX = 4_096, 16_384  # Kafka's; fewer are guessed too soon, more make each login expensive

PASSWORD_BYTES_MAX = 16 << 10  # of a password that a command or a page takes


class ScramKeys(NamedTuple):
    """The keys that check a client's proof, and prove the server."""

    stored_key: bytes
    server_key: bytes


def salted(password: str, salt: bytes, iterations: int, mechanism: str) -> bytes:
    """Return the salted password, as a client computes it."""
    return hashlib.pbkdf2_hmac(DIGESTS[mechanism], password.encode(), salt, iterations)


def keys_of(salted_password: bytes, mechanism: str) -> ScramKeys:
    digest = DIGESTS[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", digest)
    stored_key = hashlib.new(digest, client_key).digest()
    return ScramKeys(stored_key, hmac.digest(salted_password, b"Server Key", digest))


def wrong_iterations(iterations: int) -> str | None:
    """Return the bound that a number of iterations breaks, or None."""
    if ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        return None
    amount = "few" if iterations < ITERATIONS_MIN else "many"
    return f"Too {amount} iterations; {ITERATIONS_MIN} to {ITERATIONS_MAX} are taken"
