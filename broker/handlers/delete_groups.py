"""DeleteGroups, v0 to v2.

Behaviour: deletes a group without members, and its offsets (KIP-229). A group that is named twice is answered once. The
answer is sent when the deletion is in the log; if it cannot be written the group stays.
"""

from broker.engine.purgatory import Delayed
from broker.now import Now
from broker.services.context import RequestContext
from broker.services.coordinator_topic import Answer
from broker.wire.errors import ErrorCode


def handle(call: RequestContext, now: Now) -> Answer | Delayed[Answer]:
    answer = _handle(call, now)
    return call.services.groups.topic.when_on_disk(call.request.groups_names, answer, now)


def _handle(call: RequestContext, now: Now) -> Answer:
    names = dict.fromkeys(call.request.groups_names)
    call.services.id_stamper.ensure(1, now)
    return {
        "throttle_time": 0,
        "results": [{"group_id": group_id, "error_code": _delete(call, group_id, now)} for group_id in names],
    }


def _delete(call: RequestContext, group_id: str, now: Now) -> ErrorCode:
    groups = call.services.groups
    error = groups.check(group_id) or groups.core.delete(group_id)
    error = error or groups.settle(now).get(group_id, ErrorCode.NONE)
    if not error:
        groups.core.deleted(group_id, now)
    return error
