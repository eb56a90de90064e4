"""Tuples for which a bolt raised Unavailable: the process keeps them, and executes them again when the service is back.

Storm tells a spout that a tuple failed, not why. A failure would be one of the attempts that a message has, so an
outage would make dead letters. So the process keeps such a tuple for as long as Storm waits for it:

    executed -- Unavailable --> held -- after a pause, one of them at a time --> executed
                                 |                                                   |
                                 +-- message timeout --> failed                      +-- acked --> all are executed

Pauses grow from PAUSE_MIN_MS to `flakelog.storm.unavailable.pause.max.ms`. Other tuples are executed meanwhile.
"""

from collections import deque
from typing import NamedTuple

from partition_manager.retry import RetryPolicy
from spout.api import Tuple
from spout.collector import text_of
from spout.figures.model import OutageFigures
from spout.multilang.origins import StormTuple

PAUSE_MIN_MS = 100  # as the first probe of a spout in an outage
EXPIRE_MS = 100  # shortest time between two looks at all tuples, of which there may be some ten thousand


class Due(NamedTuple):
    """Tuples to execute next, in order; and tuples that Storm waits for no longer, each with the bolt's exception."""

    again: list[StormTuple]
    expired: list[tuple[StormTuple, BaseException]]


class HeldTuples:
    """The held tuples of one bolt task. Times are the caller's milliseconds.

    `tries` counts the pauses since the service went away; it is 0 while the service is there.
    """

    def __init__(self, timeout_ms: int, pause_max_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._pauses = RetryPolicy(min(PAUSE_MIN_MS, pause_max_ms), 2.0, pause_max_ms)
        self._tuples: deque[tuple[StormTuple, BaseException]] = deque()
        self.tries = 0
        self._since_ms = 0  # when the service went away
        self._error = ""  # the latest
        self._again_ms = 0  # end of the pause
        self._expire_ms = 0  # no tuple's time is up before

    def __len__(self) -> int:
        return len(self._tuples)

    def keep(self, tup: Tuple, error: BaseException, now_ms: int) -> bool:
        """Keep a tuple that is neither acked nor failed. Return False if the message timeout has passed since it came.

        The bolt gets another object with the same values later, so that it cannot settle the tuple meanwhile.
        """
        if not isinstance(tup, StormTuple) or now_ms >= tup.came_ms + self._timeout_ms:
            return False
        expire_ms = tup.came_ms + self._timeout_ms
        self._expire_ms = min(self._expire_ms, expire_ms) if self._tuples else expire_ms
        if not self.tries or (not self._tuples and now_ms >= self._again_ms):
            self.tries = 1
            self._since_ms = now_ms
            self._again_ms = now_ms + self._pauses.delay_ms(1)
        self._error = text_of(error)
        self._tuples.append((tup.again(), error))
        return True

    def settled(self, tup: Tuple) -> None:
        """Note that a tuple was acked, or failed for another reason. If it was held, all others are due."""
        if isinstance(tup, StormTuple) and tup.is_again:
            self.tries = 0

    def due(self, now_ms: int) -> Due:
        """Return and forget the tuples that are due."""
        expired = self._take_expired(now_ms) if self._tuples and now_ms >= self._expire_ms else []
        again: list[StormTuple] = []
        if not self.tries:
            again += [tup for tup, _ in self._tuples]
            self._tuples.clear()
        elif self._tuples and now_ms >= self._again_ms:
            again.append(self._tuples.popleft()[0])
            self.tries += 1
            self._again_ms = now_ms + self._pauses.delay_ms(self.tries)
        return Due(again, expired)

    def outage(self, now_ms: int, task: int) -> OutageFigures | None:
        """Return the outage of the service for the figures of the task with this index, or None."""
        if not self._tuples:
            return None
        lasted_ms, number = max(now_ms - self._since_ms, 0), len(self._tuples)
        text = f"{number} tuple{'' if number == 1 else 's'} held for up to {lasted_ms / 1000:,.1f} s: {self._error}"
        return OutageFigures(task, self._error.partition(": ")[0], lasted_ms, self.tries, text)

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """Return when `due` has something to return, or None if nothing is held."""
        if not self._tuples:
            return None
        return min(self._again_ms, self._expire_ms) if self.tries else now_ms

    def _take_expired(self, now_ms: int) -> list[tuple[StormTuple, BaseException]]:
        came_ms = now_ms - self._timeout_ms
        expired = [held for held in self._tuples if held[0].came_ms <= came_ms]
        self._tuples = deque(held for held in self._tuples if held[0].came_ms > came_ms)
        oldest_ms = min((tup.came_ms for tup, _ in self._tuples), default=0)
        self._expire_ms = max(oldest_ms + self._timeout_ms, now_ms + EXPIRE_MS)
        return expired
