"""The short way of questions that a connection asks again and again: what the engine and a handler agree on."""

from typing import Protocol

from broker.now import Now
from broker.wire.frame import Part


class Known(Protocol):
    """One connection's way for a question that it asks again and again: answered at once, nothing is put aside."""

    api_key: int

    def opens(self, frame: memoryview) -> bool:
        """Whether a frame asks this question."""
        ...

    def answer(self, frame: memoryview, now: Now) -> tuple[list[Part], int] | None:
        """The whole answer, with its length, and its bytes; None for a frame that it is not for, or not now."""
        ...
