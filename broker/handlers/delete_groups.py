"""DeleteGroups, v0 to v2.

Behaviour: deletes a group without members, and its offsets (KIP-229). A group that is named twice is answered once. The
answer is sent when the deletion is in the log; if it cannot be written the group stays.
"""

from typing import Any

from broker.now import Now
from broker.security.authorization.acl import Operation, ResourceType
from broker.security.authorization.audit_log import shown
from broker.security.authorization.rights import AUTHORIZATION_FAILED, may
from broker.services.context import RequestContext
from broker.services.coordinator_topic import Answer
from broker.services.group_coordination import GroupPartition
from broker.steps import Pace, Steps
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ErrorCode

WEIGHT = 5  # a deletion takes as long as this many other items


def handle(call: RequestContext, now: Now) -> Steps[Answer | Delayed[Answer]]:
    names = dict.fromkeys(call.request.groups_names)
    call.services.id_stamper.ensure(1, now)
    results: list[dict[str, Any]] = []
    coordinators: dict[GroupPartition, None] = {}
    pace = Pace()
    for group_id in names:
        results.append({"group_id": group_id, "error_code": _delete(call, group_id, coordinators, now)})
        if not results[-1]["error_code"]:
            call.note_change("deleted the group ", [shown(group_id)])
        if pace.is_over(WEIGHT):
            now = yield
    return call.services.coordinators.groups.when_stored(coordinators, {"throttle_time": 0, "results": results}, now)


def _delete(
    call: RequestContext, group_id: str, coordinators: dict[GroupPartition, None], now: Now
) -> ErrorCode:
    """Delete a group, and add its coordinator to `coordinators`."""
    if not may(call.rights, Operation.DELETE, ResourceType.GROUP, group_id):
        return AUTHORIZATION_FAILED[ResourceType.GROUP].code
    led = call.services.coordinators.groups.find(group_id)
    if isinstance(led, ErrorCode):
        return led
    coordinators[led] = None
    error = led.core.delete(group_id) or led.settle(now).get(group_id, ErrorCode.NONE)
    if not error:
        led.core.deleted(group_id, now)
    return error
