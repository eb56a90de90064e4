"""The handlers' way to this broker's part in a cluster."""

from collections.abc import Callable
from typing import Any

from broker.cluster.requests import NOT_CONTROLLER, Answer, Request
from broker.membership.member import Member
from broker.now import Now
from broker.services.context import BrokerServices
from broker.waiting.purgatory import Delayed


def member_of(services: BrokerServices) -> Member:
    """Return this broker's part in its cluster. Only a part of a cluster has a listener of brokers."""
    assert services.member is not None
    return services.member


def asked_of_controller(
    services: BrokerServices,
    request: Request,
    encode: Callable[[Answer], dict[str, Any]],
    now: Now,
    on_answer: Callable[[Answer], None] = lambda answer: None,
) -> dict[str, Any] | Delayed[dict[str, Any]]:
    """Return the controller's answer to a request; NOT_CONTROLLER if that is another broker.

    `on_answer` is called with the controller's answer, also if the client has gone.
    """
    answers: list[Answer] = []

    def answered(answer: Answer, at: Now) -> None:
        answers.append(answer)
        on_answer(answer)
        services.purgatory.touch(request, at)

    member_of(services).submit(request, answered, now)
    if answers:
        return encode(answers[0])

    def try_complete(at: Now) -> dict[str, Any] | None:
        return encode(answers[0]) if answers else None

    return Delayed((request,), None, try_complete, lambda at: encode(NOT_CONTROLLER))
