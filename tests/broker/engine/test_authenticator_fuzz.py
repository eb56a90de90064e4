"""Damaged logins: the broker answers them or closes their connections, they prove no user, and cause no fault."""

import os
from random import Random

import pytest

from broker.security.sasl.key_sets import KeySets
from broker.security.sasl.web_keys import parse_keys
from tests.broker.engine.test_authenticator import LISTENER, broker, plain
from tests.broker.engine_client import SASL_AUTHENTICATE, SASL_HANDSHAKE
from tests.broker.scram_client import ScramClient
from tests.broker.web_tokens import SigningKey, key_set

API_VERSIONS = 18
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
KEY = SigningKey()
TOKENS = [
    KEY.token({"sub": "ada", "iat": 0, "exp": 1}),
    SigningKey().token({"sub": "ada", "iat": 0, "exp": 1 << 33}),
    KEY.token({"sub": "ada", "iat": 0, "exp": 1 << 33, "aud": "another"}),
]
"""An expired token, one of a stranger's key, and one for another audience."""
LOGINS = 3_000
SOAK_LOGINS = int(os.environ.get("FLAKELOG_FUZZED_LOGINS", "1000000"))


def frames(client, random):
    """Return the frames of a login with a wrong password, by a mechanism and versions drawn at random."""
    mechanism = random.choice(MECHANISMS)
    version = random.choice([0, 1])
    tokens = [plain("ada", "wrong")]
    if mechanism == "OAUTHBEARER":
        tokens = [f"n,,\x01auth=Bearer {random.choice(TOKENS)}\x01\x01".encode(), b"\x01"]
    elif mechanism != "PLAIN":
        scram = ScramClient("ada", "wrong", mechanism, nonce=f"{random.getrandbits(60):x}")
        answer = f"r={random.getrandbits(60):x},s=c2FsdA==,i=4096".encode()
        tokens = [scram.first, b"c=biws,r=abc,p=" + random.randbytes(12).hex().encode(), answer]
    made = [client.frame(API_VERSIONS, 0, {})[1]] if random.random() < 0.5 else []
    made.append(client.frame(SASL_HANDSHAKE, version, {"mechanism": mechanism})[1])
    for token in tokens:
        if version == 0:
            made.append(len(token).to_bytes(4, "big") + token)
        else:
            made.append(client.frame(SASL_AUTHENTICATE, random.choice([0, 1, 2]), {"auth_bytes": token})[1])
    return made


def damaged(data, random):
    """Return the bytes with some of them changed, taken out, repeated or added."""
    data = bytearray(data)
    for _ in range(random.choice([0, 1, 1, 2, 5])):
        at = random.randrange(len(data) + 1)
        kind = random.randrange(5)
        if kind == 0 and at < len(data):
            data[at] = random.randrange(256)
        elif kind == 1:
            del data[at : at + random.randrange(1, 9)]
        elif kind == 2:
            data[at:at] = random.randbytes(random.randrange(1, 9))
        elif kind == 3:
            data[at:at] = data[at : at + random.randrange(1, 40)]
        elif at < len(data):
            data[at] ^= 1 << random.randrange(8)
    return bytes(data)


def attack(logins, seed):
    random = Random(seed)
    key_sets = KeySets()
    given = {"sasl.enabled.mechanisms": ",".join(MECHANISMS), "sasl.oauthbearer.jwks.endpoint.url": "file:///keys"}
    made = broker(given=given, key_sets=key_sets, max_cold_request_bytes=1 << 20)
    for keys in key_sets.take_due(0):
        keys.fetched(parse_keys(key_set(KEY)), 0)
    for number in range(logins):
        client = made.connect(listener=LISTENER)
        stream = damaged(b"".join(frames(client, random)), random)
        while stream and client.closed is None:
            size = random.choice([1, 7, 40, len(stream)])
            client.feed(stream[:size])
            stream = stream[size:]
        client.received.clear()
        assert client.conn.user == "ANONYMOUS", f"login {number} of seed {seed}"
        assert not made.reported, f"login {number} of seed {seed}: {made.reported}"
        if client.closed is None:
            made.engine.closed(client.conn)
        made.clients.clear()
        if number % 100 == 0:
            made.at(made.now_ms + 1_000)  # the delayed answers
    made.at(made.now_ms + 60_000)
    assert made.engine.connections == made.services.sasl.figures.open == 0
    assert made.services.sasl.figures.failed > logins // 10 and made.services.sasl.figures.succeeded == 0


def test_damaged_logins_prove_nobody_and_leave_nothing_behind():
    attack(LOGINS, seed=1)


@pytest.mark.soak
def test_a_million_damaged_logins():
    """FLAKELOG_FUZZED_LOGINS is another number."""
    attack(SOAK_LOGINS, seed=2)
