"""The value of `--add-scram`, in the syntax of `kafka-storage format`."""

from base64 import b64encode

import pytest

from broker.security.sasl.added_scram import parse_added_scram
from broker.security.sasl.scram_keys import salted
from tests.broker.scram_client import SALT, credential

FILES = {"ada.txt": "ada-secret\n"}


def parsed(text):
    return parse_added_scram(text, FILES.__getitem__, lambda: SALT)


def kept(added):
    return added.salt, added.iterations, *added.keys


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("password", ["password=ada-secret", 'password="ada-secret"', "password-file=ada.txt"])
def test_a_password_is_kept_as_a_server_needs_it(mechanism, password):
    added = parsed(f"{mechanism}=[name=ada,{password}]")
    assert (added.user, added.mechanism) == ("ada", mechanism)
    assert kept(added) == tuple(credential("ada-secret", mechanism))
    assert added.shows_password is ("file" not in password)


def test_salt_iterations_and_a_salted_password_may_be_given():
    salt = b64encode(b"a salt").decode()
    expected = tuple(credential("x", salt=b"a salt", iterations=8_192))
    assert kept(parsed(f'SCRAM-SHA-256=[name=ada,iterations=8192,salt="{salt}",password=x]')) == expected
    made = b64encode(salted("x", b"a salt", 8_192, "SCRAM-SHA-256")).decode()
    assert kept(parsed(f"SCRAM-SHA-256=[name=ada,iterations=8192,salt={salt},saltedpassword={made}]")) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must be MECHANISM=[name=USER,password-file=FILE]"),
        ("SCRAM-SHA-256=name=ada,password=marked", "must be MECHANISM=["),
        ("PLAIN=[name=ada,password=marked]", "PLAIN is no mechanism of SCRAM"),
        ("SCRAM-SHA-256=[password=marked]", "it names no user"),
        ("SCRAM-SHA-256=[name=ada]", "must have one of password-file, password and saltedpassword"),
        ("SCRAM-SHA-256=[name=ada,password=marked,password-file=ada.txt]", "must have one of"),
        ("SCRAM-SHA-256=[name=ada,password=]", "the password of ada is empty"),
        ("SCRAM-SHA-256=[name=ada,saltedpassword=bWFya2Vk]", "needs the salt"),
        ("SCRAM-SHA-256=[name=ada,salt=!,password=marked]", "salt must be in base64"),
        ("SCRAM-SHA-256=[name=ada,password=mar,ked]", "a part of it has no equals sign"),
        ("SCRAM-SHA-256=[name=ada,password=marked,colour=red]", "colour is not known there"),
        ("SCRAM-SHA-256=[name=ada,password=marked,iterations=4095]", "Too few iterations; 4096 to 16384 are taken"),
        ("SCRAM-SHA-256=[name=ada,password=marked,iterations=16385]", "Too many iterations"),
        ("SCRAM-SHA-256=[name=ada,password=marked,iterations=x]", "must be a whole number"),
    ],
)
def test_another_form_is_refused_and_no_secret_is_shown(text, reason):
    with pytest.raises(ValueError) as error:
        parsed(text)
    assert reason in str(error.value)
    assert "marked" not in str(error.value)
