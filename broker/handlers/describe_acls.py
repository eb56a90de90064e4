"""DescribeAcls, v1 to v3.

Behaviour: returns the rules that a filter selects, by resource. Without an authorizer the answer is SECURITY_DISABLED.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from broker.now import Now
from broker.security.authorization.acl import AclBinding
from broker.services.access_rules import acl_filter, check_filter
from broker.services.context import RequestContext
from broker.steps import LazyArray
from broker.wire.errors import ErrorCode

MESSAGE = "No Authorizer is configured on the broker"


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    authorizer = call.services.authorizer
    if authorizer is None:
        error = {"error_code": ErrorCode.SECURITY_DISABLED, "error_message": MESSAGE}
        return {"throttle_time": 0, "resources": ()} | error
    wanted = acl_filter(call.request)
    reason = check_filter(wanted)
    if reason is not None:
        error = {"error_code": ErrorCode.INVALID_REQUEST, "error_message": reason}
        return {"throttle_time": 0, "resources": ()} | error
    by_resource = [list(group) for _, group in groupby(authorizer.selected(wanted), key=lambda rule: rule[:3])]
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "resources": LazyArray(by_resource, _resource),
    }


def _resource(bindings: Sequence[AclBinding]) -> dict[str, Any]:
    first = bindings[0]
    return {
        "resource_type": int(first.resource_type),
        "resource_name": first.name,
        "pattern_type": int(first.pattern_type),
        "acls": LazyArray(bindings, _acl),
    }


def _acl(binding: AclBinding) -> dict[str, Any]:
    return {
        "principal": binding.principal,
        "host": binding.host,
        "operation": int(binding.operation),
        "permission_type": int(binding.permission),
    }
