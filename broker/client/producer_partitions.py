"""SHELL (librdkafka): the partitions of a producer's topics, and the user's choice among them."""

from collections.abc import Callable

from confluent_kafka import KafkaException
from confluent_kafka import Producer as Librdkafka

from broker.client.errors import ProduceError
from broker.client.producer_arguments import check_place
from broker.client.producer_outcomes import Calls

ANY_PARTITION = -1  # librdkafka chooses

Partitioner = Callable[[bytes | None, int], int]


class TopicPartitions:
    """The numbers of partitions of topics, looked up once: a partitioner would move keys if a number changed."""

    def __init__(
        self, producer: Librdkafka, calls: Calls, partitioner: Partitioner | None, servers: str, timeout_ms: int
    ) -> None:
        self._producer = producer
        self._calls = calls
        self._partitioner = partitioner
        self._servers = servers
        self._timeout_ms = timeout_ms
        self._numbers: dict[str, int] = {}

    def choose(self, topic: str, key: bytes | None) -> int:
        """Return the partition that the user's partitioner chooses, ANY_PARTITION without a partitioner."""
        if self._partitioner is None:
            return ANY_PARTITION
        partitions = self.number_of(topic)
        chosen = self._partitioner(key, partitions)
        if not isinstance(chosen, int) or not 0 <= chosen < partitions:
            raise ValueError(f"the partitioner chose {chosen!r}; {topic} has partitions 0 to {partitions - 1}")
        return chosen

    def number_of(self, topic: str) -> int:
        """Return a topic's number of partitions. Raise ProduceError, or TypeError or ValueError for no name."""
        check_place(topic, None, None)
        if topic not in self._numbers:
            try:
                with self._calls.enter():
                    described = self._producer.list_topics(topic, timeout=self._timeout_ms / 1000).topics[topic]
            except KafkaException as error:
                raise ProduceError(f"{topic}: {self._servers}: {error.args[0].str()}") from None
            if described.error is not None:
                raise ProduceError(f"{topic}: {described.error.str()}")
            self._numbers[topic] = len(described.partitions)
        return self._numbers[topic]
