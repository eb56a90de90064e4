"""Signed tokens: which key verifies which, and which claims prove a user."""

import hashlib
import hmac
import json

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from broker.security.sasl.exchange import Proof, Rejected
from broker.security.sasl.token_rules import TokenRules
from broker.security.sasl.web_keys import parse_keys
from broker.security.sasl.web_token import read_token
from tests.broker.web_tokens import SigningKey, encoded, key_set

NOW_S = 1_700_000_000
CLAIMS = {"sub": "ada", "iat": NOW_S - 60, "exp": NOW_S + 600}
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
KEY, OTHER = SigningKey(), SigningKey(key_id="second")
RSA = SigningKey("RS256", names_algorithm=False)


def read(token, *keys, now_s=NOW_S, **rules):
    known = parse_keys(key_set(*(keys or (KEY, OTHER))))
    find = lambda key_id: [key for key in known if key_id in (None, key.key_id)]  # noqa: E731
    return read_token(token, find, TokenRules(**rules), now_s * 1_000)


def rejected(token, *keys, **more):
    with pytest.raises(Rejected) as error:
        read(token, *keys, **more)
    return str(error.value)


def test_a_token_proves_its_user_until_it_expires():
    assert read(KEY.token(CLAIMS)) == Proof("ada", (NOW_S + 600) * 1_000)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_keys_of_each_kind_verify_their_tokens(algorithm):
    key = SigningKey(algorithm)
    token = key.token(CLAIMS)
    assert read(token, key).user == "ada"
    head, claims, signature = token.split(".")
    changed = encoded(json.dumps(CLAIMS | {"sub": "root"}).encode())
    assert "the signature of the token is not by a key" in rejected(f"{head}.{changed}.{signature}", key)
    assert "the signature of the token is not by a key" in rejected(token, SigningKey(algorithm))


def test_a_key_without_a_named_algorithm_verifies_those_of_its_kind():
    for algorithm in ALGORITHMS[:6]:
        assert read(RSA.token(CLAIMS, algorithm), RSA).user == "ada"
    named = SigningKey("RS256")
    assert "does not sign by 'PS256'" in rejected(named.token(CLAIMS, "PS256"), named)


def test_a_token_without_the_name_of_its_key_is_tried_with_all():
    assert read(OTHER.token(CLAIMS, kid=None)).user == "ada"


# --- forgeries ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", ""])
def test_a_token_without_a_signature_is_refused(algorithm):
    head = encoded(json.dumps({"alg": algorithm, "kid": "first"}).encode())
    unsigned = f"{head}.{encoded(json.dumps(CLAIMS).encode())}."
    assert "does not sign by" in rejected(unsigned)


def test_hmac_with_the_public_key_as_its_secret_is_refused():
    public = RSA._private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signed = ".".join(encoded(json.dumps(part).encode()) for part in ({"alg": "HS256", "kid": "first"}, CLAIMS))
    forged = f"{signed}.{encoded(hmac.digest(public, signed.encode(), hashlib.sha256))}"
    assert "does not sign by 'HS256'" in rejected(forged, RSA)


def test_a_key_of_hmac_in_the_key_set_is_not_taken():
    with pytest.raises(ValueError, match="no key that verifies"):
        parse_keys(json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "first"}]}))


def test_a_key_that_the_token_brings_along_is_not_heeded():
    stranger = SigningKey(key_id="first")
    token = stranger.token(CLAIMS, jwk=stranger.entry, jku="https://evil.example/keys", x5u="https://evil.example")
    assert "is not by a key of the identity provider" in rejected(token)


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ("", "has 1"),
        ("a.b", "has 2"),
        ("a.b.c.d", "has 4"),
        ("a.b.c", "the header of the token cannot be read"),
        ("!.e30.", "the header of the token cannot be read"),
        ("W10.e30.", "the header of the token cannot be read"),
        ("e30.e30.", "the header of the token is not understood"),
        (KEY.token(CLAIMS, crit=["exp"]), "not understood"),
        (KEY.token(CLAIMS, kid=7), "not understood"),
        (KEY.token(CLAIMS, kid="third"), "no key signs tokens under the name 'third'"),
        (KEY.token(CLAIMS) + "=", "no base64url"),
        (KEY.token(CLAIMS)[:-2], "is not by a key"),
        (KEY.token([1]), "the claims of the token cannot be read"),
    ],
)
def test_what_is_no_token_is_refused(token, reason):
    assert reason in rejected(token)


def test_deep_nesting_is_refused():
    deep = encoded(b"[" * 100_000)
    assert "cannot be read" in rejected(f"{deep}.{deep}.")


# --- claims ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "rules", "reason"),
    [
        ({"exp": NOW_S - 30}, {}, "the token expired 30 s ago"),
        ({"exp": None}, {}, "does not say when"),
        ({"iat": None}, {}, "does not say when"),
        ({"exp": "tomorrow"}, {}, "the claim exp of the token is no time"),
        ({"exp": 1e300}, {}, "is no time"),
        ({"exp": True}, {}, "is no time"),
        ({"nbf": NOW_S + 31}, {}, "the token is not valid for another 31 s"),
        ({"iss": "https://evil.example"}, {"issuer": "https://id.example"}, "of the issuer 'https://evil.example'"),
        ({}, {"issuer": "https://id.example"}, "of the issuer 'None'"),
        ({"aud": "other"}, {"audiences": {"kafka"}}, "for the audience 'other'"),
        ({"aud": ["other", 7]}, {"audiences": {"kafka"}}, "for the audience"),
        ({"aud": "kafka"}, {}, "for the audience 'kafka'"),
        ({}, {"audiences": {"kafka"}}, "for the audience 'None'"),
        ({"scope": ["a", "a"]}, {}, "no list of scopes"),
        ({"scope": {"a": 1}}, {}, "no list of scopes"),
        ({"scope": [" "]}, {}, "no list of scopes"),
        ({"sub": None}, {}, "names no user in its claim sub"),
        ({"sub": " "}, {}, "names no user"),
        ({"sub": ["ada"]}, {}, "names no user"),
        ({}, {"user_claim": "client_id"}, "names no user in its claim client_id"),
    ],
)
def test_a_claim_that_does_not_fit_is_refused(changes, rules, reason):
    claims = {name: value for name, value in (CLAIMS | changes).items() if value is not None}
    assert reason in rejected(KEY.token(claims), **rules)


@pytest.mark.parametrize(
    ("changes", "rules"),
    [
        ({"exp": NOW_S - 29}, {}),
        ({"nbf": NOW_S + 30}, {}),
        ({"exp": NOW_S - 1.5, "iat": NOW_S - 100.25}, {}),
        ({"iss": "https://id.example"}, {"issuer": "https://id.example"}),
        ({"aud": ["other", "kafka"]}, {"audiences": {"kafka", "log"}}),
        ({"scope": "read write"}, {}),
        ({"groups": ["read", "write"]}, {"scope_claim": "groups"}),
    ],
)
def test_a_claim_that_fits_is_taken(changes, rules):
    assert read(KEY.token(CLAIMS | changes), **rules).user == "ada"


def test_the_claim_with_the_user_is_a_setting():
    assert read(KEY.token(CLAIMS | {"client_id": "job"}), user_claim="client_id").user == "job"


# --- key sets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"keys": 7}', '{"keys": [7]}', '{"keys": []}', "[" * 100_000])
def test_what_is_no_key_set_is_refused(text):
    with pytest.raises(ValueError):
        parse_keys(text)


def test_keys_for_other_uses_and_of_other_kinds_are_skipped():
    others = [KEY.entry | {"use": "enc"}, {"kty": "EC", "crv": "secp256k1"}, {"kty": "new"}]
    (key,) = parse_keys(json.dumps({"keys": [*others, OTHER.entry]}))
    assert key.key_id == "second"
