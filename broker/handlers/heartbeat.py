"""Heartbeat, v0 to v4.

Behaviour: keeps the member's session alive; REBALANCE_IN_PROGRESS asks the member to join again.
Version notes: v3 has static members (KIP-345).
"""

from typing import Any

from broker.now import Now
from broker.services.context import RequestContext


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    groups, request = call.services.groups, call.request
    error = groups.check(request.group_id)
    if not error:
        member = request.member_id, request.group_instance_id
        error = groups.core.heartbeat(request.group_id, *member, request.generation_id, now)
        groups.settle(now)
    return {"throttle_time": 0, "error_code": error}
