"""The checks of requests that only the controller answers: those that change topics, and elections.

Another broker answers NOT_CONTROLLER, and clients ask Metadata for the controller. A server alone is the controller.

Kafka's controller answers a request without any time REQUEST_TIMED_OUT and does nothing for it, and so does this one.
"""

from broker.services.context import BrokerServices, RequestContext
from broker.wire.cold import milliseconds
from broker.wire.errors import ApiError, ErrorCode


def check_controller(services: BrokerServices) -> None:
    """Raise ApiError NOT_CONTROLLER if another broker is the controller."""
    if services.member is not None and not services.member.controller.is_active:
        raise ApiError(ErrorCode.NOT_CONTROLLER, "This is not the correct controller for this cluster.")


def check_request(call: RequestContext) -> None:
    """Raise ApiError NOT_CONTROLLER, or REQUEST_TIMED_OUT if the request's time limit is 0 or less."""
    check_controller(call.services)
    timeout_ms = milliseconds(call.request.timeout)
    if timeout_ms <= 0:
        reason = f"The request timed out. Nothing can be done in {timeout_ms} ms; give it more."
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, reason)


def refusal_of_request(call: RequestContext) -> ApiError | None:
    """Return the error of `check_request` for the whole request, or None."""
    try:
        check_request(call)
    except ApiError as error:
        return error
    return None
