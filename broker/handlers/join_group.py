"""JoinGroup, v0 to v9.

Behaviour: waits until the group has a generation; the leader's answer has the members (broker.group.membership).
Version notes: v0 has one timeout for both session and rebalance (KIP-62); from v4 a new member first gets its id
(KIP-394); v5 has static members (KIP-345); a missing protocol is "" before v7, later null; from v9 a leader that came
back learns that it need not assign (KIP-814).
"""

from typing import Any

from broker.group.results import GroupProtocol, JoinRequest, JoinResult
from broker.now import Now
from broker.services.context import RequestContext
from broker.waiting.purgatory import Delayed
from broker.wire.cold import milliseconds
from broker.wire.errors import ErrorCode

MEMBER_ID_REQUIRED_VERSION = 4
NULL_PROTOCOL_VERSION = 7
SKIP_ASSIGNMENT_VERSION = 9


def handle(call: RequestContext, now: Now) -> dict[str, Any] | Delayed[dict[str, Any]]:
    groups, request = call.services.coordinators.groups, call.request

    def answer(result: JoinResult) -> dict[str, Any]:
        return _answer(call.version, result)

    led = groups.find(request.group_id)
    if isinstance(led, ErrorCode):
        return answer(JoinResult(error=led, member_id=request.member_id))
    call.services.id_stamper.ensure(1, now)
    pending = led.core.join(_request(call), now)
    led.settle(now)
    crowded = JoinResult(error=ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id=request.member_id)
    return groups.when_answered(led, pending, answer, crowded, now)


def _request(call: RequestContext) -> JoinRequest:
    request = call.request
    session_ms = milliseconds(request.session_timeout)
    return JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=call.client_id or "",
        client_host="/" + call.peer.rpartition(":")[0].strip("[]"),
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=milliseconds(request.rebalance_timeout) if call.version >= 1 else session_ms,
        protocol_type=request.protocol_type,
        protocols=tuple(GroupProtocol(protocol.name, protocol.metadata) for protocol in request.protocols),
        member_id_suffix=str(call.services.new_uuid()),
        member_id_required=call.version >= MEMBER_ID_REQUIRED_VERSION,
        may_skip_assignment=call.version >= SKIP_ASSIGNMENT_VERSION,
    )


def _answer(version: int, result: JoinResult) -> dict[str, Any]:
    protocol_name = result.protocol_name
    if protocol_name is None and version < NULL_PROTOCOL_VERSION:
        protocol_name = ""
    return {
        "throttle_time": 0,
        "error_code": result.error,
        "generation_id": result.generation,
        "protocol_type": result.protocol_type,
        "protocol_name": protocol_name,
        "leader": result.leader,
        "skip_assignment": result.skip_assignment,
        "member_id": result.member_id,
        "members": [
            {"member_id": member.member_id, "group_instance_id": member.instance_id, "metadata": member.metadata}
            for member in result.members
        ],
    }
