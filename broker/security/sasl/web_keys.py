"""The keys that sign tokens: a JSON Web Key Set (RFC 7517, RFC 7518), as an identity provider publishes it.

A key decides with which algorithms it verifies. A token's header only chooses among these, so that neither `none` nor
HMAC with a public key verifies anything: keys of HMAC are not taken.
"""

import json
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512, HashAlgorithm

KEYS_MAX = 1_000
_RSA_BITS_MIN = 2_048  # RFC 7518 demands it
_HASHES: Mapping[str, HashAlgorithm] = {"256": SHA256(), "384": SHA384(), "512": SHA512()}
_RSA_ALGORITHMS = frozenset(f"{kind}{bits}" for kind in ("RS", "PS") for bits in _HASHES)
_CURVES: Mapping[str, tuple[ec.EllipticCurve, str]] = {
    "P-256": (ec.SECP256R1(), "ES256"),
    "P-384": (ec.SECP384R1(), "ES384"),
    "P-521": (ec.SECP521R1(), "ES512"),
}
PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey


class WebKey(NamedTuple):
    """A public key, its name, and the algorithms that it verifies."""

    key_id: str | None
    algorithms: frozenset[str]
    public: PublicKey

    def verifies(self, algorithm: str, signature: bytes, signed: bytes) -> bool:
        """Return True if the signature is by this key and this one of its algorithms."""
        if algorithm not in self.algorithms:
            return False
        try:
            _verify(self.public, algorithm, signature, signed)
        except (InvalidSignature, ValueError):
            return False
        return True


def _verify(public: PublicKey, algorithm: str, signature: bytes, signed: bytes) -> None:
    """Raise InvalidSignature or ValueError unless the signature is by the key."""
    if isinstance(public, ed25519.Ed25519PublicKey):
        public.verify(signature, signed)
        return
    digest = _HASHES[algorithm[2:]]
    if isinstance(public, rsa.RSAPublicKey):
        pkcs1 = padding.PKCS1v15()
        pss = padding.PSS(padding.MGF1(digest), digest.digest_size)
        public.verify(signature, signed, pkcs1 if algorithm.startswith("RS") else pss, digest)
        return
    size = (public.curve.key_size + 7) // 8
    if len(signature) != 2 * size:
        raise ValueError("a signature of another size")
    r, s = int.from_bytes(signature[:size], "big"), int.from_bytes(signature[size:], "big")
    public.verify(encode_dss_signature(r, s), signed, ec.ECDSA(digest))


def decoded(text: str) -> bytes:
    """Decode base64url without padding. Raise ValueError."""
    if not text.isascii() or "=" in text or "+" in text or "/" in text or len(text) % 4 == 1:
        raise ValueError("it is no base64url")
    data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if (len(text) * 3) // 4 != len(data):  # the decoder skips other characters
        raise ValueError("it is no base64url")
    return data


def parse_keys(text: str) -> tuple[WebKey, ...]:
    """Parse a key set. Keys that sign no tokens, or of an unknown kind, are skipped. Raise ValueError."""
    try:
        document = json.loads(text)
        listed = document["keys"]
        keys = [key for entry in listed[:KEYS_MAX] if (key := _key(entry)) is not None]
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError) as error:
        raise ValueError(f"it is no JSON Web Key Set: {type(error).__name__}") from None
    if not keys:
        raise ValueError("it has no key that verifies signatures: RSA of 2048 bits, P-256, P-384, P-521 or Ed25519")
    return tuple(keys)


def _key(entry: Mapping[str, Any]) -> WebKey | None:
    """Return a key of the set, None if it is of no use here."""
    if entry.get("use", "sig") != "sig":
        return None
    made = _public_key(entry)
    if made is None:
        return None
    public, algorithms = made
    if entry.get("alg") is not None:
        algorithms &= {entry["alg"]}
    return WebKey(entry.get("kid"), algorithms, public) if algorithms else None


def _public_key(entry: Mapping[str, Any]) -> tuple[PublicKey, frozenset[str]] | None:
    kind = entry.get("kty")
    if kind == "RSA":
        public = rsa.RSAPublicNumbers(_number(entry["e"]), _number(entry["n"])).public_key()
        return (public, _RSA_ALGORITHMS) if public.key_size >= _RSA_BITS_MIN else None
    if kind == "EC" and entry.get("crv") in _CURVES:
        curve, algorithm = _CURVES[entry["crv"]]
        numbers = ec.EllipticCurvePublicNumbers(_number(entry["x"]), _number(entry["y"]), curve)
        return numbers.public_key(), frozenset({algorithm})
    if kind == "OKP" and entry.get("crv") == "Ed25519":
        return ed25519.Ed25519PublicKey.from_public_bytes(decoded(entry["x"])), frozenset({"EdDSA", "Ed25519"})
    return None


def _number(text: str) -> int:
    return int.from_bytes(decoded(text), "big")
