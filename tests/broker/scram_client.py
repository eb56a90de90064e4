"""A client of SCRAM, written from RFC 5802 apart from the broker, and the credential that a server keeps."""

import hashlib
import hmac
from base64 import b64decode, b64encode

from broker.metadata.change import Credential

DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
NUMBERS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
SALT = b"1qj4ldsdg8p12cnmvqdpjg4d0z"


def keys(password, salt, iterations, digest):
    """Return (client key, stored key, server key)."""
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    return client_key, hashlib.new(digest, client_key).digest(), hmac.digest(salted, b"Server Key", digest)


def credential(password, mechanism="SCRAM-SHA-256", salt=SALT, iterations=4096):
    _, stored_key, server_key = keys(password, salt, iterations, DIGESTS[mechanism])
    return Credential(salt, iterations, stored_key, server_key)


class ScramClient:
    """One exchange: `first`, then `final` for the server's first message; its last one must be `signature`."""

    def __init__(self, user, password, mechanism="SCRAM-SHA-256", nonce="abc", identity="", extensions=""):
        self._digest = DIGESTS[mechanism]
        self._password = password
        self._header = f"n,{identity and 'a='}{identity},"
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={nonce}{extensions}"
        self.signature = b""

    @property
    def first(self):
        return (self._header + self._bare).encode()

    def final(self, answer):
        nonce, salt, iterations = (part[2:] for part in answer.decode().split(","))
        made = keys(self._password, b64decode(salt), int(iterations), self._digest)
        client_key, stored_key, server_key = made
        without_proof = f"c={b64encode(self._header.encode()).decode()},r={nonce}"
        signed = f"{self._bare},{answer.decode()},{without_proof}".encode()
        signature = hmac.digest(stored_key, signed, self._digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self.signature = b"v=" + b64encode(hmac.digest(server_key, signed, self._digest))
        return f"{without_proof},p={b64encode(proof).decode()}".encode()
