"""DescribeAcls, v1 to v3.

Behaviour: answers SECURITY_DISABLED, as Kafka does if no authorizer is configured: every client may do everything.
"""

from typing import Any

from broker.now import Now
from broker.services.context import RequestContext
from broker.wire.errors import ErrorCode

MESSAGE = "No Authorizer is configured on the broker"


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    error = {"error_code": ErrorCode.SECURITY_DISABLED, "error_message": MESSAGE}
    return {"throttle_time": 0, "resources": ()} | error
