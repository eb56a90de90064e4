"""The parts of a replica's description that Metadata lacks: the ELR, min.insync.replicas, and how far copies lag."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.client.api_versions import DESCRIBE_TOPIC_PARTITIONS
from broker.client.blocking import Client
from broker.client.core import Partition
from broker.client.errors import Unsupported
from flakelog.operations.cluster import lags_by_broker
from flakelog.operations.configs import values_of_topics
from flakelog.operations.partitions import Replicas

MIN_IN_SYNC = "min.insync.replicas"
PARTITIONS_AT_ONCE = 2_000
"""In an answer; a cursor leads to the next one."""


@dataclass(frozen=True)
class ReplicaDetails:
    """Details of partitions, as far as brokers tell them."""

    eligible: Mapping[Partition, tuple[int, ...]] = field(default_factory=dict)
    """The ELR (KIP-966)."""
    min_in_sync: Mapping[str, int] = field(default_factory=dict)
    """min.insync.replicas of each topic."""
    lags: Mapping[int, Mapping[Partition, int]] = field(default_factory=dict)
    """How many committed messages of its leader each copy lacks, by broker."""


def find_details(client: Client, nodes: Mapping[Partition, Replicas]) -> ReplicaDetails:
    """Return the details of the partitions that have several copies. Without such a partition, ask no broker."""
    topics = sorted({topic for (topic, _), replicas in nodes.items() if len(replicas.replicas) > 1})
    if not topics:
        return ReplicaDetails()
    min_in_sync = values_of_topics(client, topics, MIN_IN_SYNC)
    return ReplicaDetails(
        _eligible_leaders(client, topics),
        {topic: int(value) for topic, value in min_in_sync.items()},
        lags_by_broker(client),
    )


def _eligible_leaders(client: Client, topics: Iterable[str]) -> dict[Partition, tuple[int, ...]]:
    """Return the ELR of each partition; nothing from brokers before KIP-966."""
    eligible: dict[Partition, tuple[int, ...]] = {}
    fields: dict[str, Any] = {
        "topics": [{"name": topic} for topic in topics],
        "response_partition_limit": PARTITIONS_AT_ONCE,
        "cursor": None,
    }
    while True:
        try:
            answer = client.run(client.core.ask_any(DESCRIBE_TOPIC_PARTITIONS, fields))
        except Unsupported:
            return {}
        for topic in answer.topics:
            for row in topic.partitions:
                eligible[str(topic.name), int(row.partition_index)] = tuple(row.eligible_leader_replicas or ())
        if answer.next_cursor is None:
            return eligible
        cursor = answer.next_cursor
        fields["cursor"] = {"topic_name": cursor.topic_name, "partition_index": cursor.partition_index}
