"""SHELL (Twisted's timers): dead letters of a spout inside Storm, which name the exception that its bolt published.

A letter waits until the figures of the bolt are there: two seconds and a little. A message keeps its place meanwhile.
"""

from collections.abc import Callable
from typing import Protocol

from twisted.internet.base import DelayedCall, ReactorBase

from partition_manager.outage import TIMEOUT
from partition_manager.ports import Answer, Bury, DeadLetterSink, Failed
from spout.multilang.spout_task import FAILED
from spout.publisher import INTERVAL_MS, BoltsLately

WAIT_SECONDS = INTERVAL_MS / 1000 + 0.5
UNNAMED = (FAILED, f"{TIMEOUT}: ")  # how the errors begin that a spout inside Storm gives its messages


class Reader(Protocol):
    """Tells what bolts published lately."""

    def look(self, answer: Callable[[BoltsLately], None], *, again: bool = False) -> None: ...


class NamedLetters:
    """A partition_manager.ports.DeadLetterSink before another one."""

    def __init__(self, inner: DeadLetterSink, reader: Reader, reactor: ReactorBase) -> None:
        self._inner = inner
        self._reader = reader
        self._reactor = reactor
        self._waiting: list[tuple[Bury, Callable[[Answer], None]]] = []  # bounded by the messages in flight
        self._call: DelayedCall | None = None

    def ask(self, request: Bury, answer: Callable[[Answer], None]) -> None:
        """Write the letter; one that names no exception waits first, and names it then if a bolt has told it."""
        if not request.letter.error.startswith(UNNAMED):
            self._inner.ask(request, answer)
            return
        self._waiting.append((request, answer))
        if self._call is None:
            self._call = self._reactor.callLater(WAIT_SECONDS, self._look)

    def close(self) -> None:
        """Close the other sink; letters that wait are answered with Failed."""
        if self._call is not None and self._call.active():
            self._call.cancel()
        waiting, self._waiting = self._waiting, []
        for _, answer in waiting:
            answer(Failed("closed before the letter was written"))
        self._inner.close()

    def _look(self) -> None:
        self._call = None
        waiting, self._waiting = self._waiting, []

        def found(lately: BoltsLately) -> None:
            for request, answer in waiting:
                letter = request.letter
                error = lately.failures.get((letter.topic, letter.partition, letter.record.offset), letter.error)
                self._inner.ask(Bury(letter._replace(error=error)), answer)

        self._reader.look(found, again=True)
