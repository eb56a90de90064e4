"""The placement of partitions: the leaders of each broker, and the partitions that no broker serves now."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from broker.client.blocking import Client
from broker.client.core import Partition
from flakelog.operations.cluster import Cluster, describe_cluster
from flakelog.operations.partitions import Replicas, replicas


class PlacedBroker(NamedTuple):
    """A broker with the number of partitions that it leads, and that have a replica on it.

    A broker that is not live is known by its partitions only: its address and its rack are None.
    """

    id: int
    address: str | None
    rack: str | None
    live: bool
    leads: int
    replicas: int


@dataclass(frozen=True)
class Placement:
    """A cluster with its brokers, and where its partitions are. The broker's own topics count too."""

    cluster_id: str | None
    controller: int
    topics: int
    partitions: int
    brokers: tuple[PlacedBroker, ...]
    offline: tuple[Partition, ...]
    """The partitions that have no leader now."""

    @property
    def all_on_broker(self) -> int | None:
        """The broker that has all partitions, though others are live; None if they are spread, or cannot be."""
        holders = [broker for broker in self.brokers if broker.replicas]
        others = [broker for broker in self.brokers if broker.live and not broker.replicas]
        return holders[0].id if len(holders) == 1 and self.partitions > 1 and others else None


def find_placement(client: Client) -> Placement:
    """Return the placement of all partitions, as the metadata of the cluster describe it."""
    return placement_of(describe_cluster(client), replicas(client))


def placement_of(cluster: Cluster, nodes: Mapping[Partition, Replicas]) -> Placement:
    """Return the placement of partitions on the brokers of a cluster, and on those that only replicas name."""
    leads = Counter(partition.leader for partition in nodes.values())
    held = Counter(broker for partition in nodes.values() for broker in partition.replicas)
    live = {broker.id: broker for broker in cluster.brokers}
    brokers = []
    for number in sorted(live.keys() | held.keys()):
        broker = live.get(number)
        address, rack = (broker.address, broker.rack) if broker is not None else (None, None)
        brokers.append(PlacedBroker(number, address, rack, broker is not None, leads[number], held[number]))
    return Placement(
        cluster.id,
        cluster.controller,
        len({topic for topic, _ in nodes}),
        len(nodes),
        tuple(brokers),
        tuple(partition for partition, replicas in nodes.items() if replicas.leader < 0),
    )
