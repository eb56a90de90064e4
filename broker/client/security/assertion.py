"""The assertion by which a client proves itself to an identity provider, without I/O (RFC 7523, KIP-1139, KIP-1258).

    header   that of the template, and over it alg and typ
    claims   aud, iss and sub as they are set, over them those of the template, over them iat, exp, nbf and jti

Later layers go over earlier ones, as in Kafka. Times are Unix seconds.
"""

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import Any

from broker.security.sasl.assertion_config import ASSERTION_FILE, ES256, KEY_FILE, TEMPLATE_FILE, AssertionConfig
from idgen.settings import InvalidSetting

ReadFile = Callable[[str], bytes]
_CHARACTERS_MAX = 1 << 16
_P256_BYTES = 32
_RSA_BITS_MIN = 2048  # RFC 7518, section 3.3


def make_assertion(config: AssertionConfig, read: ReadFile, now_s: float, id: str) -> str:
    """Return an assertion. `id` is its own, if it has one. Raise InvalidSetting, which names the file that is wrong."""
    if config.sasl_oauthbearer_assertion_file is not None:
        return _read_assertion(config.sasl_oauthbearer_assertion_file, read)
    config.check_source()
    algorithm = config.sasl_oauthbearer_assertion_algorithm.upper()
    header, payload = _template(config.sasl_oauthbearer_assertion_template_file, read)
    second = int(now_s)
    times = {
        "iat": second,
        "exp": second + config.sasl_oauthbearer_assertion_claim_exp_seconds,
        "nbf": second - config.sasl_oauthbearer_assertion_claim_nbf_seconds,
    }
    own_id = {"jti": id} if config.sasl_oauthbearer_assertion_claim_jti_include else {}
    parts = {**header, "alg": algorithm, "typ": "JWT"}, {**config.claims, **payload, **times, **own_id}
    signed = ".".join(_encoded(json.dumps(part, separators=(",", ":")).encode()) for part in parts)
    return f"{signed}.{_encoded(_signature(config, algorithm, signed.encode(), read))}"


def _read_assertion(file: str, read: ReadFile) -> str:
    text = _read(ASSERTION_FILE, file, read).decode("ascii", "replace").strip()
    if text.count(".") != 2 or not text.isprintable() or " " in text or len(text) > _CHARACTERS_MAX:
        raise InvalidSetting(ASSERTION_FILE, file, "has no signed token: three parts of base64url, with a dot between")
    return text


def _template(file: str | None, read: ReadFile) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the header and the claims of the template, which are empty without a file."""
    if file is None:
        return {}, {}
    data = _read(TEMPLATE_FILE, file, read)
    try:
        template = json.loads(data)
    except (ValueError, RecursionError):
        template = None
    if isinstance(template, dict):
        header, payload = template.get("header", {}), template.get("payload", {})
        if isinstance(header, dict) and isinstance(payload, dict):
            return header, payload
    raise InvalidSetting(TEMPLATE_FILE, file, 'must be JSON: {"header": {...}, "payload": {...}}')


def _signature(config: AssertionConfig, algorithm: str, signed: bytes, read: ReadFile) -> bytes:
    """Sign by RS256 or ES256 (RFC 7518, sections 3.3 and 3.4)."""
    from cryptography.exceptions import UnsupportedAlgorithm  # these load slowly
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    file = str(config.sasl_oauthbearer_assertion_private_key_file)
    passphrase = config.sasl_oauthbearer_assertion_private_key_passphrase
    data = _read(KEY_FILE, file, read)
    try:
        key = load_pem_private_key(data, passphrase.encode() if passphrase and b"ENCRYPTED" in data else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        wanted = f"has no private key in PEM that opens with the passphrase given ({str(error).splitlines()[0]})"
        raise InvalidSetting(KEY_FILE, file, wanted) from None
    if algorithm == ES256 and isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
        numbers = decode_dss_signature(key.sign(signed, ec.ECDSA(SHA256())))
        return b"".join(number.to_bytes(_P256_BYTES, "big") for number in numbers)
    if algorithm != ES256 and isinstance(key, rsa.RSAPrivateKey):
        if key.key_size < _RSA_BITS_MIN:
            raise InvalidSetting(KEY_FILE, file, f"its key has {key.key_size} bits; {algorithm} needs {_RSA_BITS_MIN}")
        return key.sign(signed, padding.PKCS1v15(), SHA256())
    wanted = f"its key does not sign by {algorithm}: set sasl.oauthbearer.assertion.algorithm"
    raise InvalidSetting(KEY_FILE, file, wanted)


def _read(name: str, file: str, read: ReadFile) -> bytes:
    try:
        return read(file)
    except OSError as error:
        raise InvalidSetting(name, file, f"cannot be read: {error.strerror or error}") from None


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
