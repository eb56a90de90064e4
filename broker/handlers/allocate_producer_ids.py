"""AllocateProducerIds, v0 to v0.

Behaviour: a broker asks the controller for a block of producer ids (KIP-730). Served on the listener of brokers only,
by the controller. A request of a life that is over is refused.
"""

from typing import Any

from broker.cluster.requests import AllocateProducerIds, Answer
from broker.now import Now
from broker.services.context import RequestContext
from broker.services.membership import asked_of_controller
from broker.waiting.purgatory import Delayed


def handle(call: RequestContext, now: Now) -> dict[str, Any] | Delayed[dict[str, Any]]:
    request = AllocateProducerIds(int(call.request.broker_id), int(call.request.broker_epoch))
    return asked_of_controller(call.services, request, _answer, now)


def _answer(answer: Answer) -> dict[str, Any]:
    block = answer.producer_ids
    first, length = (-1, 0) if block is None else (block.first, block.last - block.first + 1)
    fields = {"producer_id_start": first, "producer_id_len": length}
    return {"throttle_time": 0, "error_code": answer.error_code} | fields
