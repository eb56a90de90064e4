"""SHELL (librdkafka: its threads and sockets): writes the messages of one task, and waits until they are acknowledged.

A worker process keeps its producer for the tasks that follow with the same settings, as the connector does, because a
new one connects and asks for a producer id first.
"""

import time
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TypeAlias

from broker.client.security.client_security import ClientSecurity
from broker.client.security.librdkafka_settings import librdkafka_security
from idgen.settings import InvalidSetting
from spark_bridge.source.write_rows import Message

POLL_SECONDS = 0.05
PRODUCERS_MAX = 2
"""Producers that a worker process keeps. Each has its own threads, and the tasks of a process share few settings."""
RECIPE = (
    "writing with format flakelog needs confluent-kafka where the tasks run, and it is not there: "
    "python -m pip install confluent-kafka"
)


Settings: TypeAlias = tuple[tuple[str, int | str | bool], ...]
"""Names and values of librdkafka's settings, sorted."""
Security: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values of a Kafka client's security."""


class WriteFailed(Exception):
    """A message was not acknowledged; the text is one line that names topic, partition and reason."""


class TopicProducer:
    """A producer of one worker process. `settings` are librdkafka's."""

    def __init__(self, settings: Settings, security: Security = ()) -> None:
        try:
            from confluent_kafka import KafkaException, Producer
        except ImportError:
            raise WriteFailed(RECIPE) from None
        self._failures: list[str] = []
        self._producer_error: type[Exception] = KafkaException
        own = {"on_delivery": self._delivered, "delivery.report.only.error": True, "log_level": 0}
        try:
            self._producer = Producer(dict(settings) | own | librdkafka_security(ClientSecurity.of(dict(security))))
        except InvalidSetting as error:
            raise WriteFailed(f"kafka.{error}") from None
        except KafkaException as error:
            raise WriteFailed(f"the producer refuses its settings: {_reason(error.args[0])}") from None

    def write(self, messages: Iterable[Message], block_ms: int) -> int:
        """Queue the messages and return their number. Raise WriteFailed.

        A message waits up to `block_ms` for a place in the queue.
        """
        written = 0
        produce = self._producer.produce
        for topic, value, key, partition, headers in messages:
            try:
                try:
                    produce(topic, value, key, partition, headers=headers)
                except BufferError:
                    self._wait_and_produce(block_ms, topic, value, key, partition, headers)
            except self._producer_error as error:
                raise WriteFailed(f"{_partition_name(topic, partition)}: {_reason(error.args[0])}") from None
            written += 1
        self._producer.poll(0)
        self._raise_failure()
        return written

    def finish(self) -> None:
        """Wait until all messages are acknowledged. Raise WriteFailed if one is not."""
        while self._producer.flush(POLL_SECONDS * 20):
            self._raise_failure()
        self._raise_failure()

    def abandon(self) -> None:
        """Forget the messages that are not acknowledged."""
        self._producer.purge()
        self._producer.flush(POLL_SECONDS)
        self._failures.clear()

    def _wait_and_produce(self, block_ms: int, topic: str, value: Any, key: Any, partition: int, headers: Any) -> None:
        end = time.monotonic() + block_ms / 1000
        while True:
            self._producer.poll(POLL_SECONDS)
            self._raise_failure()
            try:
                self._producer.produce(topic, value, key, partition, headers=headers)
                return
            except BufferError:
                if time.monotonic() >= end:
                    raise WriteFailed(
                        f"{_partition_name(topic, partition)}: the producer's queue was full for {block_ms} ms "
                        "(kafka.max.block.ms, kafka.buffer.memory)"
                    ) from None

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None and not self._failures:
            self._failures.append(f"{_partition_name(message.topic(), message.partition())}: {_reason(error)}")

    def _raise_failure(self) -> None:
        if self._failures:
            raise WriteFailed(self._failures[0])


@lru_cache(maxsize=PRODUCERS_MAX)
def kept_producer(settings: Settings, security: Security = ()) -> TopicProducer:
    """Return this process's producer with these settings."""
    return TopicProducer(settings, security)


def write_all(
    batches: Iterable[Iterable[Message]], settings: Settings, block_ms: int, security: Security = ()
) -> int:
    """Write all messages, wait for their acknowledgements, and return their number. Raise WriteFailed.

    Without batches no producer is made, because many tasks after a shuffle are empty.
    """
    written = 0
    producer = None
    try:
        for batch in batches:
            producer = producer or kept_producer(settings, security)
            written += producer.write(batch, block_ms)
        if producer is not None:
            producer.finish()
    except BaseException:
        kept_producer.cache_clear()  # after an error, librdkafka may refuse everything
        if producer is not None:
            producer.abandon()
        raise
    return written


def _partition_name(topic: str, partition: int | None) -> str:
    return topic if partition is None or partition < 0 else f"{topic}-{partition}"


def _reason(error: Any) -> str:
    """Return librdkafka's reason, the same for an error at the call and one that comes later."""
    return f"{error.str().removeprefix('Unable to produce message: ')} ({error.name()})"
