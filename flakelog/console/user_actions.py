"""Actions on users that log in by SCRAM: set a password, and delete a user.

The confirmation asks for the password, so that neither the form nor the plan, which the server keeps, has it.
AlterUserScramCredentials has no `validate_only`, so a plan lists what the user has.
"""

from broker.client.blocking import Client
from broker.security.sasl.listeners import SCRAM_NUMBERS
from broker.security.sasl.scram_keys import ITERATIONS_MIN, PASSWORD_BYTES_MAX, wrong_iterations
from coordination.errors import quoted
from flakelog.console.actions import Action, Done, Planned, Task
from flakelog.console.text import is_typable
from flakelog.console.visit import BadField, Fields
from flakelog.operations import users
from flakelog.operations.errors import NotPossible
from flakelog.operations.users import ScramCredentials, ScramUpsertion

SECRETS = (("password", "Password"), ("repeated", "The same password again"))
USERS = "/console/users"
HEAD = ("Mechanism", "Iterations now", "Then")
SEEN = "seen_iterations"
"""The field of a plan that has the iterations of the credential to replace, or NO_PASSWORD."""
NO_PASSWORD = "none"
SESSIONS_STAY = "Connections that it has stay until their sessions end."


def _plan_password(client: Client, fields: Fields) -> Planned:
    user, mechanism, iterations = _upserted(fields)
    (present,) = users.list_users(client, [user])
    before = present.iterations.get(mechanism)
    rows = [[mechanism, "–" if before is None else str(before), str(iterations)]]
    seen = {SEEN: _shown(before)}
    if before is None:
        who = user if present.iterations else f"the new user {user}"
        return Planned(f"Give {who} a password for {mechanism}.", "Set it", HEAD, rows, seen=seen)
    warning = f"The former password lets nobody log in from then on. {SESSIONS_STAY}"
    return Planned(f"Replace the password of {user} for {mechanism}.", "Set it", HEAD, rows, warning, seen)


def _set_password(client: Client, fields: Fields, task: Task) -> Done:
    user, mechanism, iterations = _upserted(fields)
    password = fields.exact("password")
    if not password:
        raise BadField("give the password when you confirm")
    if len(password.encode()) > PASSWORD_BYTES_MAX:
        raise BadField(f"the password is longer than {PASSWORD_BYTES_MAX:,} bytes")
    if password != fields.exact("repeated"):
        raise BadField("the two passwords differ; give the same one twice")
    if seen := fields.text(SEEN):
        (present,) = users.list_users(client, [user])
        if seen != _shown(present.iterations.get(mechanism)):
            raise NotPossible(f"the password of {user} for {mechanism} was set or deleted meanwhile; begin again")
    users.alter_users(client, [ScramUpsertion(user, mechanism, password, iterations)])
    return Done(f"{user} has a new password for {mechanism}.", USERS)


def _shown(iterations: int | None) -> str:
    return NO_PASSWORD if iterations is None else str(iterations)


def _upserted(fields: Fields) -> tuple[str, str, int]:
    """Return the user, the mechanism and the iterations of a password to set. Raise BadField."""
    user, mechanism = _user(fields), fields.text("mechanism")
    iterations = fields.number("iterations", ITERATIONS_MIN)
    if user != user.strip():
        raise BadField("the name begins or ends with a space; `flakelog user set` takes such names")
    if mechanism not in SCRAM_NUMBERS:
        raise BadField(f"{quoted(mechanism)} is no mechanism of SCRAM; give {' or '.join(SCRAM_NUMBERS)}")
    if wrong := wrong_iterations(iterations):
        raise BadField(wrong)
    return user, mechanism, iterations


def _plan_deletion(client: Client, fields: Fields) -> Planned:
    present = _deleted(client, fields)
    rows = [[mechanism, str(iterations), "–"] for mechanism, iterations in present.iterations.items()]
    warning = f"It cannot log in by SCRAM any more. {SESSIONS_STAY} Access rules of User:{present.user} stay too."
    seen = {"mechanisms": ",".join(present.iterations)}
    return Planned(f"Delete the user {present.user}.", "Delete it", HEAD, rows, warning, seen)


def _delete(client: Client, fields: Fields, task: Task) -> Done:
    present = _deleted(client, fields)
    others = users.credentials_to_delete(client, present.user).iterations.keys() - present.iterations.keys()
    if others:
        mechanisms = " and ".join(sorted(others))
        raise NotPossible(f"{present.user} has got a password for {mechanisms} meanwhile; begin again")
    warnings = users.delete_user(client, present)
    deleted = f"The user {present.user} was deleted, with its passwords for {', '.join(present.iterations)}."
    return Done(" ".join([deleted, *warnings]), USERS)


def _deleted(client: Client, fields: Fields) -> ScramCredentials:
    """Return the credentials to delete: those that the visitor saw, or all for a plan. Raise BadField, NotPossible."""
    mechanisms = filter(None, fields.text("mechanisms").split(","))
    return users.credentials_to_delete(client, _user(fields), mechanisms)


def _user(fields: Fields) -> str:
    user = fields.exact("user")
    if not user:
        raise BadField("name the user")
    if not is_typable(user):
        raise BadField("the name has control characters; `flakelog user set` and `delete` take such names")
    return user


ACTIONS = {
    "set-password": Action(
        "Set a user's password",
        ("user", "mechanism", "iterations"),
        _plan_password,
        _set_password,
        "set_password.html",
        secrets=SECRETS,
    ),
    "delete-user": Action("Delete a user", ("user", "mechanisms"), _plan_deletion, _delete),
}
