"""The registry of early Kafka's clients in ZooKeeper: its groups beside the logs that they read.

ZooKeeper has the groups' offsets and owners (`broker.client.registry.groups`), and the brokers have the ends of the
logs. Plans change nothing. Their execution needs a group without consumers, in ZooKeeper and, for a copy, in Kafka too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from broker.client.address import Address
from broker.client.blocking import Client
from broker.client.core import Partition
from broker.client.offset_spec import OffsetSpec, Position
from broker.client.registry import groups as registry_groups
from broker.client.registry.groups import RegistryGroup
from broker.client.registry.living_brokers import PLAINTEXT, LivingBrokers
from broker.cluster.documents import TopicPartition
from coordination.port import Coordinator, run
from flakelog.operations import groups
from flakelog.operations.errors import NotPossible
from flakelog.operations.group_reset import at_end_of, find_targets
from flakelog.operations.partitions import ends_of

REMEDY = "give security.protocol by --command-config, or name the brokers by --servers"


class RegistryPosition(NamedTuple):
    """A group's position in a partition: its offset in ZooKeeper, the log's end, and the stream that owns it."""

    topic: str
    partition: int
    offset: int | None
    end: int | None
    owner: str | None

    @property
    def lag(self) -> int | None:
        """The number of messages after the offset; None if it is not known."""
        return groups.lag_of(self.offset, self.end)


@dataclass(frozen=True)
class RegistryProgress:
    """A group in ZooKeeper, and its position in each partition that it has an offset of or owns, sorted."""

    group: RegistryGroup
    positions: tuple[RegistryPosition, ...]

    @property
    def lag(self) -> int:
        return sum(position.lag or 0 for position in self.positions)


@dataclass(frozen=True)
class OffsetMove:
    """The offsets of a group before and after a move or a copy. `before` are those of the side that is written."""

    name: str
    group: RegistryGroup
    before: Mapping[Partition, int]
    after: Mapping[Partition, int]
    positions: Mapping[Partition, Position]
    """Where a move goes; empty for a copy."""
    members: int
    """How many consumers have to be stopped first."""

    @property
    def at_end(self) -> list[Partition]:
        return at_end_of(self.positions)


def read_brokers(coordinator: Coordinator, now_ms: int, protocol: str = PLAINTEXT) -> LivingBrokers:
    """Return the brokers that are registered in ZooKeeper, by their listeners of a protocol."""
    brokers = LivingBrokers(protocol)
    run(coordinator, brokers.read(now_ms))
    return brokers


def servers_of(brokers: LivingBrokers) -> str:
    """Return the addresses of the brokers as one text. Raise NotPossible if there are none."""
    addresses: Iterable[Address] = brokers.addresses.values()
    if not brokers.addresses:
        raise NotPossible(f"ZooKeeper names no broker to ask: {brokers.problem}; {REMEDY}")
    return ",".join(map(str, addresses))


def list_groups(coordinator: Coordinator) -> list[str]:
    """Return the names of all groups, sorted."""
    return list(run(coordinator, registry_groups.read_names()))


def read_group(coordinator: Coordinator, name: str) -> RegistryGroup:
    """Return a group. Raise NotPossible if ZooKeeper has none of that name."""
    group = _group(coordinator, name)
    if not group.nodes:
        names = ", ".join(list_groups(coordinator)) or "none"
        raise NotPossible(f"there is no group {name} in ZooKeeper; there are: {names}")
    return group


def _group(coordinator: Coordinator, name: str) -> RegistryGroup:
    try:
        return run(coordinator, registry_groups.read_group(name))
    except ValueError as error:  # no node can have this name
        raise NotPossible(str(error)) from error


def progress(coordinator: Coordinator, client: Client, name: str) -> RegistryProgress:
    """Return a group with its positions. Raise NotPossible if ZooKeeper has none of that name."""
    group = read_group(coordinator, name)
    partitions = sorted(group.offsets.keys() | group.owners.keys())
    ends = ends_of(client, partitions)
    positions = [
        RegistryPosition(
            *partition,
            group.offsets.get(partition),
            ends.get(partition),
            str(group.owners[partition]) if partition in group.owners else None,
        )
        for partition in partitions
    ]
    return RegistryProgress(group, tuple(positions))


def plan_move(
    coordinator: Coordinator,
    client: Client,
    name: str,
    spec: OffsetSpec,
    topics: Iterable[str] = (),
    numbers: Iterable[int] = (),
) -> OffsetMove:
    """Plan to move a group to a position, as `group_reset.plan_reset` does for one of Kafka's groups."""
    group = _group(coordinator, name)
    before = _offsets_of(group)
    positions = find_targets(client, name, before, spec, topics, numbers)
    after = {partition: position.offset for partition, position in positions.items()}
    return OffsetMove(name, group, before, after, positions, len(group.consumers))


def carry_out_move(coordinator: Coordinator, plan: OffsetMove) -> None:
    """Write the offsets of a plan to ZooKeeper, all or none. Raise GroupLives or GroupChanged."""
    offsets = {TopicPartition(*partition): offset for partition, offset in plan.after.items()}
    run(coordinator, registry_groups.move(plan.group, offsets))


def plan_copy_to_kafka(coordinator: Coordinator, client: Client, name: str, kafka_name: str) -> OffsetMove:
    """Plan to commit the offsets that ZooKeeper has as those of Kafka's group `kafka_name`."""
    group = read_group(coordinator, name)
    members = len(groups.describe_group(client, kafka_name).members) + len(group.consumers)
    before = groups.committed(client, kafka_name)
    return OffsetMove(kafka_name, group, before, _of_known(client, _offsets_of(group)), {}, members)


def carry_out_to_kafka(client: Client, plan: OffsetMove) -> None:
    """Commit the offsets of a plan. Raise NotPossible or GroupLives if one of the two groups has members.

    A consumer in ZooKeeper that comes to life after the plan reads on from there: the copy is then an older position.
    """
    registry_groups.check_stopped(plan.group)
    groups.check_stopped(groups.describe_group(client, plan.name))
    groups.commit(client, plan.name, plan.after)


def plan_copy_from_kafka(coordinator: Coordinator, client: Client, kafka_name: str, name: str) -> OffsetMove:
    """Plan to write the committed offsets of Kafka's group `kafka_name` to ZooKeeper."""
    described = groups.describe_group(client, kafka_name)
    offsets = groups.committed(client, kafka_name)
    if not offsets:
        raise NotPossible(f"group {kafka_name} has committed no offsets in Kafka")
    group = _group(coordinator, name)
    members = len(described.members) + len(group.consumers)
    return OffsetMove(name, group, _offsets_of(group), _of_known(client, offsets), {}, members)


def carry_out_from_kafka(coordinator: Coordinator, client: Client, plan: OffsetMove, kafka_name: str) -> None:
    """Write the offsets of a plan to ZooKeeper, all or none. Raise NotPossible, GroupLives or GroupChanged."""
    groups.check_stopped(groups.describe_group(client, kafka_name))
    carry_out_move(coordinator, plan)


def _offsets_of(group: RegistryGroup) -> dict[Partition, int]:
    return {(partition.topic, partition.partition): offset for partition, offset in group.offsets.items()}


def _of_known(client: Client, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return the offsets of partitions that the brokers have. Raise NotPossible if there is none."""
    ends = ends_of(client, offsets)
    known = {partition: offset for partition, offset in offsets.items() if partition in ends}
    if not known:
        raise NotPossible("the brokers have none of the group's partitions")
    return known


def untouched(coordinator: Coordinator, names: Iterable[str], before_ms: int) -> list[RegistryGroup]:
    """Return the groups without consumers whose nodes were all written before this time, of these names or of all.

    The times are those of ZooKeeper's clock. A consumer writes its nodes when it starts, claims and commits.
    """
    wanted = list(names)
    listed = [read_group(coordinator, name) for name in wanted or list_groups(coordinator)]
    return [group for group in listed if not group.is_living and group.touched_ms < before_ms]


def remove(coordinator: Coordinator, group: RegistryGroup) -> None:
    """Remove a group with its offsets. Raise GroupLives or GroupChanged."""
    run(coordinator, registry_groups.remove(group))
