"""UpdateMetadata, v8 to v8.

Behaviour: the controller names the live brokers, and the leaders of partitions. Served on the listener of brokers only.
An order of an earlier controller, or for an earlier life of this broker, is refused. The first order of a controller,
or to a life of a broker, has all partitions: it replaces the image (Type 2, KIP-866).
"""

from typing import Any

from broker.now import Now
from broker.services.context import RequestContext
from broker.services.membership import member_of


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    member = member_of(call.services)
    refusal = member.refusal_of_order(call.request, now)
    if not refusal:
        member.update_metadata(call.request, now)
    return {"error_code": refusal}
