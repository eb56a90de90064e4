"""SyncGroup, v0 to v5.

Behaviour: a member waits here for its assignment, which comes with the leader's SyncGroup (broker.group.rebalance).
With durable acks it also waits until the assignment is on the disk, as OffsetCommit does.
Version notes: v3 has static members (KIP-345); from v5 the member must name the protocol it means (KIP-559).
"""

from typing import Any

from broker.group.results import SyncRequest, SyncResult
from broker.now import Now
from broker.services.context import RequestContext
from broker.services.group_coordination import unless_loading
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ErrorCode

PROTOCOL_VERSION = 5


def handle(call: RequestContext, now: Now) -> dict[str, Any] | Delayed[dict[str, Any]]:
    groups, request = call.services.coordinators.groups, call.request
    led = groups.find(request.group_id)
    if isinstance(led, ErrorCode):
        # While the group is loaded, nothing is known of a rebalance, so the member is to join again.
        return _answer(SyncResult(error=unless_loading(led, ErrorCode.REBALANCE_IN_PROGRESS)))
    if call.version >= PROTOCOL_VERSION and None in (request.protocol_type, request.protocol_name):
        return _answer(SyncResult(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    call.services.id_stamper.ensure(1, now)
    sync_request = SyncRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        generation=request.generation_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments=tuple((assignment.member_id, assignment.assignment) for assignment in request.assignments),
    )
    pending = led.core.sync(sync_request, now)
    led.settle(now)
    return groups.when_answered(led, pending, _answer, SyncResult(error=ErrorCode.COORDINATOR_NOT_AVAILABLE), now)


def _answer(result: SyncResult) -> dict[str, Any]:
    return {
        "throttle_time": 0,
        "error_code": result.error,
        "protocol_type": result.protocol_type,
        "protocol_name": result.protocol_name,
        "assignment": result.assignment,
    }
