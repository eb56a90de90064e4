"""Credentials that are made up for users who do not exist."""

import pytest

from broker.metadata.change import Credential
from broker.security.sasl.unknown_users import Credentials

SHA_256, SHA_512 = 1, 2
TEXT_SALT = b"1qj4ldsdg8p12cnmvqdpjg4d0z"


def real(salt=TEXT_SALT, iterations=4096):
    return Credential(salt, iterations, b"stored", b"server")


def credentials(current, secret=b"secret", mechanism="SCRAM-SHA-256", number=SHA_256):
    return Credentials(mechanism, number, lambda: current, secret)


def test_a_known_user_has_its_own_credential():
    assert credentials({("ada", SHA_256): real()}).find("ada") == (real(), True)


def test_an_unknown_user_has_the_same_salt_at_each_try_and_after_a_restart():
    one, again = credentials({}), credentials({})
    found, is_known = one.find("nobody")
    assert not is_known and (found, False) == one.find("nobody") == again.find("nobody")
    assert found.salt != one.find("somebody")[0].salt


def test_another_server_and_another_mechanism_have_other_salts():
    salts = [
        credentials({}).find("nobody")[0].salt,
        credentials({}, secret=b"another").find("nobody")[0].salt,
        credentials({}, mechanism="SCRAM-SHA-512", number=SHA_512).find("nobody")[0].salt,
    ]
    assert len(set(salts)) == 3


def test_a_user_without_a_credential_of_this_mechanism_is_unknown():
    assert not credentials({("ada", SHA_512): real()}).find("ada")[1]


@pytest.mark.parametrize(("salt", "iterations"), [(TEXT_SALT, 8192), (bytes(range(64)), 10_000), (b"\xff", 4096)])
def test_a_made_up_credential_looks_like_the_real_ones(salt, iterations):
    found, _ = credentials({("ada", SHA_256): real(salt, iterations)}).find("nobody")
    assert (len(found.salt), found.iterations) == (len(salt), iterations)
    assert (found.salt.isalnum() and found.salt.isascii()) == salt.isalnum()
    assert len(found.stored_key) == len(found.server_key) == 32


def test_without_any_real_one_it_looks_like_one_that_kafkas_tools_make():
    found, _ = credentials({}).find("nobody")
    assert found.iterations == 4096 and len(found.salt) == 26 and found.salt.isalnum()


def test_names_share_the_looks_of_all_real_ones_and_keep_theirs_when_one_more_is_there():
    current = {(str(number), SHA_256): real(iterations=4096 + number) for number in range(5)}
    before = credentials(current)
    after = credentials(current | {("new", SHA_256): real(iterations=16_384)})
    names = [f"nobody {number}" for number in range(500)]
    looks = [before.find(name)[0].iterations for name in names]
    assert len(set(looks)) == 5
    assert sum(after.find(name)[0].iterations != look for name, look in zip(names, looks, strict=True)) < 150


def test_a_credential_that_is_made_or_deleted_counts_at_once():
    current = {}
    found = Credentials("SCRAM-SHA-256", SHA_256, lambda: dict(current), b"secret")
    assert not found.find("ada")[1]
    current["ada", SHA_256] = real()
    assert found.find("ada") == (real(), True)
    del current["ada", SHA_256]
    assert not found.find("ada")[1]
