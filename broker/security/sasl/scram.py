"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): the client proves that it knows a password, and never sends it.

    client   n,,n=ada,r=CLIENT_NONCE
    server   r=CLIENT_NONCE SERVER_NONCE,s=SALT,i=ITERATIONS
    client   c=biws,r=CLIENT_NONCE SERVER_NONCE,p=PROOF
    server   v=SIGNATURE

A user that is unknown gets a salt and iterations too, the same at each try, and is refused at its proof: neither the
answers nor their time tell it from a user with a wrong password. Kafka refuses it at its first message.

The cryptography is Python's `hmac` and `hashlib`. The library `scramp` was not taken: it prepares names (SASLprep), and
refuses salts below 12 bytes and authorization ids, which Kafka and its clients do otherwise.
"""

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Protocol

from broker.security.sasl.exchange import SCRAM_SHA_256, SCRAM_SHA_512, Proof, Rejected
from broker.security.sasl.user_text import quoted

DIGESTS = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}

_OTHER_IDENTITY = "Authentication failed: Client requested an authorization id that is different from username"
_NAME = r"(?:[^\x00=,]|=2C|=3D)+"
_BASE64 = r"[a-zA-Z0-9/+]*={0,2}"
_FIRST = re.compile(rf"(n,(?:a=({_NAME}))?,)(n=({_NAME}),r=([\x21-\x2b\x2d-\x7e]+)((?:,[A-Za-z]+=[^\x00,]+)*))")
_FINAL = re.compile(rf"(c=({_BASE64}),r=([\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]+=[^\x00,]+)*),p=({_BASE64})")


class ScramCredential(Protocol):
    """The data that a server keeps of a password."""

    @property
    def salt(self) -> bytes: ...

    @property
    def iterations(self) -> int: ...

    @property
    def stored_key(self) -> bytes: ...

    @property
    def server_key(self) -> bytes: ...


Find = Callable[[str], tuple[ScramCredential, bool]]
"""Returns a user's credential, and whether the user is known; an unknown one has a made-up credential."""


class ScramExchange:
    """The exchange of a client. `nonce` is random, of printable ASCII without a comma."""

    refusal = None

    def __init__(self, mechanism: str, find: Find, nonce: str) -> None:
        self._digest = DIGESTS[mechanism]
        self._find = find
        self._nonce = nonce
        self._credential: ScramCredential | None = None
        self._is_known = False
        self._user = ""
        self._header = ""
        self._so_far = ""
        """The first messages of both sides, which the proof covers."""
        self.proof: Proof | None = None

    def answer(self, token: bytes, wall_ms: int) -> bytes:
        try:
            message = token.decode()
        except UnicodeDecodeError:
            raise Rejected("its SCRAM message is no UTF-8") from None
        return self._first(message) if self._credential is None else self._final(message, self._credential)

    def _first(self, message: str) -> bytes:
        match = _FIRST.fullmatch(message)
        if match is None:
            raise Rejected("Invalid SCRAM client first message format")
        self._header, identity, bare, name, client_nonce, extensions = match.groups()
        if "tokenauth=true" in extensions.lower().split(","):
            raise Rejected("it shows a delegation token, and these are not served")
        user = self._user = _unescaped(name)
        if identity is not None and _unescaped(identity) != user:
            asked = quoted(_unescaped(identity))
            raise Rejected(f"user {quoted(user)} asks for the rights of {asked}", _OTHER_IDENTITY)
        credential, self._is_known = self._find(user)
        self._credential = credential
        self._nonce = client_nonce + self._nonce
        answer = f"r={self._nonce},s={b64encode(credential.salt).decode()},i={credential.iterations}"
        self._so_far = f"{bare},{answer}"
        return answer.encode()

    def _final(self, message: str, credential: ScramCredential) -> bytes:
        match = _FINAL.fullmatch(message)
        if match is None:
            raise Rejected("Invalid SCRAM client final message format")
        without_proof, binding, nonce, proof = match.groups()
        if nonce != self._nonce:
            raise Rejected("Invalid client nonce in the final client message.")
        if binding != b64encode(self._header.encode()).decode():
            raise Rejected("its channel binding is not that of its first message")
        signed = f"{self._so_far},{without_proof}".encode()
        fits = self._fits(_decoded(proof), credential.stored_key, signed)
        signature = hmac.digest(credential.server_key, signed, self._digest)
        if not (fits and self._is_known):
            raise Rejected(f"unknown user or wrong password: {quoted(self._user)}")
        self.proof = Proof(self._user)
        return b"v=" + b64encode(signature)

    def _fits(self, proof: bytes, stored_key: bytes, signed: bytes) -> bool:
        """Return True if the proof is of the key that the stored one is the hash of."""
        signature = hmac.digest(stored_key, signed, self._digest)
        if len(proof) != len(signature):
            return False
        key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        return hmac.compare_digest(hashlib.new(self._digest, key).digest(), stored_key)


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise Rejected("Invalid SCRAM client final message format") from None
