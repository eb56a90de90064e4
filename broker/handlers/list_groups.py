"""ListGroups, v0 to v5.

Behaviour: returns the groups this node coordinates, with an error while some of them are still being loaded.
Version notes: v4 filters by state and returns it (KIP-518); v5 filters by type and returns it (KIP-848), which here is
"classic".
"""

from typing import Any

from broker.group.results import ListedGroup
from broker.now import Now
from broker.security.authorization.acl import CLUSTER_NAME, Operation, ResourceType
from broker.services.context import RequestContext
from broker.steps import LazyArray
from broker.wire.errors import ErrorCode


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    groups = call.services.coordinators.groups
    listed = groups.list_groups(call.request.states_filter, call.request.types_filter)
    rights = call.rights
    if rights is not None and not rights.sees(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        visible = rights.visible(Operation.DESCRIBE, ResourceType.GROUP, (group.group_id for group in listed))
        listed = [group for group in listed if group.group_id in visible]
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if groups.partitions.is_loading else ErrorCode.NONE,
        "groups": LazyArray(listed, _answer),
    }


def _answer(group: ListedGroup) -> dict[str, Any]:
    return {
        "group_id": group.group_id,
        "protocol_type": group.protocol_type,
        "group_state": group.state,
        "group_type": group.group_type,
    }
