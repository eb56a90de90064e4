"""DescribeGroups, v0 to v6.

Behaviour: returns state, protocol and members of each group, once; an unknown group is Dead.
Version notes: v3 returns the operations that the client may do (KIP-430); v4 static members (KIP-345); from v6 an
unknown group is an error with a message (KIP-1043), before it is only Dead.
"""

from typing import Any

from broker.group.results import DescribedMember
from broker.now import Now
from broker.security.authorization.acl import Operation, ResourceType
from broker.security.authorization.rights import AUTHORIZATION_FAILED, may
from broker.services.authorized_operations import operations
from broker.services.context import RequestContext
from broker.steps import LazyArray
from broker.wire.errors import ErrorCode

NOT_FOUND_VERSION = 6
_NOTHING = {"protocol_type": "", "protocol_data": "", "members": ()}


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    # Answer each group once, because a name of a few bytes has an answer with thousands of members.
    group_ids = dict.fromkeys(call.request.groups)
    return {"throttle_time": 0, "groups": LazyArray(group_ids, lambda group_id: _describe(call, group_id))}


def _describe(call: RequestContext, group_id: str) -> dict[str, Any]:
    if not may(call.rights, Operation.DESCRIBE, ResourceType.GROUP, group_id):
        code = AUTHORIZATION_FAILED[ResourceType.GROUP].code
        return {"error_code": code, "group_id": group_id, "group_state": "", **_NOTHING}
    group = call.services.coordinators.groups.describe(group_id)
    unknown = group.error is ErrorCode.GROUP_ID_NOT_FOUND
    if unknown and call.version < NOT_FOUND_VERSION:
        group = group._replace(error=ErrorCode.NONE)
    return {
        "error_code": group.error,
        "error_message": f"Group {group_id} not found." if unknown else None,
        "group_id": group_id,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_data,
        "authorized_operations": operations(
            call, call.request.include_authorized_operations and not group.error, ResourceType.GROUP, group_id
        ),
        "members": LazyArray(group.members, _member),
    }


def _member(member: DescribedMember) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "member_metadata": member.metadata,
        "member_assignment": member.assignment,
    }
