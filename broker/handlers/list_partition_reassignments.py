"""ListPartitionReassignments, v0 to v0.

Behaviour: returns an empty list, because on one node no partition is ever being moved (KIP-455).
"""

from typing import Any

from broker.now import Now
from broker.services.context import RequestContext
from broker.wire.errors import ErrorCode


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    return {"throttle_time": 0, "error_code": ErrorCode.NONE, "error_message": None, "topics": ()}
