"""The short way of requests that repeat: what a connection, the engine and a handler agree on.

A connection has a `Shortcut` for requests that are like its last one. What goes that way in one turn is done together
at the end of the turn, from all connections, so that one write is enough for it.
"""

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from broker.now import Now
from broker.purgatory import Delayed


class Shortcut(Protocol):
    """One connection's way."""

    taken: bool
    """It has a request of this turn."""

    def take(self, frame: memoryview, now: Now) -> bool:
        """Take a frame, which stays as it is until it is done; False for one that it is not for."""
        ...

    def together(self, taken: "Sequence[Taken[Any]]", now: Now) -> "TakenDone":
        """Do what was taken, by whichever connection's way of this kind; in order."""
        ...


Way = TypeVar("Way", bound=Shortcut)


class Taken(Generic[Way]):
    """A request on the short way: a frame of `conn` (broker.connection), looked at since `began_ns`."""

    __slots__ = ("conn", "again", "frame", "began_ns")

    def __init__(self, conn: Any, again: Way, frame: memoryview, began_ns: int) -> None:
        self.conn = conn
        self.again = again
        self.frame = frame
        self.began_ns = began_ns


class Known(Protocol):
    """One connection's way for a question that it asks again and again: answered at once, nothing is put aside."""

    api_key: int

    def answer(self, frame: memoryview, now: Now) -> bytes | None:
        """The whole answer, with its length; None for a frame that it is not for."""
        ...


class TakenDone(NamedTuple):
    """Whole answers, with their length; those that come later, some at a time; and what the long way is for."""

    answers: list[tuple[Taken[Any], bytes]]
    later: list[tuple[list[Taken[Any]], Delayed[list[bytes]]]]
    refused: list[Taken[Any]]
