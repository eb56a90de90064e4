"""An identity provider of the tests: keys of each kind, the key set with their public halves, and signed tokens."""

import json
from base64 import urlsafe_b64encode

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

_CURVES = {"ES256": ("P-256", ec.SECP256R1()), "ES384": ("P-384", ec.SECP384R1()), "ES512": ("P-521", ec.SECP521R1())}
_HASHES = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}


def encoded(data):
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _number(value, size=None):
    return encoded(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


class SigningKey:
    """A private key of one algorithm; `entry` is its public half in a key set."""

    def __init__(self, algorithm="ES256", key_id="first", names_algorithm=True):
        self.algorithm = algorithm
        self.key_id = key_id
        self.entry = {"kid": key_id, "use": "sig"} | ({"alg": algorithm} if names_algorithm else {})
        if algorithm in _CURVES:
            curve, kind = _CURVES[algorithm]
            self._private = ec.generate_private_key(kind)
            numbers, size = self._private.public_key().public_numbers(), (kind.key_size + 7) // 8
            self.entry |= {"kty": "EC", "crv": curve, "x": _number(numbers.x, size), "y": _number(numbers.y, size)}
        elif algorithm == "EdDSA":
            self._private = ed25519.Ed25519PrivateKey.generate()
            self.entry |= {"kty": "OKP", "crv": "Ed25519", "x": encoded(self._private.public_key().public_bytes_raw())}
        else:
            self._private = rsa.generate_private_key(65_537, 2_048)
            numbers = self._private.public_key().public_numbers()
            self.entry |= {"kty": "RSA", "n": _number(numbers.n), "e": _number(numbers.e)}

    def pem(self, password=None):
        """Return the private key as PEM."""
        sealed = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        return self._private.private_bytes(serialization.Encoding.PEM, form, sealed).decode()

    def signature(self, signed, algorithm):
        if algorithm == "EdDSA":
            return self._private.sign(signed)
        digest = _HASHES[algorithm[2:]]
        if algorithm.startswith("ES"):
            size = (self._private.curve.key_size + 7) // 8
            numbers = decode_dss_signature(self._private.sign(signed, ec.ECDSA(digest)))
            return b"".join(number.to_bytes(size, "big") for number in numbers)
        pss = padding.PSS(padding.MGF1(digest), digest.digest_size)
        return self._private.sign(signed, padding.PKCS1v15() if algorithm.startswith("RS") else pss, digest)

    def token(self, claims, algorithm=None, **header):
        """Return a signed token. A header of None is left out."""
        algorithm = algorithm or self.algorithm
        fields = {"alg": algorithm, "kid": self.key_id} | header
        parts = [{name: value for name, value in fields.items() if value is not None}, claims]
        signed = ".".join(encoded(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{encoded(self.signature(signed.encode(), algorithm))}"


def key_set(*keys):
    return json.dumps({"keys": [key.entry for key in keys]})
