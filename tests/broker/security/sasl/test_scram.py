"""SCRAM: the messages of RFC 7677, and all that can be wrong in them."""

from base64 import b64decode

import pytest

from broker.security.sasl.exchange import Proof, Rejected
from broker.security.sasl.scram import DIGESTS, ScramExchange
from tests.broker.scram_client import ScramClient, credential

# RFC 7677, section 3.
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = f"r=rOprNGfwEbeRWgbNEkqO{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
WITHOUT_PROOF = f"c=biws,r=rOprNGfwEbeRWgbNEkqO{SERVER_NONCE}".encode()
CLIENT_FINAL = WITHOUT_PROOF + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def exchange(users=None, mechanism="SCRAM-SHA-256", nonce=SERVER_NONCE):
    known = {"user": credential("pencil", salt=SALT)} if users is None else users
    return ScramExchange(mechanism, lambda user: (known.get(user, credential("?")), user in known), nonce)


def log_in(made, client):
    """Let a client prove itself, and the server too."""
    assert made.answer(client.final(made.answer(client.first, 0)), 0) == client.signature


def rejected(made, token):
    with pytest.raises(Rejected) as error:
        made.answer(token, 0)
    assert made.proof is None
    return error.value


def test_the_example_of_rfc_7677():
    made = exchange()
    assert made.answer(CLIENT_FIRST, 0) == SERVER_FIRST and made.proof is None
    assert made.answer(CLIENT_FINAL, 0) == SERVER_FINAL
    assert made.proof == Proof("user")


@pytest.mark.parametrize("mechanism", DIGESTS)
@pytest.mark.parametrize("name", ["ada", "a,b=c", "zoé", "=2C"])
def test_each_name_proves_itself_with_its_password(mechanism, name):
    made = exchange({name: credential("x ü", mechanism, b"salt", 5_000)}, mechanism)
    log_in(made, ScramClient(name, "x ü", mechanism))
    assert made.proof == Proof(name)


def test_an_unknown_user_gets_salt_and_iterations_and_is_rejected_as_a_wrong_password_is():
    unknown, wrong = ScramClient("nobody", "?"), ScramClient("user", "wrong")
    errors = []
    for client in (unknown, wrong):
        made = exchange()
        errors.append(rejected(made, client.final(made.answer(client.first, 0))))
    assert [str(error) for error in errors] == [
        "unknown user or wrong password: 'nobody'", "unknown user or wrong password: 'user'"
    ]  # fmt: skip
    assert errors[0].client_message is errors[1].client_message is None


def test_extensions_are_skipped_and_part_of_what_is_signed():
    log_in(exchange(), ScramClient("user", "pencil", extensions=",x=y,note=z"))


def test_an_authorization_id_must_be_the_users_own():
    log_in(exchange(), ScramClient("user", "pencil", identity="user"))
    error = rejected(exchange(), ScramClient("user", "pencil", identity="root").first)
    assert "authorization id that is different" in error.client_message


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,",
        b"n,,n=user",
        b"n,,n=,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"n,,r=abc,n=user",
        b"y,,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,m=ext,n=user,r=abc",
        b"n,,n=user,r=abc,1=x",
        b"n,,n=user\0,r=abc",
        b"n,,n=\xff,r=abc",
    ],
)
def test_a_first_message_of_another_form_is_rejected(first):
    assert rejected(exchange(), first).client_message is None


def test_a_delegation_token_is_refused_by_name():
    assert "a delegation token" in str(rejected(exchange(), b"n,,n=id,r=abc,tokenauth=true"))


@pytest.mark.parametrize(
    ("final", "reason"),
    [
        (b"", "format"),
        (WITHOUT_PROOF, "format"),
        (WITHOUT_PROOF + b",p=!", "format"),
        (WITHOUT_PROOF + b",p=a", "format"),
        (WITHOUT_PROOF + b",p=", "wrong password"),
        (WITHOUT_PROOF + b",p=AAAA", "wrong password"),
        (CLIENT_FINAL.replace(b"dHz", b"dHy"), "wrong password"),
        (CLIENT_FINAL.replace(b"NEkqO%", b"NEkqO#"), "nonce"),
        (CLIENT_FINAL.replace(b"c=biws", b"c=eSws"), "channel binding"),
        (CLIENT_FIRST, "format"),
    ],
)
def test_a_last_message_that_proves_nothing_is_rejected(final, reason):
    made = exchange()
    made.answer(CLIENT_FIRST, 0)
    assert reason in str(rejected(made, final))


def test_a_proof_heard_on_another_connection_proves_nothing():
    other = exchange(nonce="another")
    other.answer(CLIENT_FIRST, 0)
    rejected(other, CLIENT_FINAL)
