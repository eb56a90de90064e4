"""Requests that only the controller of a cluster takes: another broker answers NOT_CONTROLLER (KIP-4)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from broker.client.core import ClientCore, Steps
from broker.wire.errors import ErrorCode

TRIES = 3  # as many answers, one after the other, may name a broker that is the controller no longer


def ask_controller(
    core: ClientCore, api_key: int, fields: Mapping[str, Any], codes_of: Callable[[Any], Iterable[int]]
) -> Steps[Any]:
    """Send a request to the controller, and return its answer, whose error codes `codes_of` returns.

    A broker that is the controller no longer changes nothing. Ask another broker then which one is, and send the
    request again, up to TRIES times. If no controller is elected yet, the answer still has NOT_CONTROLLER.
    """
    for _ in range(TRIES):
        address = yield from core.controller()
        response = yield from core.ask(address, api_key, fields)
        if ErrorCode.NOT_CONTROLLER not in codes_of(response):
            break
        core.doubt_controller()
    return response
