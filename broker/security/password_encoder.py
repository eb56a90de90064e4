"""Passwords in the dynamic settings of a broker, as Kafka 3.9 encodes them in ZooKeeper (EncryptingPasswordEncoder).

    keyLength:128,keyFactoryAlgorithm:PBKDF2WithHmacSHA512,iterations:4096,cipherAlgorithm:AES/CBC/PKCS5Padding,
    initializationVector:...,salt:...,encryptedPassword:...,passwordLength:13

The key is made from `password.encoder.secret`. An encoded password names how it was encoded, so either broker reads the
other's. Kafka's other ciphers (DES, CFB, OFB) are not read.
"""

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Protocol

from idgen.settings import InvalidSetting

SECRET, OLD_SECRET = "password.encoder.secret", "password.encoder.old.secret"
ITERATIONS, KEY_BITS, SALT_BYTES, BLOCK_BYTES = 4_096, 128, 256, 16
_HASHES = {"PBKDF2WithHmacSHA1": "sha1", "PBKDF2WithHmacSHA256": "sha256", "PBKDF2WithHmacSHA512": "sha512"}
_CBC, _GCM = "AES/CBC/PKCS5Padding", "AES/GCM/NoPadding"
_ITERATIONS_MAX = 10_000_000  # more would keep the broker busy for seconds


class PasswordEncoder(Protocol):
    """Encodes passwords for the coordinator of a cluster, and decodes them."""

    def encode(self, name: str, password: str) -> str:
        """Return the text of a setting to store. Raise InvalidSetting."""

    def decode(self, text: str) -> str:
        """Return the password in a stored text. Raise ValueError, whose message shows no part of it."""


class PlainPasswords:
    """Passwords as they are, for a coordinator that only the owner of the data reads."""

    def encode(self, name: str, password: str) -> str:
        return password

    def decode(self, text: str) -> str:
        return text


class EncryptedPasswords:
    """Passwords encrypted with a secret, None where none is set. `random_bytes` returns so many.

    Passwords that were encrypted with `old_secret` are decoded too.
    """

    def __init__(
        self, secret: str | None, random_bytes: Callable[[int], bytes], old_secret: str | None = None
    ) -> None:
        self._secret = secret
        self._random_bytes = random_bytes
        self._secrets = [given for given in (secret, old_secret) if given is not None]

    def encode(self, name: str, password: str) -> str:
        if self._secret is None:
            wanted = f"Password encoder secret not configured: set {SECRET}, with which it is kept in ZooKeeper"
            raise InvalidSetting(name, "(hidden)", wanted)
        from cryptography.hazmat.primitives.ciphers import Cipher, modes
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
        from cryptography.hazmat.primitives.padding import PKCS7

        algorithm = "PBKDF2WithHmacSHA512"
        salt, vector = self._random_bytes(SALT_BYTES), self._random_bytes(BLOCK_BYTES)
        key = hashlib.pbkdf2_hmac(_HASHES[algorithm], self._secret.encode(), salt, ITERATIONS, KEY_BITS // 8)
        padder, encryptor = PKCS7(8 * BLOCK_BYTES).padder(), Cipher(AES(key), modes.CBC(vector)).encryptor()
        padded = padder.update(password.encode()) + padder.finalize()
        fields = {
            "keyLength": KEY_BITS,
            "keyFactoryAlgorithm": algorithm,
            "iterations": ITERATIONS,
            "cipherAlgorithm": _CBC,
            "initializationVector": b64encode(vector).decode(),
            "salt": b64encode(salt).decode(),
            "encryptedPassword": b64encode(encryptor.update(padded) + encryptor.finalize()).decode(),
            "passwordLength": _length(password),
        }
        return ",".join(f"{name}:{value}" for name, value in fields.items())

    def decode(self, text: str) -> str:
        if not self._secrets:
            raise ValueError(f"it cannot be decoded, because {SECRET} is not set")
        for secret in self._secrets:
            try:
                return _decrypt(secret, text)
            except (ValueError, KeyError, UnicodeDecodeError):
                continue
        raise ValueError(f"it does not decode with {SECRET}, nor with {OLD_SECRET} if that is set")


def _decrypt(secret: str, text: str) -> str:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers import Cipher, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.padding import PKCS7

    fields = {name.strip(): value.strip() for name, _, value in (part.rpartition(":") for part in text.split(","))}
    iterations, key_bits = int(fields["iterations"]), int(fields["keyLength"])
    if not 0 < iterations <= _ITERATIONS_MAX or key_bits not in (128, 192, 256):
        raise ValueError("its key cannot be made")
    salt, vector, encrypted = (
        b64decode(fields[name], validate=True) for name in ("salt", "initializationVector", "encryptedPassword")
    )
    digest = _HASHES[fields["keyFactoryAlgorithm"]]
    key = hashlib.pbkdf2_hmac(digest, secret.encode(), salt, iterations, key_bits // 8)
    if fields["cipherAlgorithm"] == _CBC:
        decryptor, unpadder = Cipher(AES(key), modes.CBC(vector)).decryptor(), PKCS7(8 * BLOCK_BYTES).unpadder()
        plain = unpadder.update(decryptor.update(encrypted) + decryptor.finalize()) + unpadder.finalize()
    elif fields["cipherAlgorithm"] == _GCM:
        try:
            plain = AESGCM(key).decrypt(vector, encrypted, None)
        except InvalidTag:
            raise ValueError("another secret has made it") from None
    else:
        raise ValueError("its cipher is not served")
    password = plain.decode()
    if _length(password) != int(fields["passwordLength"]):
        raise ValueError("another secret has made it")
    return password


def _length(password: str) -> int:
    """Return the length as Java counts it."""
    return len(password.encode("utf-16-le")) // 2
