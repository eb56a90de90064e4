"""Partitions of a topic that other brokers of the cluster lead: their offsets come from their leaders, by a client.

This broker has the logs of the other partitions. A server alone leads all of them, and sends no request.
"""

from collections.abc import Callable, Collection, Mapping

from broker.client.blocking import Client
from broker.client.core import EARLIEST, LATEST, Partition
from broker.client.errors import ClientError
from broker.metadata.topic import NO_LEADER
from broker.services.context import BrokerServices
from flakelog.console.messages import PartitionBounds

UNKNOWN = PartitionBounds(0, 0)


def led_elsewhere(services: BrokerServices, topic: str) -> tuple[int, ...]:
    """Return the partitions of a topic that another live broker leads."""
    described = services.metadata.topic(topic)
    if described is None or services.is_alone:
        return ()
    here = NO_LEADER, services.node.id
    return tuple(number for number, state in enumerate(described.partitions) if state.leader not in here)


def candidates_elsewhere(
    services: BrokerServices, partitions_max: int, sees_topic: Callable[[str], bool]
) -> list[Partition]:
    """Return partitions that other brokers lead, of all topics that may be seen, up to a limit."""
    if services.is_alone:
        return []
    names = [topic.name for topic in services.metadata.topics() if sees_topic(topic.name)]
    return [(name, number) for name in names for number in led_elsewhere(services, name)][:partitions_max]


def bounds_elsewhere(client: Client, topic: str, numbers: Collection[int]) -> dict[int, PartitionBounds]:
    """Return the offsets of partitions, without those whose leader does not answer."""
    if not numbers:
        return {}
    failed: dict[Partition, ClientError] = {}
    partitions = [(topic, number) for number in numbers]
    starts = client.run(client.core.list_offsets(partitions, EARLIEST, failed=failed))
    ends = client.run(client.core.list_offsets(starts, LATEST, failed=failed))
    bounds = {}
    for (_, number), end in ends.items():
        start = starts[topic, number]
        if start is not None and end is not None:
            bounds[number] = PartitionBounds(start, end)
    return bounds


def all_bounds(
    client: Client, topic: str, here: Mapping[int, PartitionBounds], elsewhere: Collection[int]
) -> dict[int, PartitionBounds]:
    """Return the offsets of the partitions here and elsewhere, by number."""
    return dict(sorted({**here, **bounds_elsewhere(client, topic, elsewhere)}.items()))
