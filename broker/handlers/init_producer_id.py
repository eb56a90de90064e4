"""InitProducerId, v0 to v5.

Behaviour: a producer id nobody had, epoch 0 (KIP-98). A producer that lost its place asks again and gets a new id.
A transactional id is refused: transactions are not served.
Version notes: v3 names the id and epoch a producer had (KIP-360), which matters to transactions only.
"""

from typing import Any

from broker.handlers.call import Call
from broker.now import Now
from broker.wire.errors import ErrorCode


def handle(call: Call, now: Now) -> dict[str, Any]:
    if call.request.transactional_id is not None:
        return {
            "throttle_time": 0,
            "error_code": ErrorCode.UNSUPPORTED_VERSION,
            "producer_id": -1,
            "producer_epoch": -1,
        }
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "producer_id": call.services.metadata.next_producer_id(),
        "producer_epoch": 0,
    }
