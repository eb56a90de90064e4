"""AlterUserScramCredentials, v0 to v0.

Behaviour: sets and deletes credentials; a request may name each user once (KIP-554). The broker stores only the data
that a server needs to check a password (RFC 5802), never the salted password in the request. All entries that are not
refused are stored in one commit. Listeners that have the mechanism use them at once.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from typing import Any

from broker.metadata.change import Change, Credential
from broker.metadata.changes import CREDENTIALS, Planned
from broker.metadata.staged import Staged
from broker.now import Now
from broker.security.authorization.acl import CLUSTER_NAME, Operation, ResourceType
from broker.security.authorization.audit_log import shown
from broker.security.authorization.rights import check
from broker.security.sasl.listeners import SCRAM_MECHANISMS
from broker.security.sasl.scram_keys import keys_of, wrong_iterations
from broker.security.sasl.user_text import without_password
from broker.services.context import RequestContext
from broker.services.controller_requests import check_controller
from broker.steps import CHANGES_AT_ONCE, LazyArray, Steps
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode

Credentials = dict[tuple[str, int], Credential]
Answer = tuple[ErrorCode, str | None]

_DUPLICATE = ApiError(ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")

_NAMELESS = ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
_UNKNOWN_MECHANISM = ApiError(
    ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism; 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512"
)
_MISSING = ApiError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")


def handle(call: RequestContext, now: Now) -> Steps[dict[str, Any] | Delayed[dict[str, Any]]]:
    try:
        check_controller(call.services)
        check(call.rights, Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    except ApiError as error:
        changes = (*call.request.deletions, *call.request.upsertions)
        return _answer({change.name: (error.code, error.message) for change in changes})
    made = []
    for number, upsertion in enumerate(call.request.upsertions):
        if number and number % CHANGES_AT_ONCE == 0:
            now = yield
        made.append(_made(upsertion))
    return call.services.changes.submit((CREDENTIALS,), lambda at: _begin(call, made), now)


def _begin(call: RequestContext, made: Sequence[Credential | ApiError]) -> dict[str, Any] | Planned:
    """Plan the change; `made` are the credentials of the upsertions."""
    changes = [(deletion, None) for deletion in call.request.deletions] + list(
        zip(call.request.upsertions, made, strict=True)
    )
    named = Counter(change.name for change, _ in changes)
    most = call.services.config.max_scram_credentials
    credentials = dict(call.services.metadata.credentials)
    answers: dict[str, Answer] = {}
    for change, credential in changes:
        error = _DUPLICATE if named[change.name] > 1 else _alter(credentials, change, credential, most)
        answers[change.name] = (ErrorCode.NONE, None) if error is None else (error.code, error.message)
    if credentials == call.services.metadata.credentials:
        return _answer(answers)

    staged = Staged(Change(credentials=credentials))
    staged.on_end = lambda: _note(call, {user for user, (code, _) in answers.items() if not code}, staged.error)

    def answer(error: ApiError | None, at: Now) -> dict[str, Any]:
        if error is None:
            return _answer(answers | _warnings(call, answers))
        failed = error.code, error.message
        return _answer({user: result if result[0] else failed for user, result in answers.items()})

    return Planned(staged, answer)


def _note(call: RequestContext, users: Set[str], failure: ApiError | None) -> None:
    """Write the audit lines of the users whose passwords were changed."""
    for verb, changes in (("deleted", call.request.deletions), ("set", call.request.upsertions)):
        for change in changes:
            if change.name in users:
                mechanism = SCRAM_MECHANISMS[change.mechanism]
                change_text = f"{verb} the {mechanism} password of user "
                call.note_change(change_text, [shown(change.name)], failure, without_authorizer=True)


def _warnings(call: RequestContext, answers: Mapping[str, Answer]) -> dict[str, Answer]:
    """Return the answer with a warning for the user of the brokers, if its password was deleted; else none.

    Kafka's clients leave out the message of an answer without an error.
    """
    member = call.services.member
    own = None if member is None else member.user_of_brokers()
    for deletion in call.request.deletions:
        user, mechanism = deletion.name, deletion.mechanism
        if own == (user, mechanism) and not answers[user][0]:
            return {user: (ErrorCode.NONE, without_password(user, SCRAM_MECHANISMS[mechanism]))}
    return {}


def _answer(answers: Mapping[str, Answer]) -> dict[str, Any]:
    return {"throttle_time": 0, "results": LazyArray(answers.items(), _result)}


def _result(result: tuple[str, Answer]) -> dict[str, Any]:
    user, (code, message) = result
    return {"user": user, "error_code": code, "error_message": message}


def _alter(
    credentials: Credentials, change: Any, made: Credential | ApiError | None, most: int
) -> ApiError | None:
    """Set the credential that was made, or delete it if none was. Return the error that refuses this."""
    key = change.name, change.mechanism
    error = _named(change)
    if error is not None:
        return error
    if made is None:
        return _MISSING if credentials.pop(key, None) is None else None
    if key not in credentials and len(credentials) >= most:
        return _enough(most)
    if isinstance(made, ApiError):
        return made
    credentials[key] = made
    return None


@lru_cache(maxsize=1)
def _enough(most: int) -> ApiError:
    reason = f"there are credentials enough: flakelog.max.scram.credentials is {most}"
    return ApiError(ErrorCode.POLICY_VIOLATION, reason)


def _named(change: Any) -> ApiError | None:
    """Return the error of an entry that names no user or no mechanism."""
    if not change.name:
        return _NAMELESS
    return None if change.mechanism in SCRAM_MECHANISMS else _UNKNOWN_MECHANISM


def _made(change: Any) -> Credential | ApiError:
    """Return the credential of an upsertion, or the error that refuses it."""
    error = _named(change)
    if error is not None:
        return error
    wrong = wrong_iterations(change.iterations)
    if wrong is not None:
        return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, wrong)
    keys = keys_of(bytes(change.salted_password), SCRAM_MECHANISMS[change.mechanism])
    return Credential(bytes(change.salt), change.iterations, *keys)
