"""DeleteAcls, v1 to v3.

Behaviour: answers SECURITY_DISABLED for each, as Kafka does if no authorizer is configured.
"""

from typing import Any

from broker.now import Now
from broker.services.context import RequestContext
from broker.services.kafka_messages import NO_AUTHORIZER
from broker.wire.errors import ErrorCode


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    refused = {"error_code": ErrorCode.SECURITY_DISABLED, "error_message": NO_AUTHORIZER, "matching_acls": ()}
    return {"throttle_time": 0, "filter_results": [refused] * len(call.request.filters)}
