"""The load: a stock client produces every flight, as any program would."""

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from broker.client.blocking import Client
from broker.client.core import EARLIEST, LATEST
from broker.client.records import Record

POLL_EVERY = 1000


class Loaded(NamedTuple):
    messages: int
    seconds: float


class LoadFailed(Exception):
    """A message was not acknowledged."""


def load(servers: str, topic: str, messages: Iterable[tuple[bytes, bytes]], progress: Callable[[int], None]) -> Loaded:
    """Produce all messages with acks=all and zstd; return when each is acknowledged. Raises LoadFailed."""
    producer = Producer({"bootstrap.servers": servers, "compression.type": "zstd", "linger.ms": 20})
    failed: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(str(error))

    started = time.monotonic()
    number = 0
    for key, value in messages:
        _produce(producer, topic, key, value, delivered)
        number += 1
        if number % POLL_EVERY == 0:
            producer.poll(0)
            progress(number)
    unsent = producer.flush(60)
    progress(number)
    if failed or unsent:
        raise LoadFailed(f"{len(failed) + unsent} messages were not acknowledged: {failed[:1] or 'no answer'}")
    return Loaded(number, time.monotonic() - started)


def _produce(producer: Producer, topic: str, key: bytes, value: bytes, delivered: Any) -> None:
    while True:
        try:
            producer.produce(topic, value, key, on_delivery=delivered)
            return
        except BufferError:  # its queue is full: let it send
            producer.poll(0.05)


def edge_messages(client: Client, topic: str) -> list[Record]:
    """Return the first, middle and last message of each partition, in the order of their ids."""
    messages = []
    for partition in range(client.topic(topic).partitions):
        first, end = client.find_offset(topic, partition, EARLIEST), client.find_offset(topic, partition, LATEST)
        for offset in sorted({first, (first + end) // 2, end - 1}):
            if first <= offset < end:
                records, _ = client.fetch(topic, partition, offset)
                messages.append(records[0])
    return sorted(messages, key=lambda record: record.id or 0)
