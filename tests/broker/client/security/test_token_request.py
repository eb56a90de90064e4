"""Tokens that a client gets from an identity provider: the request, its answers, and when the next one is due."""

import json
from base64 import b64decode
from urllib.parse import parse_qsl

import pytest

from broker.client.security.token_request import (
    JWT_BEARER,
    FetchedToken,
    TokenCache,
    TokenRequest,
    end_of,
    parse_answer,
    reason_in,
)
from broker.security.sasl.assertion_config import AssertionConfig
from tests.broker.web_tokens import SigningKey

NOW_S = 1_000_000.0
REQUEST = TokenRequest("https://id.example/token", "ada", "marked:secret", "kafka read")


def test_the_request_is_that_of_rfc_6749():
    """Section 4.4.2, with the client's id and secret as section 2.3.1 has them."""
    assert REQUEST.body() == b"grant_type=client_credentials&scope=kafka+read"
    assert REQUEST._replace(scope=None).body() == b"grant_type=client_credentials"
    kind, login = REQUEST.headers["Authorization"].split()
    assert (kind, b64decode(login)) == ("Basic", b"ada:marked:secret")
    assert REQUEST.headers["Content-Type"] == "application/x-www-form-urlencoded"


def test_id_and_secret_are_encoded_in_the_header_if_that_is_set():
    """RFC 6749, section 2.3.1; Kafka's `sasl.oauthbearer.header.urlencode`."""
    _, login = REQUEST._replace(encodes_login=True).headers["Authorization"].split()
    assert b64decode(login) == b"ada:marked%3Asecret"


def test_an_assertion_is_in_place_of_the_secret():
    """RFC 7523, section 2.2; Kafka sends no id if none is set (KIP-1258)."""
    request = TokenRequest("https://id.example/token", "ada", scope="read", assertion=AssertionConfig())
    kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
    fields = {"client_assertion_type": kind, "client_assertion": "a.b.c", "grant_type": "client_credentials"}
    assert dict(parse_qsl(request.body("a.b.c").decode())) == fields | {"client_id": "ada", "scope": "read"}
    assert dict(parse_qsl(request._replace(client_id="", scope=None).body("a.b.c").decode())) == fields
    assert "Authorization" not in request.headers


def test_an_assertion_alone_is_the_grant_of_jwt_bearer():
    """RFC 7523, section 2.1; KIP-1139."""
    request = TokenRequest("https://id.example/token", assertion=AssertionConfig(), grant=JWT_BEARER)
    fields = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": "a.b.c"}
    assert dict(parse_qsl(request.body("a.b.c").decode())) == fields
    assert dict(parse_qsl(request._replace(scope="read").body("a.b.c").decode())) == fields | {"scope": "read"}
    assert "Authorization" not in request.headers


def test_neither_secret_nor_token_is_shown():
    assert "marked" not in repr(REQUEST) + repr(FetchedToken("marked", 0.0))


def test_a_token_ends_when_it_says_so_and_else_when_the_provider_says_so():
    token = SigningKey().token({"sub": "ada", "exp": 1_000_600})
    assert parse_answer(json.dumps({"access_token": token, "expires_in": 5}).encode(), NOW_S).expires_s == 1_000_600
    assert parse_answer(b'{"access_token":"opaque","expires_in":5}', NOW_S) == ("opaque", NOW_S + 5)
    assert parse_answer(b'{"id_token":"opaque"}', NOW_S) == ("opaque", None)


@pytest.mark.parametrize("token", ["a.b", "a.b.c", "a.e30.c", "a.W10.c", "a.eyJleHAiOiJ4In0.c", "a.eyJleHAiOjFlMzB9.c"])
def test_text_that_is_no_signed_token_has_no_end(token):
    assert end_of(token) is None


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"<html>", "its answer is no JSON object"),
        (b"[" * 100_000, "its answer is no JSON object"),
        (b"[]", "its answer is no JSON object"),
        (b'{"access_token": 5}', "its answer has no access_token"),
    ],
)
def test_an_answer_without_a_token_is_refused(answer, reason):
    with pytest.raises(ValueError, match=reason):
        parse_answer(answer, NOW_S)


def test_a_refusal_is_told_in_the_providers_words_on_one_line():
    answer = {"error": "invalid_client", "error_description": "two\nlines"}
    assert reason_in(json.dumps(answer).encode()) == r" ('invalid_client', 'two\nlines')"
    assert reason_in(b"<html>") == reason_in(b"[]") == reason_in(b"{}") == ""


def test_the_next_token_is_due_when_80_percent_of_the_lifetime_are_over():
    cache = TokenCache()
    assert cache.is_due(NOW_S)
    cache.fetched(FetchedToken("first", NOW_S + 100), NOW_S)
    assert not cache.is_due(NOW_S + 79) and cache.is_due(NOW_S + 80)


def test_a_token_without_an_end_is_fetched_for_each_login():
    cache = TokenCache()
    cache.fetched(FetchedToken("first", None), NOW_S)
    assert cache.is_due(NOW_S) and cache.present(NOW_S + 1e9) == "first"


def test_after_a_failure_the_last_token_is_used_while_it_lives_and_then_the_failure_is_told():
    cache = TokenCache()
    with pytest.raises(ValueError, match="none has been fetched yet"):
        cache.present(NOW_S)
    cache.fetched(FetchedToken("first", NOW_S + 100), NOW_S)
    cache.failed("it answers 503", NOW_S + 80)
    assert cache.present(NOW_S + 99) == "first"
    with pytest.raises(ValueError, match="it answers 503"):
        cache.present(NOW_S + 100)
    cache.fetched(FetchedToken("second", NOW_S + 200), NOW_S + 100)
    assert cache.present(NOW_S + 199) == "second"
    with pytest.raises(ValueError, match="the last one has expired"):
        cache.present(NOW_S + 200)


def test_pauses_after_failures_double_up_to_ten_seconds_and_begin_anew_after_a_success():
    cache, now_s, pauses = TokenCache(), NOW_S, []
    for _ in range(10):
        cache.failed("no", now_s)
        pause_s = next(tenths / 10 for tenths in range(1, 200) if cache.is_due(now_s + tenths / 10 + 0.001))
        pauses.append(pause_s)
        now_s += pause_s
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]
    cache.fetched(FetchedToken("first", None), now_s)
    cache.failed("no", now_s)
    assert not cache.is_due(now_s) and cache.is_due(now_s + 0.101)
