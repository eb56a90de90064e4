"""Users that log in by SCRAM: list their credentials, set and delete them (KIP-554).

A broker keeps what checks a password, and never the password. This side makes the salted password, so that the password
itself is sent nowhere.
"""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from broker.client.api_versions import ALTER_USER_SCRAM_CREDENTIALS, DESCRIBE_USER_SCRAM_CREDENTIALS
from broker.client.blocking import Client
from broker.client.errors import BrokerError
from broker.security.sasl.listeners import SCRAM_MECHANISMS, SCRAM_NUMBERS
from broker.security.sasl.scram_keys import ITERATIONS_MIN, SALT_CHARACTERS, SALT_LENGTH, salted, wrong_iterations
from broker.wire.errors import ErrorCode
from flakelog.operations.errors import NotPossible


class ScramCredentials(NamedTuple):
    """A user, and the iterations of its credential for each mechanism: {"SCRAM-SHA-512": 4096}."""

    user: str
    iterations: dict[str, int]


@dataclass(frozen=True)
class ScramUpsertion:
    """A password to set. `mechanism` is SCRAM-SHA-256 or SCRAM-SHA-512, with 4,096 to 16,384 iterations."""

    user: str
    mechanism: str
    password: str = field(repr=False)
    iterations: int = ITERATIONS_MIN


class ScramDeletion(NamedTuple):
    """A credential to delete: that of a user for one mechanism."""

    user: str
    mechanism: str


def list_users(client: Client, users: Sequence[str] = ()) -> list[ScramCredentials]:
    """Return the credentials of these users, or of all, by name. A user without any has no iterations.

    Raise BrokerError, also for a user that is named twice.
    """
    controller = client.run(client.core.controller())
    fields = {"users": [{"name": user} for user in users] or None}
    answer = client.run(client.core.ask(controller, DESCRIBE_USER_SCRAM_CREDENTIALS, fields))
    if answer.error_code:
        raise BrokerError(int(answer.error_code), "users", answer.error_message)
    described = []
    for result in answer.results:
        if result.error_code and result.error_code != ErrorCode.RESOURCE_NOT_FOUND:
            raise BrokerError(int(result.error_code), f"user {result.user}", result.error_message)
        iterations = {_mechanism(info.mechanism): int(info.iterations) for info in result.credential_infos}
        described.append(ScramCredentials(str(result.user), dict(sorted(iterations.items()))))
    return sorted(described)


def alter_users(
    client: Client, upsertions: Iterable[ScramUpsertion] = (), deletions: Iterable[ScramDeletion] = ()
) -> list[str]:
    """Set and delete credentials, and return the warnings of the brokers. A request may name each user once.

    Raise ValueError for one that cannot be sent; then none is altered. Raise BrokerError for the first user that is
    refused; the others are altered.
    """
    fields = {
        "deletions": [
            {"name": deletion.user, "mechanism": _number(deletion.user, deletion.mechanism)} for deletion in deletions
        ],
        "upsertions": [_upsertion_fields(upsertion) for upsertion in upsertions],
    }
    controller = client.run(client.core.controller())
    answer = client.run(client.core.ask(controller, ALTER_USER_SCRAM_CREDENTIALS, fields))
    for result in answer.results:
        if result.error_code:
            raise BrokerError(int(result.error_code), f"user {result.user}", result.error_message)
    return [str(result.error_message) for result in answer.results if result.error_message]


def credentials_to_delete(client: Client, user: str, mechanisms: Iterable[str] = ()) -> ScramCredentials:
    """Return the credentials that a user has for these mechanisms, or for all.

    Raise NotPossible if it has none for one of them, or none at all.
    """
    (present,) = list_users(client, [user])
    chosen = list(dict.fromkeys(mechanisms)) or list(present.iterations)
    missing = [mechanism for mechanism in chosen if mechanism not in present.iterations]
    if missing or not chosen:
        raise NotPossible(f"user {user} has no password for {' or '.join(missing or ['SCRAM'])}")
    return ScramCredentials(user, {mechanism: present.iterations[mechanism] for mechanism in chosen})


def delete_user(client: Client, present: ScramCredentials) -> list[str]:
    """Delete credentials of a user, one a request, because a request may name a user once.

    Return the warnings of the brokers: they log in to each other as this user. Raise BrokerError for the first that is
    refused; those before it are deleted.
    """
    warnings = []
    for mechanism in present.iterations:
        warnings += alter_users(client, deletions=[ScramDeletion(present.user, mechanism)])
    return warnings


def _upsertion_fields(upsertion: ScramUpsertion) -> dict[str, Any]:
    number = _number(upsertion.user, upsertion.mechanism)
    wrong = wrong_iterations(upsertion.iterations)
    if wrong is not None:
        raise ValueError(f"user {upsertion.user}: iterations={upsertion.iterations}: {wrong}")
    if not upsertion.password:
        raise ValueError(f"user {upsertion.user}: the password is empty")
    salt = "".join(secrets.choice(SALT_CHARACTERS) for _ in range(SALT_LENGTH)).encode()
    return {
        "name": upsertion.user,
        "mechanism": number,
        "iterations": upsertion.iterations,
        "salt": salt,
        "salted_password": salted(upsertion.password, salt, upsertion.iterations, upsertion.mechanism),
    }


def _number(user: str, mechanism: str) -> int:
    if mechanism not in SCRAM_NUMBERS:
        raise ValueError(f"user {user}: mechanism={mechanism!r}: must be one of {', '.join(SCRAM_NUMBERS)}")
    return SCRAM_NUMBERS[mechanism]


def _mechanism(number: int) -> str:
    return SCRAM_MECHANISMS.get(number, f"mechanism {number}")
