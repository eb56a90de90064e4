"""DeleteAcls, v1 to v3.

Behaviour: removes the rules that any of the filters selects in one commit, and answers, once that is stored, which
rules each filter selected. Without an authorizer each filter is answered with SECURITY_DISABLED.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from broker.metadata.change import Change
from broker.metadata.changes import ACLS, Planned
from broker.metadata.staged import Staged
from broker.now import Now
from broker.security.authorization.acl import AclBinding, AclBindingFilter
from broker.security.authorization.audit_log import described
from broker.services.access_rules import acl_filter, check_filter
from broker.services.context import RequestContext
from broker.services.kafka_messages import NO_AUTHORIZER
from broker.steps import LazyArray
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode


class _Selected(NamedTuple):
    """The rules that one filter selected, or the error that refuses the filter."""

    bindings: Sequence[AclBinding] = ()
    error: ApiError | None = None


def handle(call: RequestContext, now: Now) -> dict[str, Any] | Delayed[dict[str, Any]]:
    if call.services.authorizer is None:
        disabled = _Selected(error=ApiError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER))
        return _answer([disabled] * len(call.request.filters))
    filters = [acl_filter(wanted) for wanted in call.request.filters]
    return call.services.changes.submit((ACLS,), lambda at: _begin(call, filters), now)


def _begin(call: RequestContext, filters: Sequence[AclBindingFilter]) -> dict[str, Any] | Planned:
    services = call.services
    before = sorted(services.metadata.acls)
    selected = [_select(before, wanted) for wanted in filters]
    removed = {binding for part in selected for binding in part.bindings}
    if not removed:
        return _answer(selected)

    staged = Staged(Change(acls=services.metadata.acls - removed))

    def note() -> None:
        for binding in sorted(removed):
            call.note_change("removed an access rule: ", [described(binding)], staged.error)

    staged.on_end = note

    def answer(failure: ApiError | None, at: Now) -> dict[str, Any]:
        if failure is None:
            return _answer(selected)
        return _answer([part if part.error else _Selected(error=failure) for part in selected])

    return Planned(staged, answer)


def _select(bindings: Sequence[AclBinding], wanted: AclBindingFilter) -> _Selected:
    reason = check_filter(wanted)
    if reason is not None:
        return _Selected(error=ApiError(ErrorCode.INVALID_REQUEST, reason))
    return _Selected([binding for binding in bindings if wanted.matches(binding)])


def _answer(selected: Sequence[_Selected]) -> dict[str, Any]:
    return {"throttle_time": 0, "filter_results": LazyArray(selected, _result)}


def _result(part: _Selected) -> dict[str, Any]:
    error = part.error
    return {
        "error_code": ErrorCode.NONE if error is None else error.code,
        "error_message": None if error is None else error.message,
        "matching_acls": LazyArray(part.bindings, _matching),
    }


def _matching(binding: AclBinding) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "resource_type": int(binding.resource_type),
        "resource_name": binding.name,
        "pattern_type": int(binding.pattern_type),
        "principal": binding.principal,
        "host": binding.host,
        "operation": int(binding.operation),
        "permission_type": int(binding.permission),
    }
