"""Requests for nodes, and operations, which are generators of them. `broker.client.core` says how they work."""

from collections.abc import Callable, Generator
from typing import NamedTuple, TypeAlias, TypeVar

from broker.client.address import Address
from broker.client.errors import BadAnswer, Unreachable
from broker.wire.errors import WireError


class Exchange(NamedTuple):
    """A request for a node; `body` follows the header. If `expects_reply` is False, the broker sends no answer."""

    address: Address
    api_key: int
    version: int
    flexible: bool
    body: bytes
    expects_reply: bool = True


T = TypeVar("T")
Steps: TypeAlias = Generator[Exchange, memoryview, T]


def advance(steps: Steps[T], outcome: memoryview | Unreachable | None) -> Exchange:
    """Return the next exchange of an operation.

    `outcome` is the former exchange's answer, or Unreachable if no broker answered; None at the beginning. Raise
    StopIteration with the operation's result at its end, BadAnswer if the answer cannot be decoded.
    """
    try:
        if outcome is None:
            return next(steps)
        if isinstance(outcome, Unreachable):
            return steps.throw(outcome)
        return steps.send(outcome)
    except WireError as error:
        raise BadAnswer(f"an answer of the broker cannot be read: {error}") from error


def carry_out(steps: Steps[T], ask: Callable[[Exchange], memoryview]) -> T:
    """Carry out an operation, and return its result.

    `ask` sends a request and returns the body of its answer. If it raises Unreachable, throw that into the operation,
    which may ask another node.
    """
    outcome: memoryview | Unreachable | None = None
    while True:
        try:
            exchange = advance(steps, outcome)
        except StopIteration as done:
            result: T = done.value
            return result
        try:
            outcome = ask(exchange)
        except Unreachable as error:
            outcome = error
