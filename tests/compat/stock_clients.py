"""Three stock clients behind one small interface, so that a test can run with each of them.

    client.produce(address, topic, messages, codec)
    client.read(address, topic, count)              without a group, partition 0 from its beginning
    with client.member(address, group, topic) as m: in a group: poll, partitions, commit

The clients are imported as PyPI ships them; none of Flakelog's own code takes part.
"""

import asyncio
from typing import NamedTuple

import aiokafka
import confluent_kafka
import kafka
import kafka.codec

from tests.patience import SECONDS, until

JOIN_SECONDS = 3
LINGER_MS = 60_000  # messages sent together form one batch, however slowly, because only a flush ends the wait
SESSION_MS = 60_000  # long, so that a pause of the machine removes no member from its group
HEARTBEAT_MS = 300
POLL_SECONDS = 0.1
QUIET = {"log_level": 0}
"""Config for librdkafka clients that may outlive their server, because an exception or a callback keeps them alive.

Without it they would report on stderr that they look for the server.
"""


class Message(NamedTuple):
    key: bytes | None
    value: bytes
    headers: tuple = ()


def gather(poll, count):
    """Poll until `count` messages have arrived, and return them."""
    messages = []
    until(lambda: messages.extend(poll()) or len(messages) >= count, what=f"{count} messages ({len(messages)} have)")
    return messages


class Confluent:
    """confluent-kafka, which wraps librdkafka, as clients for C, C++, Go, .NET, Rust, PHP and Node do."""

    name = "confluent-kafka"
    codecs = ("gzip", "snappy", "lz4", "zstd")

    @staticmethod
    def produce(address, topic, messages, codec="none", **config):
        failed = []
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": address, "compression.type": codec or "none", "linger.ms": LINGER_MS} | config
        )
        for message in messages:
            producer.produce(
                topic, message.value, message.key, partition=0, headers=list(message.headers),
                on_delivery=lambda error, _: error and failed.append(error),
            )  # fmt: skip
        assert producer.flush(SECONDS) == 0 and not failed, failed

    @staticmethod
    def read(address, topic, count, **config):
        consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "unused"} | config)
        try:
            beginning = confluent_kafka.OFFSET_BEGINNING
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, beginning)])
            return gather(lambda: _confluent_messages(consumer), count)
        finally:
            consumer.close()

    class member:
        def __init__(self, address, group, topic, session_ms=SESSION_MS):
            self._consumer = confluent_kafka.Consumer(
                {
                    "bootstrap.servers": address,
                    "group.id": group,
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    "session.timeout.ms": session_ms,
                    "heartbeat.interval.ms": HEARTBEAT_MS,
                }
            )
            self._consumer.subscribe([topic])

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self._consumer.close()

        def poll(self):
            return _confluent_messages(self._consumer)

        @property
        def partitions(self):
            return {assigned.partition for assigned in self._consumer.assignment()}

        def commit(self):
            self._consumer.commit(asynchronous=False)


def _confluent_messages(consumer):
    messages = []
    for message in consumer.consume(500, POLL_SECONDS):
        assert message.error() is None, message.error()
        messages.append(Message(message.key(), message.value(), tuple(message.headers() or ())))
    return messages


class KafkaPython:
    name = "kafka-python"
    # All codecs except gzip need kafka-python's extras (lz4, snappy, zstd).
    codecs = tuple(c for c in ("gzip", "snappy", "lz4", "zstd") if getattr(kafka.codec, f"has_{c}")())

    @staticmethod
    def produce(address, topic, messages, codec=None):
        producer = kafka.KafkaProducer(bootstrap_servers=address, compression_type=codec, linger_ms=LINGER_MS)
        try:
            sent = [producer.send(topic, m.value, m.key, list(m.headers), partition=0) for m in messages]
            producer.flush(SECONDS)
            for future in sent:
                future.get(SECONDS)
        finally:
            producer.close()

    @staticmethod
    def read(address, topic, count):
        consumer = kafka.KafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest")
        try:
            consumer.assign([kafka.TopicPartition(topic, 0)])
            return gather(lambda: _plain(consumer.poll(POLL_SECONDS * 1000)), count)
        finally:
            consumer.close()

    class member:
        def __init__(self, address, group, topic, session_ms=SESSION_MS):
            self._consumer = kafka.KafkaConsumer(
                topic,
                bootstrap_servers=address,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=session_ms,
                heartbeat_interval_ms=HEARTBEAT_MS,
            )

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self._consumer.close()

        def poll(self):
            # kafka-python 3.0.12 forgets a join if its answer comes after the poll that began it, so poll for long.
            return _plain(self._consumer.poll(JOIN_SECONDS * 1000))

        @property
        def partitions(self):
            return {assigned.partition for assigned in self._consumer.assignment()}

        def commit(self):
            self._consumer.commit()


class AioKafka:
    name = "aiokafka"
    codecs = ("gzip", "snappy", "lz4", "zstd")

    @staticmethod
    def produce(address, topic, messages, codec=None):
        async def run():
            async with aiokafka.AIOKafkaProducer(
                bootstrap_servers=address, compression_type=codec, linger_ms=50
            ) as producer:
                sent = [await producer.send(topic, m.value, m.key, 0, headers=list(m.headers)) for m in messages]
                await asyncio.wait_for(asyncio.gather(*sent), SECONDS)

        asyncio.run(run())

    @staticmethod
    def read(address, topic, count):
        with _Loop() as loop:
            assigned = aiokafka.TopicPartition(topic, 0)
            consumer = loop.run(_make(assigned=assigned, bootstrap_servers=address, auto_offset_reset="earliest"))
            try:
                return gather(lambda: _plain(loop.run(consumer.getmany(timeout_ms=100))), count)
            finally:
                loop.run(consumer.stop())

    class member:
        """A member that sends heartbeats only while it polls, because its loop runs only during `poll`."""

        def __init__(self, address, group, topic, session_ms=SESSION_MS):
            self._loop = _Loop().__enter__()
            self._consumer = self._loop.run(
                _make(
                    topic,
                    bootstrap_servers=address,
                    group_id=group,
                    auto_offset_reset="earliest",
                    enable_auto_commit=False,
                    session_timeout_ms=session_ms,
                    heartbeat_interval_ms=HEARTBEAT_MS,
                )
            )

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self._loop.run(self._consumer.stop())
            self._loop.__exit__()

        def poll(self):
            return _plain(self._loop.run(self._consumer.getmany(timeout_ms=100)))

        @property
        def partitions(self):
            return {assigned.partition for assigned in self._consumer.assignment()}

        def commit(self):
            self._loop.run(self._consumer.commit())


class _Loop:
    """An event loop that runs only inside `run`."""

    def __enter__(self):
        self._runner = asyncio.Runner()
        return self

    def __exit__(self, *_):
        self._runner.close()

    def run(self, coroutine):
        return self._runner.run(asyncio.wait_for(coroutine, SECONDS))


async def _make(*topics, assigned=None, **config):
    consumer = aiokafka.AIOKafkaConsumer(*topics, **config)
    await consumer.start()
    if assigned is not None:
        consumer.assign([assigned])
    return consumer


def _plain(polled):
    return [Message(r.key, r.value, tuple(r.headers)) for records in polled.values() for r in records]


CLIENTS = {client.name: client for client in (Confluent, KafkaPython, AioKafka)}


async def aiokafka_round_trip(topic, values, **config):
    """Write values with aiokafka, and read them again in their order; `config` is that of both clients."""
    async with aiokafka.AIOKafkaProducer(**config) as producer:
        for value in values:
            await producer.send_and_wait(topic, value.encode())
    consumer = aiokafka.AIOKafkaConsumer(topic, auto_offset_reset="earliest", **config)
    await consumer.start()
    try:
        received = [(await consumer.getone()).value.decode() for _ in values]
    finally:
        await consumer.stop()
    assert received == values
