"""DeleteGroups, v0 to v2.

Behaviour: deletes a group without members, and its offsets (KIP-229). A group that is named twice is answered once. The
answer is sent when the deletion is in the log; if it cannot be written the group stays.
"""

from typing import Any

from broker.now import Now
from broker.services.context import RequestContext
from broker.services.coordinator_topic import Answer
from broker.steps import Pace, Steps
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ErrorCode

WEIGHT = 5  # a deletion takes as long as this many other items


def handle(call: RequestContext, now: Now) -> Steps[Answer | Delayed[Answer]]:
    names = dict.fromkeys(call.request.groups_names)
    call.services.id_stamper.ensure(1, now)
    results: list[dict[str, Any]] = []
    pace = Pace()
    for group_id in names:
        results.append({"group_id": group_id, "error_code": _delete(call, group_id, now)})
        if pace.is_over(WEIGHT):
            now = yield
    return call.services.groups.topic.when_on_disk(names, {"throttle_time": 0, "results": results}, now)


def _delete(call: RequestContext, group_id: str, now: Now) -> ErrorCode:
    groups = call.services.groups
    error = groups.check(group_id) or groups.core.delete(group_id)
    error = error or groups.settle(now).get(group_id, ErrorCode.NONE)
    if not error:
        groups.core.deleted(group_id, now)
    return error
