"""The time of a simulated world: actions that happen at their time, in an order that the seed decides."""

import heapq
import random
from collections.abc import Callable
from itertools import count


class Timeline:
    """A clock in milliseconds, random numbers, and the actions to come. `delay_ms` are the bounds of each delay."""

    def __init__(self, seed: int, delay_ms: tuple[int, int]) -> None:
        self.random = random.Random(seed)
        self.now_ms = 1_000
        self._delay_ms = delay_ms
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    def delay(self) -> int:
        low, high = self._delay_ms
        return self.random.randint(low, high) if high > low else low

    def at(self, time_ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (time_ms, next(self._numbers), action))

    def after(self, ms: int, action: Callable[[], None]) -> None:
        self.at(self.now_ms + ms, action)

    def run(self, ms: int) -> None:
        """Let time pass."""
        end_ms = self.now_ms + ms
        while self._queue and self._queue[0][0] <= end_ms:
            self.now_ms, _, action = heapq.heappop(self._queue)
            action()
        self.now_ms = end_ms
