"""PLAIN: one token of authorization id, user and password."""

import pytest

from broker.security.sasl.exchange import Proof, Rejected
from broker.security.sasl.plain import Passwords, PlainExchange

USERS = Passwords({"ada": "ada-secret", "zoé": "ünlock", "empty": ""}, b"key")
INVALID = "Authentication failed: Invalid username or password"


def rejected(token):
    exchange = PlainExchange(USERS)
    with pytest.raises(Rejected) as error:
        exchange.answer(token, 0)
    assert exchange.proof is None
    return error.value


@pytest.mark.parametrize(
    ("token", "user"),
    [(b"\0ada\0ada-secret", "ada"), (b"ada\0ada\0ada-secret", "ada"), ("\0zoé\0ünlock".encode(), "zoé")],
)
def test_the_right_password_proves_the_user(token, user):
    exchange = PlainExchange(USERS)
    assert exchange.answer(token, 0) == b""
    assert exchange.proof == Proof(user)


def test_an_unknown_user_and_a_wrong_password_are_told_the_same():
    assert rejected(b"\0ada\0wrong").client_message == rejected(b"\0nobody\0ada-secret").client_message == INVALID


def test_a_user_may_not_take_the_rights_of_another():
    assert "authorization id that is different from username" in rejected(b"zo\0ada\0ada-secret").client_message


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (b"", "expected 3 tokens, got 1"),
        (b"ada\0ada-secret", "expected 3 tokens, got 2"),
        (b"\0ada\0ada\0secret", "expected 3 tokens, got 4"),
        (b"\0\0ada-secret", "username not specified"),
        (b"\0ada\0", "password not specified"),
        (b"\0empty\0", "password not specified"),
        (b"\0\xff\0x", "no UTF-8"),
    ],
)
def test_a_token_of_another_form_is_rejected_without_a_word_to_the_client(token, reason):
    error = rejected(token)
    assert reason in str(error) and error.client_message is None


def test_a_line_of_the_log_cannot_be_forged_by_a_name():
    assert str(rejected(b"\0a\nb\x1b[0m\0x")) == r"unknown user or wrong password: 'a\nb\x1b[0m'"
    assert len(str(rejected(b"\0" + b"a" * 100_000 + b"\0x"))) < 200
