"""SHELL (librdkafka: its threads and sockets): a Producer with the features of early Kafka's, in Python.

    with Producer("127.0.0.1:9092") as producer:
        producer.send("greetings", "hello", key="world")

It has the features of Kafka 0.7's producer (https://kafka.apache.org/07/documentation.html, "Producer"): a synchronous
mode, and an asynchronous one with a bounded queue that is sent after `queue_time_ms` or `batch_size` messages; an
encoder; a partitioner; a callback. librdkafka does the batching, retries and idempotence. The Producer does not learn
the Snowflake ids of its messages. A consumer sees them (`flakelog consume --show-ids`, `Client.fetch`), and
`Client.produce` returns them at once.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as Librdkafka

from broker.client.errors import ProduceError, QueueFull

QUEUE_SIZE = 100_000  # messages, as librdkafka's default; Kafka 0.7's was 10,000, when a message cost more
POLL_SECONDS = 0.1
ANY_PARTITION = -1  # librdkafka chooses

Encoder = Callable[[Any], bytes | None]
Partitioner = Callable[[bytes | None, int], int]


class Delivered(NamedTuple):
    """The place of an acknowledged message."""

    topic: str
    partition: int
    offset: int


Callback = Callable[[ProduceError | None, Delivered | None], None]


def encode(value: Any) -> bytes | None:
    """Encode text as UTF-8; return bytes and None (a tombstone, or no key) unchanged. Raise TypeError for other types.

    This is the default encoder.
    """
    if isinstance(value, str):
        return value.encode()
    if value is None or isinstance(value, bytes):
        return value
    raise TypeError(f"a {type(value).__name__} is neither bytes nor text: give the Producer an encoder")


class Producer:
    """A producer that sends messages to any Kafka-protocol broker. Thread-safe.

    With `sync`, `send` waits for the acknowledgement. Otherwise `send` queues the message; while the queue has
    `queue_size` messages, it waits for up to `enqueue_timeout_ms`. `flush` waits for all messages and raises if
    messages without a callback failed. `partitioner(key, partitions)` gets the encoded key and chooses a partition. By
    default, equal keys go to the same partition (by CRC-32, as in librdkafka), and messages without a key are spread.
    `compression` is none, gzip, snappy, lz4 or zstd. A message is retried for up to `timeout_ms`; retries make no
    duplicates (KIP-98). The constructor raises ValueError for a setting that librdkafka refuses; it does not wait for
    a broker.
    """

    def __init__(
        self,
        servers: str,
        *,
        encoder: Encoder = encode,
        key_encoder: Encoder = encode,
        partitioner: Partitioner | None = None,
        sync: bool = False,
        queue_time_ms: int = 5,
        batch_size: int = 10_000,
        queue_size: int = QUEUE_SIZE,
        enqueue_timeout_ms: int = 30_000,
        timeout_ms: int = 30_000,
        compression: str = "none",
    ) -> None:
        self._encoder = encoder
        self._key_encoder = key_encoder
        self._partitioner = partitioner
        self._sync = sync
        self._enqueue_timeout_ms = enqueue_timeout_ms
        self._servers = servers
        self._failures = 0
        self._first_failure: ProduceError | None = None
        self._partitions: dict[str, int] = {}
        self._timeout_ms = timeout_ms
        settings = {
            "bootstrap.servers": servers,
            "client.id": "flakelog",
            "enable.idempotence": True,
            "linger.ms": 0 if sync else queue_time_ms,
            "batch.num.messages": batch_size,
            "queue.buffering.max.messages": queue_size,
            "message.timeout.ms": timeout_ms,
            "compression.type": compression,
            "log_level": 0,  # errors are raised or passed to a callback instead
        }
        try:
            self._producer = Librdkafka(settings)
        except KafkaException as error:
            raise ValueError(error.args[0].str()) from None

    def send(self, topic: str, value: Any, key: Any = None, callback: Callback | None = None) -> Delivered | None:
        """Send or queue a message. Return its place with `sync`, else None.

        Raise QueueFull, or ProduceError with `sync`. `callback(error, delivered)` is called once, with one of the two
        None: with `sync` before `send` returns, else within a later `send`, `flush` or `close`.
        """
        data, key_data = self._encoder(value), self._key_encoder(key)
        outcome: list[ProduceError | Delivered] = []

        def done(error: Any, message: Any) -> None:
            result = self._result(topic, error, message)
            outcome.append(result)
            if not self._sync:
                self._tell(result, callback)

        self._enqueue(topic, data, key_data, done)
        if not self._sync:
            self._producer.poll(0)
            return None
        while not outcome:
            self._producer.poll(POLL_SECONDS)
        if callback is not None:
            self._tell(outcome[0], callback)
        if isinstance(outcome[0], ProduceError):
            raise outcome[0]
        return outcome[0]

    def flush(self) -> None:
        """Wait until each message is acknowledged or failed. Raise ProduceError if one without a callback failed."""
        self._producer.flush()
        failures, first = self._failures, self._first_failure
        self._failures, self._first_failure = 0, None
        if first is not None:
            raise ProduceError(f"{failures} messages were not acknowledged; the first: {first}") from first

    close = flush

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Flush. If the block raised an exception, suppress the ProduceError of the flush."""
        try:
            self.flush()
        except ProduceError:
            if error is None:
                raise

    def _enqueue(self, topic: str, value: bytes | None, key: bytes | None, done: Callable[[Any, Any], None]) -> None:
        partition = ANY_PARTITION if self._partitioner is None else self._chosen(self._partitioner, topic, key)
        waited_ms = 0
        while True:
            try:
                self._producer.produce(topic, value, key, partition, on_delivery=done)
                return
            except BufferError:
                if waited_ms >= self._enqueue_timeout_ms:
                    raise QueueFull(f"the queue stayed full for {waited_ms} ms") from None
                self._producer.poll(POLL_SECONDS)
                waited_ms += int(POLL_SECONDS * 1000)
            except KafkaException as error:
                raise ProduceError(f"{topic}: {error.args[0].str()}") from None

    def _chosen(self, partitioner: Partitioner, topic: str, key: bytes | None) -> int:
        partitions = self._partitions_of(topic)
        chosen = partitioner(key, partitions)
        if not 0 <= chosen < partitions:
            raise ValueError(f"the partitioner chose {chosen}; {topic} has partitions 0 to {partitions - 1}")
        return chosen

    def _partitions_of(self, topic: str) -> int:
        """Return a topic's number of partitions. Look it up only once, because a partitioner would move keys if the
        number changed."""
        if topic not in self._partitions:
            try:
                described = self._producer.list_topics(topic, timeout=self._timeout_ms / 1000).topics[topic]
            except KafkaException as error:
                raise ProduceError(f"{topic}: {self._servers}: {error.args[0].str()}") from None
            if described.error is not None:
                raise ProduceError(f"{topic}: {described.error.str()}")
            self._partitions[topic] = len(described.partitions)
        return self._partitions[topic]

    def _result(self, topic: str, error: Any, message: Any) -> ProduceError | Delivered:
        if error is None:
            return Delivered(topic, message.partition(), message.offset())
        if error.code() == KafkaError._MSG_TIMED_OUT:
            return ProduceError(f"{topic}: no answer from {self._servers} within {self._timeout_ms} ms")
        return ProduceError(f"{topic}: {error.str()}")

    def _tell(self, result: ProduceError | Delivered, callback: Callback | None) -> None:
        if callback is not None:
            if isinstance(result, ProduceError):
                callback(result, None)
            else:
                callback(None, result)
        elif isinstance(result, ProduceError):
            self._failures += 1
            self._first_failure = self._first_failure or result
