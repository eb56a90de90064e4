"""UnregisterBroker, v0 to v0.

Behaviour: BROKER_ID_NOT_REGISTERED for every node but this one, as Kafka answers (KIP-500). This one is refused with
INVALID_REQUEST: Kafka does it, and serves no partition until it is started again.
"""

from typing import Any

from broker.handlers.call import Call
from broker.now import Now
from broker.wire.errors import ErrorCode


def handle(call: Call, now: Now) -> dict[str, Any]:
    asked = call.request.broker_id
    if asked == call.services.metadata.node.id:
        error, message = ErrorCode.INVALID_REQUEST, f"broker {asked} is the one node there is; stop it instead"
    else:
        error, message = ErrorCode.BROKER_ID_NOT_REGISTERED, f"there is no broker {asked}"
    return {"throttle_time": 0, "error_code": error, "error_message": message}
