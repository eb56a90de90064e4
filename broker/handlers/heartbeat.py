"""Heartbeat, v0 to v4.

Behaviour: keeps the member's session alive; REBALANCE_IN_PROGRESS asks the member to join again. While the group is
loaded, each member is answered as if its group were stable.
Version notes: v3 has static members (KIP-345).
"""

from typing import Any

from broker.now import Now
from broker.services.context import RequestContext
from broker.services.group_coordination import unless_loading
from broker.wire.errors import ErrorCode


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    groups, request = call.services.coordinators.groups, call.request
    led = groups.find(request.group_id)
    if isinstance(led, ErrorCode):
        return _answer(unless_loading(led, ErrorCode.NONE))
    member = request.member_id, request.group_instance_id
    error = led.core.heartbeat(request.group_id, *member, request.generation_id, now)
    led.settle(now)
    return _answer(error)


def _answer(error: ErrorCode) -> dict[str, Any]:
    return {"throttle_time": 0, "error_code": error}
