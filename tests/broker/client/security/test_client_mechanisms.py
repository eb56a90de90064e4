"""The client's side of SASL's mechanisms: the messages of the RFCs, and servers that do not prove themselves."""

import pytest

from broker.client.security.mechanisms import LoginRefused, OauthClient, PlainClient, ScramClient, is_token
from broker.security.sasl.exchange import Proof
from broker.security.sasl.scram import DIGESTS, ScramExchange
from tests.broker.scram_client import credential
from tests.broker.web_tokens import SigningKey

# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = rb"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    rb"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def scram():
    return ScramClient("SCRAM-SHA-256", "user", "pencil", NONCE)


def test_the_example_of_rfc_7677():
    client = scram()
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.answer(SERVER_FIRST) == CLIENT_FINAL
    assert client.answer(SERVER_FINAL) is None


@pytest.mark.parametrize("mechanism", DIGESTS)
@pytest.mark.parametrize("name", ["ada", "a,b=c", "zoé", "=2C"])
def test_each_name_logs_in_at_the_server_and_checks_it(mechanism, name):
    stored = credential("x ü", mechanism, b"salt", 5_000)
    server = ScramExchange(mechanism, lambda user: (stored, user == name), "server-nonce")
    client = ScramClient(mechanism, name, "x ü", NONCE)
    final = client.answer(server.answer(client.first(), 0))
    assert client.answer(server.answer(final, 0)) is None
    assert server.proof == Proof(name)


@pytest.mark.parametrize(
    ("final", "reason"),
    [
        (b"v=" + b"A" * 43 + b"=", "does not prove that it knows the password"),
        (b"", "does not prove that it knows the password"),
        (b"v=A", "'A' is no base64"),
        (b"v=", "does not prove that it knows the password"),
        (b"\xff", "is no UTF-8"),
        (b"e=other\nerror", r"refuses the proof of the password: 'other\nerror'"),
    ],
)
def test_a_server_that_does_not_know_the_password_is_refused(final, reason):
    client = scram()
    client.answer(SERVER_FIRST)
    with pytest.raises(LoginRefused) as error:
        client.answer(final)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (SERVER_FIRST.replace(b"r=r", b"r=x"), "nonce does not begin with this client's"),
        (b"r=" + NONCE.encode() + b",s=c2FsdA==,i=4096", "nonce does not begin with this client's"),
        (b"r=" + NONCE.encode() + b"more,s=A,i=4096", "'A' is no base64"),
        (SERVER_FIRST.replace(b"4096", b"4095"), "asks for 4095 iterations of SCRAM-SHA-256, and 4096 to 100000"),
        (SERVER_FIRST.replace(b"4096", b"100001"), "asks for 100001 iterations"),
        (SERVER_FIRST.replace(b"4096", b"9" * 30), "first SCRAM message is wrong"),
        (b"m=extension," + SERVER_FIRST, "first SCRAM message is wrong"),
        (b"", "first SCRAM message is wrong"),
    ],
)
def test_a_first_message_of_a_server_that_makes_the_proof_weak_or_expensive_is_refused(first, reason):
    with pytest.raises(LoginRefused) as error:
        scram().answer(first)
    assert reason in str(error.value)


def test_plain_sends_one_token_of_user_and_password():
    client = PlainClient("ada", "pass,word")
    assert client.first() == b"\0ada\0pass,word"
    assert client.answer(b"") is None


def test_a_refused_token_is_acknowledged_and_then_an_error():
    """RFC 7628, section 3.2.3."""
    client = OauthClient("abc.def.ghi")
    assert client.first() == b"n,,\x01auth=Bearer abc.def.ghi\x01\x01"
    assert client.answer(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(LoginRefused, match="refuses the token: .*invalid_token"):
        client.answer(b"")
    assert OauthClient("abc").answer(b"") is None


def test_a_refused_token_that_says_when_it_expires_is_told_so():
    assert OauthClient("opaque").remedy == "check the token"
    token = SigningKey().token({"sub": "ada", "exp": 1_000_600})
    assert OauthClient(token).remedy == "check the token; it says that it expires at 1970-01-12 13:56:40 UTC"


def test_a_token_fits_its_place_in_the_message():
    assert is_token("abc.DEF-_~+/==")
    assert not is_token("abc\x01user=eve") and not is_token("") and not is_token("two words")
