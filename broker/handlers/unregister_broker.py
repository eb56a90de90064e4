"""UnregisterBroker, v0 to v0.

Behaviour: answers BROKER_ID_NOT_REGISTERED for every other node, as Kafka does (KIP-500). This node is refused with
INVALID_REQUEST. Kafka would unregister it, and it would serve no partition until its next start.
"""

from typing import Any

from broker.now import Now
from broker.services.context import RequestContext
from broker.wire.errors import ErrorCode


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    broker_id = call.request.broker_id
    if broker_id == call.services.node.id:
        error, message = ErrorCode.INVALID_REQUEST, f"broker {broker_id} is the one node there is; stop it instead"
    else:
        error, message = ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered"
    return {"throttle_time": 0, "error_code": error, "error_message": message}
