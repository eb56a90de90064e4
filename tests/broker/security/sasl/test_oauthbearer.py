"""OAUTHBEARER: the messages around a token, and when keys are fetched."""

import pytest

from broker.security.sasl.exchange import Proof, Rejected
from broker.security.sasl.key_sets import MISSING_MS, KeySets
from broker.security.sasl.oauthbearer import OauthExchange
from broker.security.sasl.token_rules import KeySource
from broker.security.sasl.web_keys import parse_keys
from tests.broker.web_tokens import SigningKey, key_set

INVALID = b'{"status":"invalid_token"}'
SOURCE = KeySource("https://id.example/keys", refresh_ms=3_600_000, backoff_ms=100, backoff_max_ms=1_000)


def exchange():
    def read(token, wall_ms):
        if token != "good":
            raise Rejected(f"it is {token}")
        return Proof("ada", 1_000)

    return OauthExchange(read)


def rejected(made, token):
    with pytest.raises(Rejected) as error:
        made.answer(token, 0)
    assert made.proof is None
    return error.value


@pytest.mark.parametrize(
    "first",
    [
        b"n,,\x01auth=Bearer good\x01\x01",
        b"n,a=ada,\x01auth=bearer  good\x01\x01",
        b"n,,\x01auth=Bearer good\x01traceId=1 2\x01\x01",
        b"n,,\x01host=server.example\x01port=143\x01auth=Bearer good\x01\x01",  # RFC 7628, section 4.1
    ],
)
def test_a_good_token_proves_its_user(first):
    made = exchange()
    assert made.answer(first, 0) == b""
    assert made.proof == Proof("ada", 1_000)


def test_a_bad_token_is_answered_with_its_error_and_fails_once_that_is_acknowledged():
    made = exchange()
    assert made.answer(b"n,,\x01auth=Bearer bad\x01\x01", 0) == INVALID and made.proof is None
    error = rejected(made, b"\x01")
    assert str(error) == "it is bad" and error.client_message == INVALID.decode()


def test_a_client_cannot_try_another_token_after_a_bad_one():
    made = exchange()
    made.answer(b"n,,\x01auth=Bearer bad\x01\x01", 0)
    rejected(made, b"n,,\x01auth=Bearer good\x01\x01")


def test_the_rights_of_another_are_refused():
    error = rejected(exchange(), b"n,a=root,\x01auth=Bearer good\x01\x01")
    assert "(root) that is different from the token's principal name (ada)" in error.client_message


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,auth=Bearer good",
        b"y,,\x01auth=Bearer good\x01\x01",
        b"n,,\x01auth=Basic good\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        b"n,,\x01host=a\x01\x01",
    ],
)
def test_a_message_of_another_form_is_rejected(first):
    assert rejected(exchange(), first).client_message is None


# --- when keys are fetched ---------------------------------------------------------------------------------------


def fetched_at(ms):
    sets = KeySets()
    keys = sets.of(SOURCE)
    assert sets.take_due(ms) == [keys] and sets.take_due(ms) == []
    keys.fetched(parse_keys(key_set(SigningKey())), ms)
    return sets, keys


def test_keys_are_fetched_at_first_and_then_in_their_time():
    sets, keys = fetched_at(0)
    assert [key.key_id for key in keys.find("first")] == [key.key_id for key in keys.find(None)] == ["first"]
    assert sets.take_due(3_599_999) == [] and sets.take_due(3_600_000) == [keys]


def test_a_name_that_is_missing_has_them_fetched_soon_however_many_are_asked_for():
    sets, keys = fetched_at(0)
    for number in range(100):
        assert keys.find(f"invented {number}") == []
    assert sets.take_due(MISSING_MS - 1) == [] and sets.take_due(MISSING_MS) == [keys]


def test_a_failure_keeps_the_keys_and_the_pause_doubles():
    sets, keys = fetched_at(0)
    now_ms, pauses = 3_600_000, []
    for _ in range(6):
        assert sets.take_due(now_ms) == [keys]
        keys.failed(now_ms)
        assert keys.find("first")
        pauses.append(next(ms for ms in range(2_000) if keys.is_due(now_ms + ms)))
        now_ms += pauses[-1]
    assert pauses == [100, 200, 400, 800, 1_000, 1_000]


def test_listeners_of_one_source_share_their_keys():
    sets = KeySets()
    assert sets.of(SOURCE) is sets.of(SOURCE)
