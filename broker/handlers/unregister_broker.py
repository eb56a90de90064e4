"""UnregisterBroker, v0 to v0.

Behaviour: answers BROKER_ID_NOT_REGISTERED for a broker that does not run, as Kafka does (KIP-500). One that runs is
refused with INVALID_REQUEST: its registration ends with it. Kafka would unregister it, and it would serve no partition
until its next start.
"""

from typing import Any

from broker.now import Now
from broker.services.context import RequestContext
from broker.wire.errors import ErrorCode


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    broker_id = call.request.broker_id
    if broker_id in call.services.metadata.live_ids:
        error, message = ErrorCode.INVALID_REQUEST, f"broker {broker_id} is registered as long as it runs: stop it"
    else:
        error, message = ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered"
    return {"throttle_time": 0, "error_code": error, "error_message": message}
