"""The placement of partitions: the leaders of each broker, the copies of each partition, and which of them fail."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from broker.client.blocking import Client
from broker.client.core import Partition
from broker.metadata.topic import INTERNAL_TOPICS
from flakelog.operations.cluster import Cluster, describe_cluster, problems_by_broker
from flakelog.operations.configs import broker_resource, describe_configs
from flakelog.operations.partitions import Replicas, replicas
from flakelog.operations.replica_details import ReplicaDetails, find_details

REPLICATION_ENABLE = "flakelog.replication.enable"


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
class PlacedPartition:
    """A partition with its copies. Details that brokers do not tell are None, or are left out."""

    topic: str
    partition: int
    nodes: Replicas
    eligible_leaders: tuple[int, ...] | None
    """The ELR: copies that may lead although they are not in sync (KIP-966)."""
    min_in_sync: int | None
    """min.insync.replicas, at most the number of copies."""
    lags: Mapping[int, int]
    """How many committed messages the copies lack, by broker. The leader has none."""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def leader(self) -> int | None:
        return self.nodes.leader if self.nodes.leader >= 0 else None

    @property
    def preferred_leader(self) -> int | None:
        return self.nodes.replicas[0] if self.nodes.replicas else None

    @property
    def is_offline(self) -> bool:
        """True if the partition has no leader now."""
        return self.leader is None

    @property
    def untrusted(self) -> tuple[int, ...]:
        """The live brokers in ISR and ELR of an offline partition. One of them will lead if an election is under way.
        Otherwise they stopped uncleanly and may lack records that the others have."""
        return self._members(live=True)

    @property
    def waits_for(self) -> tuple[int, ...]:
        """The brokers in ISR and ELR of an offline partition that are not live, or whose disk failed."""
        return self._members(live=False)

    def _members(self, *, live: bool) -> tuple[int, ...]:
        members = (*self.nodes.in_sync, *(self.eligible_leaders or ())) if self.is_offline else ()
        return tuple(sorted(broker for broker in members if (broker not in self.nodes.offline) == live))

    @property
    def is_under_replicated(self) -> bool:
        return len(self.nodes.in_sync) < len(self.nodes.replicas)

    @property
    def is_under_min_isr(self) -> bool:
        """True if acks=all is refused: fewer are in sync than min.insync.replicas, or there is no leader."""
        return self.is_offline or (self.min_in_sync is not None and len(self.nodes.in_sync) < self.min_in_sync)

    @property
    def is_at_min_isr(self) -> bool:
        """True if acks=all is refused once one more is not in sync."""
        return len(self.nodes.in_sync) == self.min_in_sync


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
    placed: tuple[PlacedPartition, ...] = ()
    """All partitions, with their copies."""
    coordinators_with_one_copy: tuple[str, ...] = ()
    """`__consumer_offsets` and `__transaction_state`, if they have one copy in a cluster that could have more."""
    problems: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """The problems of the cluster, by the broker that sees them. A broker without a problem is left out."""

    @property
    def has_copies(self) -> bool:
        """True if a partition has several copies."""
        return any(len(partition.nodes.replicas) > 1 for partition in self.placed)

    @property
    def all_on_broker(self) -> int | None:
        """The broker that has all partitions, though others are live; None if they are spread, or cannot be."""
        holders = [broker for broker in self.brokers if broker.replicas]
        others = [broker for broker in self.brokers if broker.live and not broker.replicas]
        return holders[0].id if len(holders) == 1 and self.partitions > 1 and others else None


def find_placement(client: Client) -> Placement:
    """Return the placement of all partitions, as the metadata of the cluster describe it."""
    nodes = replicas(client)
    placement = placement_of(describe_cluster(client), nodes, find_details(client, nodes))
    placement = replace(placement, problems=problems_by_broker(client))
    if placement.coordinators_with_one_copy and not (placement.has_copies or _replicates(client, placement)):
        return replace(placement, coordinators_with_one_copy=())
    return placement


def _replicates(client: Client, placement: Placement) -> bool:
    """Return True if the controller says that topics may have several copies."""
    configs = describe_configs(client, broker_resource(placement.controller), [REPLICATION_ENABLE])
    return any(config.value == "true" for config in configs)


def placement_of(
    cluster: Cluster, nodes: Mapping[Partition, Replicas], details: ReplicaDetails = ReplicaDetails()
) -> Placement:
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
        tuple(_placed(partition, replicas, details) for partition, replicas in nodes.items()),
        _coordinators_with_one_copy(nodes) if len(live) > 1 else (),
    )


def _placed(partition: Partition, nodes: Replicas, details: ReplicaDetails) -> PlacedPartition:
    copies = len(nodes.replicas)
    min_in_sync = details.min_in_sync.get(partition[0], 1 if copies == 1 else None)
    followers = [broker for broker in nodes.replicas if broker != nodes.leader]
    eligible = details.eligible.get(partition)  # Kafka 4 has the last members of an ISR in it, Metadata in the ISR
    if eligible is not None:
        eligible = tuple(broker for broker in eligible if broker not in nodes.in_sync)
    lags = {broker: lag for broker in followers if (lag := details.lags.get(broker, {}).get(partition)) is not None}
    return PlacedPartition(
        *partition,
        nodes,
        eligible,
        None if min_in_sync is None else min(min_in_sync, copies),
        lags if nodes.leader >= 0 else {},
    )


def _coordinators_with_one_copy(nodes: Mapping[Partition, Replicas]) -> tuple[str, ...]:
    single = {topic for (topic, _), replicas in nodes.items() if len(replicas.replicas) == 1}
    return tuple(sorted(single & INTERNAL_TOPICS))
