"""Answers of fetches that wait until the task has memory for their messages.

They are unpacked in the order in which they came, so that partitions take turns. Meanwhile the task sends no fetch, so
at most one answer of each broker waits.
"""

from collections import deque
from typing import Any

from partition_manager.asks import Asks
from partition_manager.ports import Packed
from partition_manager.share import Memory


class PackedAnswers:
    """The packed answers to the requests of `asks`."""

    def __init__(self, asks: Asks, memory: Memory[Any]) -> None:
        self._asks = asks
        self._memory = memory
        self.waiting: deque[tuple[int, Packed]] = deque()

    def add(self, number: int, answer: Packed) -> None:
        """Add the answer to the request handed out as `number`."""
        self.waiting.append((number, answer))

    def unpack(self, now_ms: int) -> None:
        """Unpack answers one by one while memory is free. Drop those that are not wanted any longer."""
        while self.waiting and self._memory.used_bytes < self._memory.limit_bytes:
            number, answer = self.waiting.popleft()
            if self._asks.expects(number):
                self._asks.answered(number, answer.unpack(), now_ms)
