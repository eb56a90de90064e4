"""The time limit of requests that change topics.

Changes are made at once here, so every positive time is enough. Kafka's controller answers a request without any time
REQUEST_TIMED_OUT and does nothing for it, and so does this broker.
"""

from typing import Any

from broker.wire.cold import milliseconds
from broker.wire.errors import ApiError, ErrorCode


def check_time(request: Any) -> None:
    """Raise ApiError REQUEST_TIMED_OUT if the request's time limit is 0 or less."""
    timeout_ms = milliseconds(request.timeout)
    if timeout_ms <= 0:
        reason = f"The request timed out. Nothing can be done in {timeout_ms} ms; give it more."
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, reason)
