"""Turns UpdateMetadata into changes of the image of a cluster (Kafka's ZkMetadataCache)."""

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from broker.cluster.documents import LEADER_DURING_DELETE
from broker.cluster.orders import FULL
from broker.metadata.change import Change
from broker.metadata.image import Image, RegisteredBroker
from broker.metadata.topic import NO_LEADER, PartitionState, Topic

_UNKNOWN = PartitionState(NO_LEADER, -1, (), ())


def live_brokers(order: Any) -> list[RegisteredBroker]:
    return [
        RegisteredBroker(
            int(broker.id_),
            {str(endpoint.listener): (str(endpoint.host), int(endpoint.port)) for endpoint in broker.endpoints},
            broker.rack,
        )
        for broker in order.live_brokers
    ]


def topics_of(image: Image, order: Any, settings_of: Callable[[str], Mapping[str, str]]) -> Change:
    """Return the change of the image's topics that an UpdateMetadata asks for.

    A FULL one replaces all topics: those that it does not name were deleted while this broker heard no controller.
    """
    topics: dict[str, Topic | None] = {}
    if order.type_ == FULL:
        topics = {topic.name: None for topic in image.topics()}
    for ordered in order.topic_states:
        name = str(ordered.topic_name)
        if any(state.leader == LEADER_DURING_DELETE for state in ordered.partition_states):
            if image.topic(name) is not None:
                topics[name] = None
            continue
        topic_id = ordered.topic_id or UUID(int=0)
        known = image.topic(name)
        is_same = known is not None and known.id == topic_id
        partitions = list(known.partitions) if known is not None and is_same else []
        for state in ordered.partition_states:
            partitions += [_UNKNOWN] * (state.partition_index + 1 - len(partitions))
            partitions[state.partition_index] = PartitionState(
                int(state.leader),
                int(state.leader_epoch),
                tuple(map(int, state.replicas)),
                tuple(map(int, state.isr)),
                int(state.zk_version),
                elr=tuple(map(int, state.elr)),
                offline=tuple(map(int, state.offline_replicas)),
            )
        topics[name] = Topic(name, topic_id, tuple(partitions), dict(settings_of(name)))
    return Change(topics)
