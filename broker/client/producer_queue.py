"""SHELL (librdkafka): a producer's queue, which is librdkafka's: messages enter it, and their outcomes leave it."""

import logging
import math
import time
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as Librdkafka

from broker.client.errors import ClientError, ProduceError, QueueFull
from broker.client.librdkafka import Header, headers_of, transaction_error
from broker.client.producer_hook import QueuedMessage, QueueSteps
from broker.client.producer_outcomes import Calls, Outcomes, Report
from broker.client.producer_partitions import ANY_PARTITION
from broker.record.id_header import id_header

if TYPE_CHECKING:
    from idgen.snowflake import Snowflake

POLL_SECONDS = 0.1
TOLD_SECONDS = 0.5  # after Ctrl-C, before a line says why the program still runs
_STILL_WAITS = (
    "the producer closes once its messages are acknowledged or have failed, after timeout_ms at the latest; Ctrl-C "
    "drops them: %d"
)

_log = logging.getLogger("broker.client.producer")


class ProducerQueue:
    """The queue of one producer. `is_plain` is True if a message without headers and time goes in as it is."""

    def __init__(
        self,
        producer: Librdkafka,
        outcomes: Outcomes,
        *,
        transactional_id: str | None,
        enqueue_timeout_ms: int,
        max_request_size: int,
        snowflake: "Snowflake | None",
        steps: QueueSteps | None,
    ) -> None:
        self.calls = Calls()
        self.is_plain = snowflake is None and steps is None
        self._name = "the producer" if transactional_id is None else f"transactional id {transactional_id}"
        self._producer = producer
        self._produce: Callable[..., None] = producer.produce
        self._outcomes = outcomes
        self._enqueue_timeout_ms = enqueue_timeout_ms
        self._max_request_size = max_request_size
        self._snowflake = snowflake
        self._stamping = Lock()
        self._steps = steps

    def enqueue(
        self,
        report: Report,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        headers: list[Header] | None,
        timestamp_ms: int | None,
    ) -> None:
        """Give a message to librdkafka. Wait while its queue is full. Raise QueueFull, ProduceError or IdError.

        If there is a hook, it sees the message before and after.
        """
        if self._steps is None:
            self._put(report, topic, value, key, partition, headers, timestamp_ms)
        else:
            chosen = None if partition == ANY_PARTITION else partition
            message = QueuedMessage(topic, value, key, chosen, headers or [], timestamp_ms)
            self._put_seen(report, self._steps.before_enqueue(message), self._steps)

    def enqueue_last(self, report: Report) -> None:
        """Queue what the hook sends last."""
        if self._steps is not None:
            for message in self._steps.last_batch():
                self._put_seen(report, message, self._steps)

    def _put_seen(self, report: Report, message: QueuedMessage, steps: QueueSteps) -> None:
        topic, value, key, chosen, headers, timestamp_ms = message
        partition = ANY_PARTITION if chosen is None else chosen
        try:
            pairs = headers_of(headers, self._snowflake is not None) if headers else None
            self._put(steps.reporting(message, report), topic, value, key, partition, pairs, timestamp_ms)
        except BaseException as error:
            steps.refused(message, error)
            raise
        steps.queued(message)

    def _put(
        self,
        report: Report,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        headers: list[Header] | None,
        timestamp_ms: int | None,
    ) -> None:
        waited_ms = 0
        self._outcomes.number()
        try:
            while True:
                try:
                    if headers is None and timestamp_ms is None and self._snowflake is None:
                        self._produce(topic, value, key, partition, report)
                    else:
                        message = topic, value, key, partition, report
                        self._produce_more(message, headers or [], timestamp_ms or 0)
                    return
                except BufferError:
                    if self.calls.in_callback:
                        raise QueueFull("the queue is full, and a callback cannot wait for it") from None
                    if waited_ms >= self._enqueue_timeout_ms:
                        raise QueueFull(f"the queue stayed full for {waited_ms} ms") from None
                    self.serve(POLL_SECONDS)
                    waited_ms += int(POLL_SECONDS * 1000)
                except KafkaException as error:
                    name = topic if partition == ANY_PARTITION else f"{topic}-{partition}"
                    raise ProduceError(f"{name}: {self._reason(error.args[0])}") from None
        except BaseException:
            self._outcomes.withdraw()
            raise

    def _reason(self, error: KafkaError) -> str:
        """Return why librdkafka refused a message."""
        code = error.code()
        if code == KafkaError.MSG_SIZE_TOO_LARGE:
            return f"the message does not fit max_request_size={self._max_request_size} bytes"
        hint = ": a message is sent between `begin` and `commit`" if code == KafkaError._STATE else ""
        return f"{error.str()}{hint}"

    def _produce_more(self, message: tuple[Any, ...], headers: list[Header], timestamp_ms: int) -> None:
        """Give a message with headers, a time or an id to librdkafka."""
        if self._snowflake is None:
            self._produce(*message, timestamp=timestamp_ms, headers=headers)
            return
        with self._stamping:  # a message is queued before the next id is made, so that ids rise
            headers = [*headers, id_header(self._snowflake.next_id())]
            self._produce(*message, timestamp=timestamp_ms, headers=headers)

    def serve(self, seconds: float) -> int:
        """Call the callbacks that are due. Raise ProducerFenced or ClientError for an error that ends the producer."""
        try:
            with self.calls.enter():
                try:
                    return int(self._producer.poll(seconds))
                finally:
                    self.handle_batches()
        except KafkaException as error:
            raise self.error(error) from None

    def wait_until_empty(self, *, is_interrupted: bool = False) -> None:
        """Wait until each message has its outcome. Raise as `serve` does.

        If an interrupt or a cancellation ended the producer's block, and the wait is not short, log why it waits.
        """
        told_at_s = time.monotonic() + TOLD_SECONDS if is_interrupted else math.inf
        try:
            with self.calls.enter():
                while queued := self._producer.flush(POLL_SECONDS):  # in short steps, so that Ctrl-C ends the wait
                    self.handle_batches()
                    if time.monotonic() >= told_at_s:
                        told_at_s = math.inf
                        _log.warning(_STILL_WAITS, queued)
                self.handle_batches()
        except KafkaException as error:
            raise self.error(error) from None

    def handle_batches(self) -> None:
        """Pass the outcomes that have come to the event handler. It runs as a callback does, within `calls.enter`."""
        if self._steps is not None:
            self._steps.handle_batches()

    def error(self, error: KafkaException) -> ClientError:
        """Return the error that says what to do. If it ends the producer, the messages that are left fail with it."""
        transaction_failure = transaction_error(error.args[0], self._name)
        if error.args[0].fatal():
            self._outcomes.dropped = str(transaction_failure)
            self._producer.purge()  # librdkafka would keep them until they time out
        return transaction_failure
