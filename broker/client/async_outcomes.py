"""SHELL (asyncio): the outcomes of an AsyncProducer's messages, which come from librdkafka's threads."""

import asyncio
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from typing import Any

from broker.client.errors import ProduceError
from broker.client.producer_outcomes import Delivered, not_acknowledged

UNREAD_MAX = 1_000  # failed messages whose futures are kept until a flush; more are counted as lost


class Acknowledgement(asyncio.Future[Delivered]):
    """The future of a queued message: its place when it is acknowledged, or ProduceError.

    If the program neither awaits it nor asks for its result, `flush` and `close` report that the message is lost.
    """

    is_read = False
    failure: ProduceError | None = None

    def result(self) -> Delivered:
        """Return the place of the message."""
        self.is_read = True
        return super().result()

    def exception(self) -> BaseException | None:
        """Return why the message was not acknowledged, None if it was."""
        self.is_read = True
        return super().exception()

    def fail(self, error: ProduceError) -> None:
        """Set the error. `raise_failures` reports it if the program does not read it, so asyncio logs nothing."""
        self.failure = error
        self.set_exception(error)
        super().exception()

    def __await__(self) -> Generator[Any, None, Delivered]:
        self.is_read = True
        return super().__await__()


class AsyncOutcomes:
    """The outcomes of one producer's messages. `report` may be called in any thread, the others in the event loop's."""

    def __init__(self) -> None:
        self._reported: deque[tuple[Acknowledgement, ProduceError | Delivered]] = deque()
        self._failed: deque[Acknowledgement] = deque()
        self._failures = 0  # that are not in `_failed` any more
        self._first_failure: ProduceError | None = None

    def report(self, future: Acknowledgement, outcome: ProduceError | Delivered) -> None:
        """Hand an outcome to the loop; several that come together wake it once."""
        self._reported.append((future, outcome))
        if len(self._reported) == 1:
            with suppress(RuntimeError):  # the loop is closed, so no task waits for the outcome
                future.get_loop().call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        while self._reported:
            future, outcome = self._reported.popleft()
            if future.done():  # it was cancelled
                continue
            if isinstance(outcome, Delivered):
                future.set_result(outcome)
                continue
            future.fail(outcome)
            self._failed.append(future)
            if len(self._failed) > UNREAD_MAX:
                self._count(self._failed.popleft())

    def _count(self, future: Acknowledgement) -> None:
        if not future.is_read:
            self._failures += 1
            self._first_failure = self._first_failure or future.failure

    def raise_failures(self) -> None:
        """Raise ProduceError if messages have failed since the last call, and the program has not read that."""
        for future in self._failed:
            self._count(future)
        failures, first = self._failures, self._first_failure
        self.forget_failures()
        if first is not None:
            raise not_acknowledged(failures, first) from first

    def forget_failures(self) -> None:
        """Raise for none of the failures until now."""
        self._failed.clear()
        self._failures, self._first_failure = 0, None
