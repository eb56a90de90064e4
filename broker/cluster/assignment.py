"""Which brokers get the replicas of new partitions: Kafka's AdminUtils, so that both spread a topic in the same way.

Partition N's first replica is on broker (start + N) of the sorted brokers, its others follow at a shift that grows with
each round. With racks, the brokers of different racks alternate, and no rack has two replicas while another has none.
The caller draws `start` and `shift` at random, because this module has no chance.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from broker.wire.errors import ApiError, ErrorCode


class Spread(NamedTuple):
    """Where the first replica of partition 0 lies, and how far from it the second; both below the number of brokers."""

    start: int
    shift: int


class Brokers(NamedTuple):
    """The live brokers, in the order in which replicas are spread over them."""

    ids: Sequence[int]
    racks: Mapping[int, str]
    """The racks of those that have one."""


def in_order(racks: Mapping[int, str | None]) -> Brokers:
    """Return live brokers, given with the rack of each, for `assign_replicas`."""
    known_racks = {broker_id: rack for broker_id, rack in racks.items() if rack is not None}
    has_racks = known_racks and len(known_racks) == len(racks)
    return Brokers(alternate_racks(known_racks) if has_racks else sorted(racks), known_racks)


def assign_replicas(
    brokers: Brokers,
    partitions: int,
    replication_factor: int,
    spread: Spread,
    first_partition: int = 0,
) -> dict[int, tuple[int, ...]]:
    """Return the replicas of new partitions. Raise ApiError if they cannot be placed."""
    ids, racks = brokers
    if partitions <= 0:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
    if replication_factor <= 0:
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0.")
    if replication_factor > len(ids):
        reason = f"Replication factor: {replication_factor} larger than available brokers: {len(ids)}."
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, reason)
    if racks and len(racks) < len(ids):
        reason = "Not all brokers have rack information for replica rack aware assignment."
        raise ApiError(ErrorCode.INVALID_REQUEST, reason)
    shift = spread.shift
    replicas: dict[int, tuple[int, ...]] = {}
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % len(ids) == 0:
            shift += 1
        first = (partition + spread.start) % len(ids)
        if racks:
            replicas[partition] = _over_racks(brokers, first, shift, replication_factor)
        else:
            others = [ids[_replica_index(first, shift, j, len(ids))] for j in range(replication_factor - 1)]
            replicas[partition] = (ids[first], *others)
    return replicas


def assign_added(
    brokers: Brokers, partitions: int, first_replicas: Sequence[int], existing: int
) -> dict[int, tuple[int, ...]]:
    """Return the replicas of partitions that a topic gets beside its `existing` ones, as if it had begun with all.

    `first_replicas` are those of its first partition.
    """
    start = next((i for i, broker_id in enumerate(sorted(brokers.ids)) if broker_id >= first_replicas[0]), 0)
    return assign_replicas(brokers, partitions, len(first_replicas), Spread(start, start), existing)


def alternate_racks(racks: Mapping[int, str]) -> list[int]:
    """Return the brokers so that those of one rack are as far apart as possible: one of each rack in turn."""
    by_rack: dict[str, list[int]] = {}
    for broker_id in sorted(racks):
        by_rack.setdefault(racks[broker_id], []).append(broker_id)
    rounds = max(map(len, by_rack.values()))
    return [by_rack[rack][turn] for turn in range(rounds) for rack in sorted(by_rack) if turn < len(by_rack[rack])]


def _over_racks(brokers: Brokers, first: int, shift: int, replication_factor: int) -> tuple[int, ...]:
    ids, racks = brokers
    rack_count = len(set(racks.values()))
    replicas = [ids[first]]
    used_racks = {racks[ids[first]]}
    step = 0
    while len(replicas) < replication_factor:
        broker_id = ids[_replica_index(first, shift * rack_count, step, len(ids))]
        step += 1
        rack_is_free = racks[broker_id] not in used_racks or len(used_racks) == rack_count
        if rack_is_free and broker_id not in replicas:
            replicas.append(broker_id)
            used_racks.add(racks[broker_id])
    return tuple(replicas)


def _replica_index(first: int, shift: int, replica: int, brokers: int) -> int:
    return (first + 1 + (shift + replica) % (brokers - 1)) % brokers
