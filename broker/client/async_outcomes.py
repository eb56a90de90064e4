"""SHELL (asyncio): the outcomes of an AsyncProducer's messages, which come from librdkafka's threads."""

import asyncio
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import suppress
from threading import Lock
from typing import Any

from broker.client.errors import ProduceError
from broker.client.producer_outcomes import Delivered, not_acknowledged

UNREAD_MAX = 100_000  # failed messages whose futures are kept until a flush, as many as the queue has by default


class Acknowledgement(asyncio.Future[Delivered]):
    """The future of a queued message: its place when it is acknowledged, or ProduceError.

    If the program does not read the failure of a message, `flush` and `close` report it. A program reads it by `await`,
    `result()` or `exception()`. A future that is cancelled tells nothing, so its message is reported too.
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
        if not self.done():
            self.set_exception(error)
            super().exception()

    def __await__(self) -> Generator[Any, None, Delivered]:
        self.is_read = True
        return super().__await__()

    @property
    def is_lost_unread(self) -> bool:
        """True if the message is lost, and the program has not read that."""
        return self.failure is not None and (self.cancelled() or not self.is_read)


class AsyncOutcomes:
    """The outcomes of one producer's messages. `report` may be called in any thread, the others in the event loop's."""

    def __init__(self) -> None:
        self._reported: deque[tuple[Acknowledgement, ProduceError | Delivered]] = deque()
        self._is_scheduled = False
        self._lock = Lock()
        """Guards `_is_scheduled`."""
        self._failed: list[Acknowledgement] = []
        self._failures = 0  # whose futures are dropped
        self._first_failure: ProduceError | None = None

    def report(self, future: Acknowledgement, outcome: ProduceError | Delivered) -> None:
        """Hand an outcome to the loop; several that come together wake it once."""
        self._reported.append((future, outcome))
        with self._lock:
            if self._is_scheduled:
                return
            self._is_scheduled = True
        with suppress(RuntimeError):  # the loop is closed, so no task waits for the outcome
            future.get_loop().call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            self._is_scheduled = False  # before the outcomes are taken, so that a later one wakes the loop again
        while self._reported:
            future, outcome = self._reported.popleft()
            if isinstance(outcome, Delivered):
                if not future.done():  # it was not cancelled
                    future.set_result(outcome)
                continue
            future.fail(outcome)
            self._failed.append(future)
        # Not at each failure: the tasks that read these failures have their turn after this call. At twice the limit,
        # so that few futures are looked at again.
        if len(self._failed) >= 2 * UNREAD_MAX:
            self._failed = [future for future in self._failed if future.is_lost_unread]
            self._count(self._failed[:-UNREAD_MAX])
            self._failed = self._failed[-UNREAD_MAX:]

    def _count(self, futures: Iterable[Acknowledgement]) -> None:
        for future in futures:
            if future.is_lost_unread:
                self._failures += 1
                self._first_failure = self._first_failure or future.failure

    def raise_failures(self) -> None:
        """Raise ProduceError if messages have failed since the last call, and the program has not read that."""
        self._deliver()  # a thread may have reported more since the loop delivered
        self._count(self._failed)
        failures, first = self._failures, self._first_failure
        self.forget_failures()
        if first is not None:
            raise not_acknowledged(failures, first) from first

    def forget_failures(self) -> None:
        """Raise for none of the failures until now."""
        self._failed.clear()
        self._failures, self._first_failure = 0, None
