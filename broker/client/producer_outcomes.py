"""SHELL (threads): the outcomes of a producer's messages: counted, passed to callbacks, or kept for `flush`."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from threading import Lock, get_ident
from typing import Any, NamedTuple

from confluent_kafka import KafkaError

from broker.client.errors import ClientError, ProduceError
from broker.client.producer_figures import STATISTICS_MS, ProducerCounts, ProducerFigures

COUNTED_AT_ONCE = 256  # messages; taking the lock for each one would make `send` a tenth slower

_log = logging.getLogger(__name__)


class Delivered(NamedTuple):
    """The place of an acknowledged message."""

    topic: str
    partition: int
    offset: int


def not_acknowledged(number: int, first: ProduceError) -> ProduceError:
    """Return the error of lost messages that were reported to nothing else."""
    if number == 1:
        return ProduceError(f"a message was not acknowledged: {first}")
    return ProduceError(f"{number} messages were not acknowledged; the first: {first}")


Callback = Callable[[ProduceError | None, Delivered | None], None]

Report = Callable[[Any, Any], None]
"""A function that librdkafka calls with its error, or None, and its message."""


class Calls:
    """The threads that are in a call of librdkafka which may run callbacks.

    librdkafka's Python API keeps one call for each thread. A second one within a callback ends the process: an
    assertion of the outer call fails afterwards.
    """

    def __init__(self) -> None:
        self._threads: set[int] = set()

    @property
    def in_callback(self) -> bool:
        """True if this thread runs a callback."""
        return get_ident() in self._threads

    def check(self) -> None:
        """Raise ClientError if this thread runs a callback."""
        if self.in_callback:
            raise ClientError("a callback of a producer may only queue messages of it: do everything else after it")

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Enter and leave a call. Raise ClientError if this thread runs a callback.

        librdkafka's Python API sometimes loses the exception of a signal handler between two callbacks, and its call
        fails with SystemError. That exception is nearly always the KeyboardInterrupt of Ctrl-C, so this call raises
        KeyboardInterrupt. Exceptions of callbacks are not lost: `tell` keeps them.
        """
        self.check()
        thread = get_ident()
        try:
            self._threads.add(thread)  # in the block, because Ctrl-C may come between any two lines
            yield
        except SystemError as error:
            raise KeyboardInterrupt from error
        finally:
            self._threads.discard(thread)


class Outcomes:
    """The outcomes of a producer's messages. Thread-safe: librdkafka reports them to any thread that polls.

    The producer calls `number` for each message that it queues, and `withdraw` if librdkafka refuses the message.
    """

    def __init__(self, begun_s: float, servers: str, timeout_ms: int) -> None:
        self.number = count().__next__  # atomic, and faster than a lock
        self.dropped = "its transaction was aborted"  # why messages in the queue are dropped
        self.raised: list[BaseException] = []  # by callbacks
        self._late = f"not acknowledged within {timeout_ms} ms: the partition is offline, or no answer from {servers}"
        self._trouble = ""
        """Why brokers refuse the connections of librdkafka, as it said last."""
        self._acknowledged_before = 0
        """Messages that were acknowledged before that trouble."""
        self._lock = Lock()
        self._counts = ProducerCounts(begun_s)
        self._acknowledged: list[Any] = []  # messages that are not counted yet
        self._withdrawn = 0  # numbers without a message
        self._failures = 0
        self._first_failure: ProduceError | None = None

    @property
    def callbacks(self) -> dict[str, Any]:
        """The settings of librdkafka by which it tells of what concerns no message."""
        return {
            "statistics.interval.ms": STATISTICS_MS,
            "stats_cb": self._counts.statistics,
            "error_cb": self._troubled,
        }

    def withdraw(self) -> None:
        """Take back the number of a message that was not queued."""
        with self._lock:
            self._withdrawn += 1

    def settler(self, producer: object) -> Report:
        """Return the report for messages without a callback. The producer lives while one of them is queued."""
        acknowledged = self._acknowledged

        def settle(error: Any, message: Any, producer: object = producer) -> None:
            if error is None:
                acknowledged.append(message)
                if len(acknowledged) >= COUNTED_AT_ONCE:
                    self._count()
            else:
                failure = self._failure(error, message)
                with self._lock:
                    self._failures += 1
                    self._first_failure = self._first_failure or failure

        return settle

    def teller(self, producer: object, callback: Callback) -> Report:
        """Return the report for messages with this callback. The producer lives while one of them is queued."""

        def report(error: Any, message: Any, producer: object = producer) -> None:
            self.tell(self.result(error, message), callback)

        return report

    def result(self, error: Any, message: Any) -> ProduceError | Delivered:
        """Count the outcome of a message, and return it; both arguments are librdkafka's."""
        if error is not None:
            return self._failure(error, message)
        self._acknowledged.append(message)
        if len(self._acknowledged) >= COUNTED_AT_ONCE:
            self._count()
        return Delivered(message.topic(), message.partition(), message.offset())

    def tell(self, result: ProduceError | Delivered, callback: Callback) -> None:
        """Call a callback, and keep its exception."""
        if isinstance(result, ProduceError):
            self.keep_error(callback, result, None)
        else:
            self.keep_error(callback, None, result)

    def keep_error(self, call: Callable[..., object], *arguments: object) -> None:
        """Call a function of the program, and keep its exception: librdkafka would leave a flush or a commit half done.

        SystemExit and CancelledError are kept too. Ctrl-C goes through, because its user waits for no flush.
        """
        try:
            call(*arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.raised.append(error)

    def raise_of_callbacks(self) -> None:
        """Raise the first exception of a callback since the last call, and log the others."""
        if self.raised:
            (first, *others), self.raised = self.raised, []
            for other in others:
                _log.error("a callback raised", exc_info=other)
            raise first

    def raise_failures(self) -> None:
        """Raise ProduceError if messages without a callback have failed since the last call."""
        with self._lock:
            failures, first = self._failures, self._first_failure
            self._failures, self._first_failure = 0, None
        if first is not None:
            raise not_acknowledged(failures, first) from first

    def forget_failures(self) -> None:
        """Raise for none of the failures until now."""
        with self._lock:
            self._failures, self._first_failure = 0, None

    @property
    def queued(self) -> int:
        """Messages without an outcome."""
        return self._count().queued

    def _troubled(self, error: Any) -> None:
        """Take an error of librdkafka that concerns no message. It retries for ever, also with a wrong password."""
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            self._trouble, self._acknowledged_before = f" ({error.str()})", self._count().acknowledged

    def _present_trouble(self) -> str:
        """Return the trouble, "" without one or after a message that was acknowledged since."""
        if self._trouble and self._count().acknowledged > self._acknowledged_before:
            self._trouble = ""
        return self._trouble

    def figures(self, now_s: float) -> ProducerFigures:
        """Return the figures until now."""
        return self._count().figures(now_s)

    def _failure(self, error: Any, message: Any) -> ProduceError:
        """Count a failed message, and return its error."""
        with self._lock:
            self._counts.failed += 1
        return self._failure_of(error, message)

    def described(self, error: Any, message: Any) -> ProduceError | Delivered:
        """Return the outcome of a message, not counted; both arguments are librdkafka's."""
        if error is not None:
            return self._failure_of(error, message)
        return Delivered(message.topic(), message.partition(), message.offset())

    def _failure_of(self, error: Any, message: Any) -> ProduceError:
        if error.code() in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            return ProduceError(f"{message.topic()}: {self.dropped}")
        if error.code() == KafkaError._MSG_TIMED_OUT:
            partition = message.partition()  # None if librdkafka has not chosen one
            name = message.topic() if partition is None else f"{message.topic()}-{partition}"
            return ProduceError(f"{name}: {self._late}{self._present_trouble()}")
        return ProduceError(f"{message.topic()}: {error.str()}")

    def _count(self) -> ProducerCounts:
        """Count the messages that were acknowledged, and those that were sent."""
        with self._lock:
            number = len(self._acknowledged)
            self._counts.acknowledge(self._acknowledged[:number])
            del self._acknowledged[:number]  # another thread may have appended more
            self._counts.sent = self.number() - self._withdrawn
            self._withdrawn += 1  # the number of this call
        return self._counts
