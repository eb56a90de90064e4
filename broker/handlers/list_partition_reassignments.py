"""ListPartitionReassignments, v0 to v0.

Behaviour: returns an empty list, because no partition is ever being moved (KIP-455).
"""

from typing import Any

from broker.now import Now
from broker.services.context import RequestContext
from broker.services.controller_requests import check_controller
from broker.wire.errors import ApiError, ErrorCode


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    try:
        check_controller(call.services)
    except ApiError as error:
        return {"throttle_time": 0, "error_code": error.code, "error_message": error.message, "topics": ()}
    return {"throttle_time": 0, "error_code": ErrorCode.NONE, "error_message": None, "topics": ()}
