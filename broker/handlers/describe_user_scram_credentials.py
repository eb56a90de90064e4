"""DescribeUserScramCredentials, v0 to v0.

Behaviour: returns the mechanisms for which users have credentials, and the iterations (KIP-554); never the credentials.
"""

from collections import Counter
from typing import Any

from broker.now import Now
from broker.services.context import RequestContext
from broker.steps import LazyArray
from broker.wire.errors import ErrorCode


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    by_user: dict[str, list[dict[str, Any]]] = {}
    for (user, mechanism), credential in call.services.metadata.credentials.items():
        by_user.setdefault(user, []).append({"mechanism": mechanism, "iterations": credential.iterations})
    times_by_user = Counter(requested.name for requested in call.request.users or ()) or Counter(by_user.keys())
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "error_message": "",
        "results": LazyArray(
            times_by_user.items(), lambda user_and_times: _describe(*user_and_times, by_user.get(user_and_times[0], []))
        ),
    }


def _describe(user: str, times: int, credentials: list[dict[str, Any]]) -> dict[str, Any]:
    code, message = ErrorCode.NONE, ""
    if times > 1:
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        code, credentials = ErrorCode.DUPLICATE_RESOURCE, []
    elif not credentials:
        code = ErrorCode.RESOURCE_NOT_FOUND
        message = f"Attempt to describe a user credential that does not exist: {user}"
    return {"user": user, "error_code": code, "error_message": message or None, "credential_infos": credentials}
