"""Outstanding requests: each is sent, answered once, and sent again after a pause if the answer is Failed."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from partition_manager.ports import Answer, Failed, Request
from partition_manager.retry import RetryPolicy

OnAnswer = Callable[[Answer, int], None]
OnFailure = Callable[[object, Request, Failed, int], None]
OnSuccess = Callable[[object, Request], None]


class Ask(NamedTuple):
    """A request for the driver to carry to its port; the driver passes `number` back with the answer."""

    number: int
    request: Request


class _Pending(NamedTuple):
    owner: object
    request: Request
    on_answer: OnAnswer
    failures: int


class Asks:
    """All requests of one core.

    An owner has at most one request for each purpose, so the number of owners bounds the number of requests.
    """

    def __init__(
        self, policy: RetryPolicy, on_failure: OnFailure, on_success: OnSuccess = lambda owner, request: None
    ) -> None:
        """Create an empty set of requests.

        `on_failure(owner, request, answer, failures)` is called for each Failed answer; the request is retried
        automatically. `on_success(owner, request)` is called before the answer to a request that had failed is used.
        """
        self._policy = policy
        self._on_failure = on_failure
        self._on_success = on_success
        self._numbers = count(1)
        self._due: list[tuple[int, int]] = []  # a heap of (due_ms, number); the forgotten ones leave it when due
        self._out: set[int] = set()  # sent, and not answered
        self._pending: dict[int, _Pending] = {}  # all requests, by number
        self._of_owner: dict[int, set[int]] = {}  # numbers by the owner's id()

    def __len__(self) -> int:
        return len(self._pending)

    def ask(self, owner: object, request: Request, on_answer: OnAnswer, now_ms: int) -> None:
        """Schedule `request` for sending at once.

        `on_answer(answer, now_ms)` is called once, with the first answer that is not Failed, unless `owner` is
        forgotten.
        """
        self._push(now_ms, _Pending(owner, request, on_answer, 0))

    def take(self, now_ms: int) -> list[Ask]:
        """Return the requests that are due, for the driver to carry to the ports."""
        taken = []
        while self._due and self._due[0][0] <= now_ms:
            _, number = heappop(self._due)
            pending = self._pending.get(number)
            if pending is not None:
                self._out.add(number)
                taken.append(Ask(number, pending.request))
        return taken

    def answered(self, number: int, answer: Answer, now_ms: int) -> None:
        """Process an answer: retry after Failed, otherwise call `on_answer`. Ignore an answer to an unknown number."""
        if number not in self._out:
            return
        pending = self._remove(number)
        if isinstance(answer, Failed):
            failures = pending.failures + 1
            self._push(now_ms + self._policy.delay_ms(failures), pending._replace(failures=failures))
            self._on_failure(pending.owner, pending.request, answer, failures)
            return
        if pending.failures:
            self._on_success(pending.owner, pending.request)
        pending.on_answer(answer, now_ms)

    def expects(self, number: int) -> bool:
        """Return True if the request was sent, not answered, and its owner not forgotten."""
        return number in self._out

    def forget(self, owner: object) -> None:
        """Drop the requests of `owner` and ignore answers to those already sent; O(requests of the owner)."""
        for number in self._of_owner.pop(id(owner), ()):
            del self._pending[number]
            self._out.discard(number)

    def next_deadline_ms(self) -> int | None:
        """Return the time the next request is due to be sent, or None if none is scheduled."""
        while self._due and self._due[0][1] not in self._pending:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def _push(self, due_ms: int, pending: _Pending) -> None:
        number = next(self._numbers)
        self._pending[number] = pending
        self._of_owner.setdefault(id(pending.owner), set()).add(number)
        heappush(self._due, (due_ms, number))

    def _remove(self, number: int) -> _Pending:
        self._out.discard(number)
        pending = self._pending.pop(number)
        numbers = self._of_owner[id(pending.owner)]
        numbers.discard(number)
        if not numbers:
            del self._of_owner[id(pending.owner)]
        return pending
