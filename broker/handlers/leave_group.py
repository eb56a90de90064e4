"""LeaveGroup, v0 to v5.

Behaviour: removes the members, and the other members rebalance.
Version notes: before v3 one member leaves and its error is the request's; from v3 several can, each with its error, a
static member by its instance id alone (KIP-345); v5 has a reason (KIP-800), which is not kept.
"""

from typing import Any

from broker.group.results import LeaveResult, MemberIdentity
from broker.now import Now
from broker.services.context import RequestContext
from broker.steps import LazyArray
from broker.wire.errors import ErrorCode

MEMBERS_VERSION = 3


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    groups, request = call.services.coordinators.groups, call.request
    led = groups.find(request.group_id)
    if isinstance(led, ErrorCode):
        return _answer(call.version, LeaveResult(led))
    call.services.id_stamper.ensure(1, now)
    result = led.core.leave(request.group_id, _leaving(call), now)
    led.settle(now)
    return _answer(call.version, result)


def _leaving(call: RequestContext) -> list[MemberIdentity]:
    if call.version < MEMBERS_VERSION:
        return [MemberIdentity(call.original.member_id)]
    return [MemberIdentity(member.member_id, member.group_instance_id) for member in call.request.members]


def _answer(version: int, result: LeaveResult) -> dict[str, Any]:
    error = result.error
    if version < MEMBERS_VERSION and result.members:
        error = result.members[0][1]
    return {
        "throttle_time": 0,
        "error_code": error,
        "members": LazyArray(result.members, _member),
    }


def _member(member_and_code: tuple[MemberIdentity, ErrorCode]) -> dict[str, Any]:
    member, code = member_and_code
    return {"member_id": member.member_id, "group_instance_id": member.instance_id, "error_code": code}
