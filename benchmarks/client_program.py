"""A consumer or a producer as users write it in Python, as a process that measures itself.

    python client_program.py JSON

JSON has `how` (a name below), `servers`, `topic`, `messages` and `value_bytes`, and `zookeeper` for CONNECTOR. A
consumer is the one member of a new group, and reads the topic from its beginning; its clock begins at the first
message. A producer sends one message first, for the connections and the metadata; its clock begins then, and ends when
all messages are acknowledged. The process prints as JSON the seconds and the CPU seconds. It runs ours from any
checkout.

Each client has its default settings. Only the peers of our producer are set to be idempotent with acks=all, as ours is.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

OURS, OURS_WITH_CALLBACK = "flakelog", "flakelog, a callback for each message"
CONFLUENT_POLL, CONFLUENT_CONSUME = "confluent-kafka, poll", "confluent-kafka, consume(500)"
CONFLUENT_CALLBACK = "confluent-kafka, a callback for each message"
CONFLUENT_BARE = "confluent-kafka, no callbacks"
KAFKA_PYTHON = "kafka-python"
CONNECTOR = "flakelog, ConsumerConnector"
MESSAGES_AT_ONCE = 500
FULL_QUEUE_SECONDS = 0.1

# --- consumers: each yields values without end


def _read_ours(servers: str, topic: str) -> Iterator[bytes | None]:
    import flakelog

    with flakelog.Consumer(servers, topic, group=uuid4().hex) as consumer:
        for record in consumer:
            yield record.value


def _confluent_consumer(servers: str, topic: str) -> Any:
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": servers, "group.id": uuid4().hex, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    return consumer


def _read_confluent_by_poll(servers: str, topic: str) -> Iterator[bytes | None]:
    consumer = _confluent_consumer(servers, topic)
    while True:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            yield message.value()


def _read_confluent_by_consume(servers: str, topic: str) -> Iterator[bytes | None]:
    consumer = _confluent_consumer(servers, topic)
    while True:
        for message in consumer.consume(MESSAGES_AT_ONCE, 1.0):
            if message.error() is None:
                yield message.value()


def _read_kafka_python(servers: str, topic: str) -> Iterator[bytes | None]:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(topic, bootstrap_servers=servers, group_id=uuid4().hex, auto_offset_reset="earliest")
    for message in consumer:
        yield message.value


def _read_connector(servers: str, topic: str, zookeeper: str) -> Iterator[bytes | None]:
    import flakelog

    with flakelog.ConsumerConnector(zookeeper, uuid4().hex, servers) as connector:
        for record in connector.streams({topic: 1})[topic][0]:
            yield record.value


CONSUMERS: dict[str, Callable[[str, str], Iterator[bytes | None]]] = {
    OURS: _read_ours,
    CONFLUENT_POLL: _read_confluent_by_poll,
    CONFLUENT_CONSUME: _read_confluent_by_consume,
    KAFKA_PYTHON: _read_kafka_python,
}

# --- producers: each returns a function that sends this many messages and waits for their acknowledgements

Send = Callable[[bytes, int], None]


def _send_ours(servers: str, topic: str) -> Send:
    import flakelog

    producer = flakelog.Producer(servers)

    def send(value: bytes, messages: int) -> None:
        for _ in range(messages):
            producer.send(topic, value)
        producer.flush()

    return send


def _send_ours_with_callback(servers: str, topic: str) -> Send:
    import flakelog

    producer, outcomes = flakelog.Producer(servers), _Outcomes()

    def send(value: bytes, messages: int) -> None:
        for _ in range(messages):
            producer.send(topic, value, callback=outcomes.take)
        producer.flush()
        outcomes.check(messages)

    return send


def _confluent_producer(servers: str) -> Any:
    from confluent_kafka import Producer

    return Producer({"bootstrap.servers": servers, "enable.idempotence": True})


def _send_confluent_with_callback(servers: str, topic: str) -> Send:
    producer, outcomes = _confluent_producer(servers), _Outcomes()

    def send(value: bytes, messages: int) -> None:
        for _ in range(messages):
            while True:
                try:
                    producer.produce(topic, value, on_delivery=outcomes.take)
                    break
                except BufferError:
                    producer.poll(FULL_QUEUE_SECONDS)
            producer.poll(0)
        assert producer.flush() == 0
        outcomes.check(messages)

    return send


def _send_confluent_without_callback(servers: str, topic: str) -> Send:
    producer = _confluent_producer(servers)

    def send(value: bytes, messages: int) -> None:
        for _ in range(messages):
            while True:
                try:
                    producer.produce(topic, value)
                    break
                except BufferError:
                    producer.poll(FULL_QUEUE_SECONDS)
        assert producer.flush() == 0

    return send


def _send_kafka_python(servers: str, topic: str) -> Send:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=servers, acks="all", enable_idempotence=True)

    def send(value: bytes, messages: int) -> None:
        for _ in range(messages):
            producer.send(topic, value)
        producer.flush()

    return send


class _Outcomes:
    """Counts the outcomes of messages in a callback."""

    def __init__(self) -> None:
        self._acknowledged = 0

    def take(self, error: object, delivered: object) -> None:
        """Count an outcome."""
        if error is None:
            self._acknowledged += 1

    def check(self, messages: int) -> None:
        """Begin anew. AssertionError unless this many messages were acknowledged."""
        assert self._acknowledged == messages, f"{self._acknowledged} of {messages} messages were acknowledged"
        self._acknowledged = 0


PRODUCERS: dict[str, Callable[[str, str], Send]] = {
    OURS: _send_ours,
    OURS_WITH_CALLBACK: _send_ours_with_callback,
    CONFLUENT_CALLBACK: _send_confluent_with_callback,
    KAFKA_PYTHON: _send_kafka_python,
    CONFLUENT_BARE: _send_confluent_without_callback,
}


def _consume(
    how: str, servers: str, topic: str, messages: int, value_bytes: int, zookeeper: str = ""
) -> tuple[float, float]:
    values = _read_connector(servers, topic, zookeeper) if how == CONNECTOR else CONSUMERS[how](servers, topic)
    size = len(next(values) or b"")
    began, cpu_began = time.perf_counter(), time.process_time()
    for _, value in zip(range(messages - 1), values, strict=False):
        size += len(value or b"")
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    assert size == messages * value_bytes, f"{size} bytes of {messages * value_bytes} were read"
    return seconds, cpu


def _produce(how: str, servers: str, topic: str, messages: int, value_bytes: int) -> tuple[float, float]:
    send, value = PRODUCERS[how](servers, topic), b"x" * value_bytes
    send(value, 1)
    began, cpu_began = time.perf_counter(), time.process_time()
    send(value, messages - 1)
    return time.perf_counter() - began, time.process_time() - cpu_began


if __name__ == "__main__":
    plan: dict[str, Any] = json.loads(sys.argv[1])
    run = _produce if plan.pop("produces") else _consume
    seconds, cpu = run(**plan)
    print(json.dumps({"seconds": seconds, "cpu": cpu}))
