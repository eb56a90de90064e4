"""AlterPartition, v2 to v3.

Behaviour: a leader asks the controller for other ISRs of partitions that it leads (KIP-497). Served on the listener of
brokers only, by the controller. A request of a life that is over is refused. `broker.cluster.alter_partition` lists the
errors of partitions.
Version notes: v3 names the broker epoch of each member (KIP-903).
"""

from typing import Any

from broker.cluster.alter_partition import read_request, response_fields
from broker.now import Now
from broker.services.context import RequestContext
from broker.services.membership import asked_of_controller
from broker.waiting.purgatory import Delayed


def handle(call: RequestContext, now: Now) -> dict[str, Any] | Delayed[dict[str, Any]]:
    return asked_of_controller(call.services, read_request(call.original), response_fields, now)
