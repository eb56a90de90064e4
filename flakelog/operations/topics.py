"""Topics: create, list, describe, grow and delete them, and delete records from the beginning of their logs."""

from collections.abc import Mapping
from dataclasses import dataclass

from broker.client import topic_admin
from broker.client.api_versions import DELETE_RECORDS
from broker.client.blocking import Client
from broker.client.core import Partition, TopicInfo
from broker.client.errors import BrokerError
from flakelog.operations.configs import TOPIC_SOURCE, describe_configs, topic_resource
from flakelog.operations.errors import NotPossible
from flakelog.operations.partitions import ListedPartition, is_internal, list_partitions

BROKER_DEFAULT = topic_admin.BROKER_DEFAULT
TIMEOUT_MS = 30_000


@dataclass(frozen=True)
class TopicDescription:
    """A topic, the settings that are its own, and its partitions."""

    topic: TopicInfo
    settings: dict[str, str | None]
    partitions: list[ListedPartition]


def list_topics(client: Client, *, with_internal: bool = False) -> list[TopicInfo]:
    """Return the topics by name; the broker's own only with `with_internal`."""
    topics = [topic for topic in client.topics() if with_internal or not is_internal(topic.name)]
    return sorted(topics, key=lambda topic: topic.name)


def describe_topic(client: Client, name: str) -> TopicDescription:
    """Return a topic with its own settings, and its partitions without sizes, because not all brokers tell those."""
    topic = client.topic(name)
    values = describe_configs(client, topic_resource(name))
    settings = {value.name: value.value for value in values if value.source == TOPIC_SOURCE}
    return TopicDescription(topic, settings, list_partitions(client, [name], with_sizes=False))


def create_topic(
    client: Client,
    name: str,
    partitions: int = BROKER_DEFAULT,
    settings: Mapping[str, str] | None = None,
    *,
    replication_factor: int = BROKER_DEFAULT,
    validate_only: bool = False,
) -> None:
    """Create a topic, or only ask the broker whether it would."""
    core = client.core
    client.at_controller(
        lambda: topic_admin.create_topic(
            core, name, partitions, settings, replication_factor=replication_factor, validate_only=validate_only
        )
    )


def add_partitions(client: Client, topic: str, to: int, *, validate_only: bool = False) -> None:
    """Increase a topic's number of partitions to `to`, or only ask the broker whether it would."""
    core = client.core
    client.at_controller(lambda: topic_admin.add_partitions(core, topic, to, validate_only=validate_only))


def delete_records(client: Client, before: Mapping[Partition, int]) -> dict[Partition, int]:
    """Delete the records below these offsets; return the first offset that each log has now."""
    begins = {}
    for (topic, partition), offset in before.items():
        leader = client.run(client.core.leader(topic, partition))
        named = {"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}
        fields = {"topics": [named], "timeout": TIMEOUT_MS}
        response = client.run(client.core.ask(leader, DELETE_RECORDS, fields))
        result = response.topics[0].partitions[0]
        if result.error_code:
            raise BrokerError(int(result.error_code), f"{topic}-{partition}")
        begins[topic, partition] = int(result.low_watermark)
    return begins


def delete_topic(client: Client, name: str, *, id: str | None = None) -> None:
    """Delete a topic and all its records. With an id, raise NotPossible if the topic now has another.

    The id is for a user who has confirmed the deletion of a topic that was shown before.
    """
    if id is not None and str(client.topic(name).id) != id:
        raise NotPossible(f"{name} was deleted and made again since it was shown; begin again")
    client.delete_topic(name)
