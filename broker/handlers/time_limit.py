"""The time a request gives for what it asks to be done to topics.

It is done at once here, so that no time is too short; but in no time, or less, nothing can be done. Kafka's controller
answers such a request REQUEST_TIMED_OUT and does nothing for it.
"""

from typing import Any

from broker.wire.cold import milliseconds
from broker.wire.errors import ApiError, ErrorCode


def check_time(request: Any) -> None:
    """ApiError REQUEST_TIMED_OUT where the request gives no time."""
    timeout_ms = milliseconds(request.timeout)
    if timeout_ms <= 0:
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"nothing can be done in {timeout_ms} ms; give it more")
