"""The short way of requests that repeat: what a connection, the engine and a handler agree on.

A connection has a `Shortcut` for requests that are like its last one. What came on such connections in one turn is
looked at together at the end of the turn, so that one write is enough for it; what is not like the last one after all
goes the long way then.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from broker.now import Now
from broker.purgatory import Delayed
from broker.wire.frame import Part


class Shortcut(Protocol):
    """One connection's way."""

    def together(self, taken: "Sequence[Taken]", now: Now) -> "TakenDone":
        """Do what was taken, by whichever connection's way of this kind; in order."""
        ...


Taken: TypeAlias = tuple[Any, Any, memoryview]
"""A request on the short way: its connection (broker.connection), the connection's way, and the frame, which is the
way's to change. A plain tuple, as there is one for each small request."""


class Known(Protocol):
    """One connection's way for a question that it asks again and again: answered at once, nothing is put aside."""

    api_key: int

    def opens(self, frame: memoryview) -> bool:
        """Whether a frame asks this question."""
        ...

    def answer(self, frame: memoryview, now: Now) -> tuple[list[Part], int] | None:
        """The whole answer, with its length, and its bytes; None for a frame that it is not for, or not now."""
        ...


class TakenDone(NamedTuple):
    """Whole answers, with their length; those that come later, some at a time; and what the long way is for."""

    answers: list[tuple[Taken, bytes]]
    later: list[tuple[list[Taken], Delayed[list[bytes]]]]
    refused: list[Taken]
