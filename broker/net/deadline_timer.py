"""SHELL (Twisted): the one timer of a server, for the earliest deadline of its engine."""

from collections.abc import Callable
from typing import Any

from broker.now import Now

SOON_MS = 5
"""While turns follow each other, a deadline of a part that has no answer to give may be noticed this much late. To ask
all parts of the engine for theirs in each turn cost a replicated broker a tenth of its calls."""

AT_REST = -1  # before each deadline, so that none moves the timer


class DeadlineTimer:
    """Calls `due` when a deadline has come (ms on the monotonic clock).

    `next_answer` returns the first deadline of the requests that wait for their answers, None without one, and is asked
    after each turn. `next_deadline` returns the first of all parts, and is asked once in SOON_MS. Until then the timer
    fires at the end of these SOON_MS, and is set anew if no deadline has come by then. `now` is the server's clock.
    """

    def __init__(
        self,
        reactor: Any,
        next_answer: Callable[[], int | None],
        next_deadline: Callable[[Now], int],
        due: Callable[[], None],
        now: Callable[[], Now],
    ) -> None:
        self._reactor = reactor
        self._next_answer = next_answer
        self._next_deadline = next_deadline
        self._due = due
        self._now = now
        self._call: Any = None
        self._due_ms = 0
        self._asked_ms: int | None = None

    def arm(self, now: Now) -> None:
        """Set the timer after a turn, which may have made deadlines."""
        if self._call is None or self._due_ms > now.ms + SOON_MS:
            self._move(self._first_deadline_ms(now), now)
        answer_ms = self._next_answer()
        if answer_ms is not None and answer_ms < self._due_ms:
            self._move(answer_ms, now)

    def _first_deadline_ms(self, now: Now) -> int:
        """Return a time that is no later than the first deadline, or than SOON_MS after the last question."""
        if self._asked_ms is not None and now.ms < self._asked_ms + SOON_MS:
            return self._asked_ms + SOON_MS
        self._asked_ms = now.ms
        return self._next_deadline(now)

    def _move(self, due_ms: int, now: Now) -> None:
        if self._call is None or due_ms < self._due_ms:
            self._set(due_ms, (due_ms - now.ms) / 1000)

    def rest(self, seconds: float) -> None:
        """Be due after these seconds, whatever the deadlines are."""
        self._set(AT_REST, seconds)

    def stop(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _set(self, due_ms: int, seconds: float) -> None:
        self.stop()
        self._due_ms = due_ms
        self._call = self._reactor.callLater(max(seconds, 0), self._fire)

    def _fire(self) -> None:
        """Have the work done that is due, and ask for deadlines again: the parts work in slices."""
        now = self._now()
        self._call = self._asked_ms = None
        deadline_ms = self._first_deadline_ms(now)
        if deadline_ms > now.ms:
            self._move(deadline_ms, now)
            return
        self._asked_ms = None
        self._due()
