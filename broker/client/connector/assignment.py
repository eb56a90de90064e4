"""The assignment of partitions to streams. Each consumer computes it, from data that all of them read.

For each topic, the partitions are sorted by their first replica and then by number. A change of leader does not move
the first replica, so all consumers see one order. The streams of all consumers are sorted by name. The i-th stream
gets the i-th slice, and the first streams get one partition more where the division leaves a rest. So one topic's
consumers differ by one partition at most.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from broker.client.connector.topic_filter import TopicStreams
from broker.client.registry.nodes import StreamId
from broker.cluster.documents import TopicPartition


@dataclass(frozen=True)
class TopicView:
    """A topic as ZooKeeper or the brokers' Metadata shows it.

    `first_replicas` has the first replica of each partition. `topic_id` and `czxid` tell a topic from an earlier one of
    the same name. Metadata has no czxid, which is that of the topic's node; a topic of Kafka before 2.8 has no id.
    """

    name: str
    first_replicas: Mapping[int, int]
    topic_id: str | None = None
    czxid: int | None = None

    @property
    def partitions(self) -> list[TopicPartition]:
        """Return the partitions in the order in which they are assigned."""
        numbers = sorted(self.first_replicas, key=lambda number: (self.first_replicas[number], number))
        return [TopicPartition(self.name, number) for number in numbers]


def assign(topics: Iterable[TopicView], consumers: Mapping[str, TopicStreams]) -> dict[TopicPartition, StreamId]:
    """Return the stream of each partition. A topic that no consumer reads has no partition in it."""
    assignment: dict[TopicPartition, StreamId] = {}
    for topic in topics:
        streams = [
            StreamId(consumer, number)
            for consumer, wanted in consumers.items()
            for number in range(wanted.streams_of(topic.name))
        ]
        assignment.update(_slices(topic.partitions, sorted(streams, key=str)))
    return assignment


def _slices(partitions: list[TopicPartition], streams: list[StreamId]) -> dict[TopicPartition, StreamId]:
    if not streams:
        return {}
    size, rest = divmod(len(partitions), len(streams))
    owners = [stream for index, stream in enumerate(streams) for _ in range(size + (index < rest))]
    return dict(zip(partitions, owners, strict=True))
