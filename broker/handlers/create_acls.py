"""CreateAcls, v1 to v3.

Behaviour: adds the rules that are valid in one commit, and answers once they are stored. A rule that is there already
is no error, as in Kafka. Without an authorizer each is answered with SECURITY_DISABLED.
"""

from collections.abc import Sequence
from typing import Any

from broker.cluster.acl_documents import resource_of
from broker.metadata.change import Change
from broker.metadata.changes import ACLS, Planned
from broker.metadata.staged import Staged
from broker.now import Now
from broker.security.authorization.acl import (
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_binding,
)
from broker.security.authorization.audit_log import described
from broker.services.context import RequestContext
from broker.services.kafka_messages import NO_AUTHORIZER
from broker.steps import LazyArray
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode


def handle(call: RequestContext, now: Now) -> dict[str, Any] | Delayed[dict[str, Any]]:
    if call.services.authorizer is None:
        return _answer([ApiError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)] * len(call.request.creations))
    bindings = [_binding(creation) for creation in call.request.creations]
    return call.services.changes.submit((ACLS,), lambda at: _begin(call, bindings), now)


def _begin(call: RequestContext, bindings: Sequence[AclBinding]) -> dict[str, Any] | Planned:
    services = call.services
    before = services.metadata.acls
    acls, most = set(before), services.config.max_acls
    errors: list[ApiError | None] = []
    for binding in bindings:
        reason = check_binding(binding) or _not_kept(call, binding)
        error = None if reason is None else ApiError(ErrorCode.INVALID_REQUEST, reason)
        if error is None and binding not in acls and len(acls) >= most:
            error = ApiError(ErrorCode.POLICY_VIOLATION, f"there are rules enough: flakelog.max.acls is {most}")
        if error is None:
            acls.add(binding)
        errors.append(error)
    if len(acls) == len(before):
        return _answer(errors)

    staged = Staged(Change(acls=frozenset(acls)))

    def note() -> None:
        for binding in sorted(acls - before):
            call.note_change("added an access rule: ", [described(binding)], staged.error)

    staged.on_end = note

    def answer(failure: ApiError | None, at: Now) -> dict[str, Any]:
        return _answer([error or failure for error in errors])

    return Planned(staged, answer)


def _not_kept(call: RequestContext, binding: AclBinding) -> str | None:
    """Return why the coordinator of a cluster cannot keep a rule, None if it can."""
    if call.services.member is None:
        return None
    try:
        resource_of(binding).check()
    except ValueError as error:
        return str(error)
    return None


def _binding(creation: Any) -> AclBinding:
    return AclBinding(
        ResourceType(creation.resource_type),
        PatternType(creation.resource_pattern_type),
        creation.resource_name,
        creation.principal,
        creation.host,
        Operation(creation.operation),
        Permission(creation.permission_type),
    )


def _answer(errors: Sequence[ApiError | None]) -> dict[str, Any]:
    return {"throttle_time": 0, "results": LazyArray(errors, _result)}


def _result(error: ApiError | None) -> dict[str, Any]:
    if error is None:
        return {"error_code": ErrorCode.NONE, "error_message": None}
    return {"error_code": error.code, "error_message": error.message}
