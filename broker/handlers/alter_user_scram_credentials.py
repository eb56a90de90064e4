"""AlterUserScramCredentials, v0 to v0.

Behaviour: sets and deletes credentials; a request may name each user once (KIP-554). The broker stores only the data
that a server needs to check a password (RFC 5802), never the salted password in the request. All entries that are not
refused are stored in one commit. Only listeners that ask for credentials use them, as on any broker of Kafka.
"""

import hashlib
import hmac
from collections import Counter
from collections.abc import Mapping
from typing import Any

from broker.engine.purgatory import Delayed
from broker.now import Now
from broker.services.context import RequestContext
from broker.services.metadata import Change, Credential
from broker.services.metadata_changes import CREDENTIALS, Planned, Staged
from broker.steps import Each
from broker.wire.errors import ApiError, ErrorCode

MECHANISMS = {1: "sha256", 2: "sha512"}
ITERATIONS_MIN, ITERATIONS_MAX = 4_096, 16_384  # Kafka's; fewer are guessed too soon, more make each login expensive

Credentials = dict[tuple[str, int], Credential]
Answer = tuple[ErrorCode, str | None]

_TWICE = "A user credential cannot be altered twice in the same request"


def handle(call: RequestContext, now: Now) -> dict[str, Any] | Delayed[dict[str, Any]]:
    return call.services.changes.submit((CREDENTIALS,), lambda at: _begin(call), now)


def _begin(call: RequestContext) -> dict[str, Any] | Planned:
    asked = [*call.request.deletions, *call.request.upsertions]
    named = Counter(each.name for each in asked)
    credentials = dict(call.services.metadata.credentials)
    answers: dict[str, Answer] = {}
    for each in asked:
        try:
            if named[each.name] > 1:
                raise ApiError(ErrorCode.DUPLICATE_RESOURCE, _TWICE)
            _alter(call, credentials, each)
            answers[each.name] = ErrorCode.NONE, None
        except ApiError as error:
            answers[each.name] = error.code, error.message
    if credentials == call.services.metadata.credentials:
        return _told(answers)

    def answer(error: ApiError | None, at: Now) -> dict[str, Any]:
        if error is None:
            return _told(answers)
        call.services.report(f"SCRAM credentials could not be altered: {error}")
        failed = error.code, error.message
        return _told({user: each if each[0] else failed for user, each in answers.items()})

    return Planned(Staged(Change(credentials=credentials)), answer)


def _told(answers: Mapping[str, Answer]) -> dict[str, Any]:
    return {"throttle_time": 0, "results": Each(answers.items(), _result)}


def _result(each: tuple[str, Answer]) -> dict[str, Any]:
    user, (code, message) = each
    return {"user": user, "error_code": code, "error_message": message}


def _alter(call: RequestContext, credentials: Credentials, asked: Any) -> None:
    """Set or delete one credential in `credentials`. Raise ApiError."""
    key = asked.name, asked.mechanism
    if not asked.name:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if asked.mechanism not in MECHANISMS:
        said = "Unknown SCRAM mechanism; 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512"
        raise ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, said)
    if not hasattr(asked, "salted_password"):
        if credentials.pop(key, None) is None:
            raise ApiError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
        return
    most = call.services.config.max_scram_credentials
    if key not in credentials and len(credentials) >= most:
        said = f"there are credentials enough: flakelog.max.scram.credentials is {most}"
        raise ApiError(ErrorCode.POLICY_VIOLATION, said)
    credentials[key] = _credential(asked)


def _credential(asked: Any) -> Credential:
    if not ITERATIONS_MIN <= asked.iterations <= ITERATIONS_MAX:
        said = f"Too {'few' if asked.iterations < ITERATIONS_MIN else 'many'} iterations; "
        said += f"{ITERATIONS_MIN} to {ITERATIONS_MAX} are taken"
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, said)
    digest = MECHANISMS[asked.mechanism]
    client_key = hmac.digest(asked.salted_password, b"Client Key", digest)
    stored_key = hashlib.new(digest, client_key).digest()
    server_key = hmac.digest(asked.salted_password, b"Server Key", digest)
    return Credential(bytes(asked.salt), asked.iterations, stored_key, server_key)
