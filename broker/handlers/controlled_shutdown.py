"""ControlledShutdown, v3 to v3.

Behaviour: a broker is about to stop, and asks the controller to move what it leads (KIP-49). Served on the listener of
brokers only, by the controller. The answer names the partitions that the broker still leads. A partition of one copy is
neither moved nor named, as by Kafka.
"""

from typing import Any

from broker.cluster.requests import Answer, ControlledShutdown
from broker.now import Now
from broker.services.context import RequestContext
from broker.services.membership import asked_of_controller
from broker.waiting.purgatory import Delayed


def handle(call: RequestContext, now: Now) -> dict[str, Any] | Delayed[dict[str, Any]]:
    request = ControlledShutdown(int(call.request.broker_id), int(call.request.broker_epoch))
    return asked_of_controller(call.services, request, _answer, now)


def _answer(answer: Answer) -> dict[str, Any]:
    remaining = [{"topic_name": topic, "partition_index": index} for topic, index in answer.remaining]
    return {"error_code": answer.error_code, "remaining_partitions": remaining}
