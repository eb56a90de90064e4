"""Requests on their way: each goes out, is answered once, and goes out again after a pause if it Failed."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

from partition_manager.ports import Answer, Failed, Request
from partition_manager.retry import RetryPolicy

OnAnswer = Callable[[Answer, int], None]
OnFailure = Callable[[object, Request, Failed, int], None]


class Ask(NamedTuple):
    """A request to be carried to its port; `number` goes back with the answer."""

    number: int
    request: Request


class _Pending(NamedTuple):
    owner: object
    request: Request
    on_answer: OnAnswer
    failures: int


class Asks:
    """All requests of one core. Each owner has at most one for each purpose, so their owners bound their number."""

    def __init__(self, policy: RetryPolicy, on_failure: OnFailure) -> None:
        """`on_failure(owner, request, answer, failures)` hears of each Failed; the request is asked again by itself."""
        self._policy = policy
        self._on_failure = on_failure
        self._numbers = count(1)
        self._due: list[tuple[int, int, _Pending]] = []  # a heap of (due_ms, number, ...)
        self._out: dict[int, _Pending] = {}

    def __len__(self) -> int:
        return len(self._due) + len(self._out)

    def ask(self, owner: object, request: Request, on_answer: OnAnswer, now_ms: int) -> None:
        """`on_answer(answer, now_ms)` is called once, with any answer but Failed, unless `owner` is forgotten."""
        self._push(now_ms, _Pending(owner, request, on_answer, 0))

    def take(self, now_ms: int) -> list[Ask]:
        """What is to be carried to the ports now."""
        taken = []
        while self._due and self._due[0][0] <= now_ms:
            _, number, pending = heappop(self._due)
            self._out[number] = pending
            taken.append(Ask(number, pending.request))
        return taken

    def answered(self, number: int, answer: Answer, now_ms: int) -> None:
        """An answer has come; one that nobody waits for is ignored."""
        pending = self._out.pop(number, None)
        if pending is None:
            return
        if isinstance(answer, Failed):
            failures = pending.failures + 1
            self._push(now_ms + self._policy.delay_ms(failures), pending._replace(failures=failures))
            self._on_failure(pending.owner, pending.request, answer, failures)
        else:
            pending.on_answer(answer, now_ms)

    def forget(self, owner: object) -> None:
        """Ask nothing more for `owner`, and ignore the answers that still come; O(requests)."""
        self._due = [due for due in self._due if due[2].owner is not owner]
        heapify(self._due)
        self._out = {number: pending for number, pending in self._out.items() if pending.owner is not owner}

    def next_deadline_ms(self) -> int | None:
        """When a request is due to go out."""
        return self._due[0][0] if self._due else None

    def _push(self, due_ms: int, pending: _Pending) -> None:
        heappush(self._due, (due_ms, next(self._numbers), pending))
