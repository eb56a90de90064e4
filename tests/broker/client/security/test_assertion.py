"""Assertions by which a client proves itself to an identity provider: their layers, signatures and files."""

import json

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from broker.client.security.assertion import make_assertion
from broker.security.sasl.assertion_config import AssertionConfig
from broker.security.sasl.web_keys import decoded, parse_keys
from idgen.settings import InvalidSetting, from_properties
from tests.broker.web_tokens import SigningKey, key_set

NOW_S = 1_000_000.9
PREFIX = "sasl.oauthbearer.assertion."
ODD_CURVE = """-----BEGIN PRIVATE KEY-----
ME4CAQAwEAYHKoZIzj0CAQYFK4EEAAYENzA1AgEBBA5hFO9lGG7uWgT39Xn8a6Eg
Ax4ABJ94xVXDNR5Vn9KWqpv9kmmHss0//DyHhGHzEug=
-----END PRIVATE KEY-----
"""
"""A key of secp112r1, which `cryptography` does not know."""
KEYS = {algorithm: SigningKey(algorithm) for algorithm in ("RS256", "ES256", "ES384")}


def short_key():
    key = rsa.generate_private_key(65537, 1024)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def config_of(**settings):
    return from_properties(AssertionConfig, {PREFIX + name.replace("_", "."): text for name, text in settings.items()})


def made(files=(), **settings):
    """Return (header, claims) of an assertion, and check its signature if there is a key."""
    settings = {"private_key_file": "key.pem", "claim_iss": "ada"} | settings
    algorithm = settings.get("algorithm", "RS256").upper()
    data = {"key.pem": KEYS[algorithm].pem().encode(), **dict(files)}
    text = make_assertion(config_of(**settings), lambda name: data[name], NOW_S, "an-id")
    header, claims, signature = text.split(".")
    (key,) = parse_keys(key_set(KEYS[algorithm]))
    assert key.verifies(algorithm, decoded(signature), f"{header}.{claims}".encode())
    return json.loads(decoded(header)), json.loads(decoded(claims))


def test_an_assertion_says_who_until_when_and_for_whom():
    """The names and defaults are those of KIP-1139."""
    header, claims = made(claim_sub="ada", claim_aud="https://id.example")
    assert header == {"alg": "RS256", "typ": "JWT"}
    times = {"iat": 1_000_000, "exp": 1_000_300, "nbf": 999_940}
    assert claims == times | {"iss": "ada", "sub": "ada", "aud": "https://id.example"}


def test_its_times_and_its_own_id_are_set():
    _, claims = made(claim_exp_seconds="10", claim_nbf_seconds="5", claim_jti_include="true")
    assert (claims["exp"], claims["nbf"], claims["jti"]) == (1_000_010, 999_995, "an-id")


def test_the_curve_of_es256_signs_too():
    header, _ = made(algorithm="es256")
    assert header["alg"] == "ES256"


def test_a_template_goes_over_claims_that_are_set_and_times_and_algorithm_go_over_it():
    """Kafka's LayeredAssertionJwtTemplate has this order."""
    template = {"header": {"kid": "first", "alg": "none"}, "payload": {"iss": "eve", "tenant": ["a"], "exp": 1}}
    header, claims = made({"more.json": json.dumps(template).encode()}, template_file="more.json")
    assert header == {"kid": "first", "alg": "RS256", "typ": "JWT"}
    assert (claims["iss"], claims["tenant"], claims["exp"]) == ("eve", ["a"], 1_000_300)


def test_a_key_may_have_a_passphrase():
    sealed = {"key.pem": KEYS["RS256"].pem("of the key").encode()}
    _, claims = made(sealed, private_key_passphrase="of the key")
    assert claims["iss"] == "ada"


def test_a_file_with_the_assertion_goes_before_all_else():
    config = config_of(file="assertion", private_key_file="gone.pem")
    assert make_assertion(config, {"assertion": b" a.b.c\n"}.__getitem__, NOW_S, "") == "a.b.c"


@pytest.mark.parametrize(
    ("files", "settings", "reason"),
    [
        ({}, {}, "private.key.file=key.pem: cannot be read: No such file or directory"),
        ({"key.pem": b"no key"}, {}, "private.key.file=key.pem: has no private key in PEM that opens with the"),
        ({"key.pem": KEYS["RS256"].pem("sealed").encode()}, {}, "has no private key in PEM that opens with the"),
        (
            {"key.pem": KEYS["RS256"].pem("sealed").encode()},
            {"private_key_passphrase": "marked"},
            "has no private key in PEM that opens with the passphrase given",
        ),
        ({"key.pem": ODD_CURVE.encode()}, {"algorithm": "ES256"}, "file=key.pem: has no private key in PEM"),
        ({"key.pem": short_key()}, {}, "private.key.file=key.pem: its key has 1024 bits; RS256 needs 2048"),
        ({"key.pem": KEYS["ES256"].pem().encode()}, {}, "does not sign by RS256: set sasl.oauthbearer.assertion.alg"),
        ({"key.pem": KEYS["RS256"].pem().encode()}, {"algorithm": "ES256"}, "its key does not sign by ES256"),
        ({"key.pem": KEYS["ES384"].pem().encode()}, {"algorithm": "ES256"}, "its key does not sign by ES256"),
        ({"more": b"[]"}, {"template_file": "more"}, 'template.file=more: must be JSON: {"header": {...}, "payl'),
        ({"more": b'{"payload": 5}'}, {"template_file": "more"}, "template.file=more: must be JSON"),
        ({"more": b"{" * 9_999}, {"template_file": "more"}, "template.file=more: must be JSON"),
        ({}, {"file": "gone"}, "assertion.file=gone: cannot be read: No such file or directory"),
        ({"it": b"marked"}, {"file": "it"}, "assertion.file=it: has no signed token: three parts of base64url"),
        ({"it": b"a.b.c d"}, {"file": "it"}, "assertion.file=it: has no signed token"),
    ],
)
def test_a_file_that_is_wrong_is_named_and_its_text_is_not(files, settings, reason):
    def read(name):
        if name not in files:
            raise FileNotFoundError(2, "No such file or directory", name)
        return files[name]

    with pytest.raises(InvalidSetting) as error:
        make_assertion(config_of(**{"private_key_file": "key.pem"} | settings), read, NOW_S, "")
    assert reason in str(error.value) and "marked" not in str(error.value)


def test_an_algorithm_that_kafka_lacks_is_refused():
    with pytest.raises(InvalidSetting, match="assertion.algorithm=none: must be one of RS256, ES256"):
        config_of(algorithm="none")


def test_no_secret_is_shown():
    assert "marked" not in repr(config_of(private_key_passphrase="marked"))
