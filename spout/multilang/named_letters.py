"""SHELL (Twisted's timers): dead letters of a spout inside Storm, which name the exception that its bolt published.

A letter waits until the figures of the bolt are there: two seconds and a little. A message keeps its place meanwhile,
and so does the log's line about the letter, which then names the exception too.
"""

from collections.abc import Callable
from typing import Protocol

from twisted.internet.base import DelayedCall, ReactorBase

from partition_manager.outage import TIMEOUT
from partition_manager.ports import Answer, Bury, DeadLetter, DeadLetterSink, Failed
from spout.figures.document import INTERVAL_MS, BoltsLately
from spout.multilang.spout_task import FAILED

WAIT_SECONDS = INTERVAL_MS / 1000 + 0.5
UNNAMED = (FAILED, f"{TIMEOUT}: ")  # how the errors begin that a spout inside Storm gives its messages


class Reader(Protocol):
    """Tells what bolts published lately."""

    def read(self, answer: Callable[[BoltsLately], None], *, again: bool = False) -> None: ...


class LetterLines:
    """The lines of the log about letters that wait for their exceptions. `say` writes one, with its level."""

    def __init__(self) -> None:
        self.say: Callable[[str, str], None] = lambda text, level: None
        self._lines: dict[str, tuple[str, str] | None] = {}  # by the place of the message

    def expect(self, letter: DeadLetter) -> None:
        """Keep the line about this letter, once it comes."""
        self._lines[_message_of(letter)] = None

    def keeps(self, text: str, level: str) -> bool:
        """Keep a line if it is about a letter that waits. Return False for any other."""
        message = text.partition(" failed ")[0]
        if message not in self._lines:
            return False
        self._lines[message] = text, level
        return True

    def named(self, letter: DeadLetter, error: str) -> None:
        """Write the line about this letter, if there is one, with the letter's new error."""
        line = self._lines.pop(_message_of(letter), None)
        if line is not None:
            self.say(line[0].replace(letter.error, error), line[1])


class NamedLetters:
    """A partition_manager.ports.DeadLetterSink before another one."""

    def __init__(self, inner: DeadLetterSink, reader: Reader, lines: LetterLines, reactor: ReactorBase) -> None:
        self._inner = inner
        self._lines = lines
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
        self._lines.expect(request.letter)
        if self._call is None:
            self._call = self._reactor.callLater(WAIT_SECONDS, self._read_bolts)

    def close(self) -> None:
        """Close the other sink; letters that wait are answered with Failed."""
        if self._call is not None and self._call.active():
            self._call.cancel()
        waiting, self._waiting = self._waiting, []
        for request, answer in waiting:
            self._lines.named(request.letter, request.letter.error)
            answer(Failed("closed before the letter was written"))
        self._inner.close()

    def _read_bolts(self) -> None:
        self._call = None
        waiting, self._waiting = self._waiting, []

        def write_named(lately: BoltsLately) -> None:
            for request, answer in waiting:
                letter = request.letter
                error = lately.failures.get((letter.topic, letter.partition, letter.record.offset), letter.error)
                self._lines.named(letter, error)
                self._inner.ask(Bury(letter._replace(error=error)), answer)

        self._reader.read(write_named, again=True)


def _message_of(letter: DeadLetter) -> str:
    return f"{letter.topic}-{letter.partition} offset {letter.record.offset}"
