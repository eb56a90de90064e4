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


def assign_replicas(
    racks: Mapping[int, str | None],
    partitions: int,
    replication_factor: int,
    spread: Spread,
    first_partition: int = 0,
) -> dict[int, tuple[int, ...]]:
    """Return the replicas of new partitions over brokers, given with the rack of each."""
    if partitions <= 0:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
    if replication_factor <= 0:
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0.")
    if replication_factor > len(racks):
        reason = f"Replication factor: {replication_factor} larger than available brokers: {len(racks)}."
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, reason)
    known_racks = {broker_id: rack for broker_id, rack in racks.items() if rack is not None}
    if known_racks and len(known_racks) < len(racks):
        reason = "Not all brokers have rack information for replica rack aware assignment."
        raise ApiError(ErrorCode.INVALID_REQUEST, reason)
    brokers = alternate_racks(known_racks) if known_racks else sorted(racks)
    shift = spread.shift
    replicas: dict[int, tuple[int, ...]] = {}
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % len(brokers) == 0:
            shift += 1
        first = (partition + spread.start) % len(brokers)
        if known_racks:
            replicas[partition] = _over_racks(brokers, known_racks, first, shift, replication_factor)
        else:
            others = (brokers[_replica_index(first, shift, j, len(brokers))] for j in range(replication_factor - 1))
            replicas[partition] = (brokers[first], *others)
    return replicas


def assign_added(
    racks: Mapping[int, str | None], partitions: int, first_replicas: Sequence[int], existing: int
) -> dict[int, tuple[int, ...]]:
    """Return the replicas of partitions that a topic gets beside its `existing` ones, as if it had begun with all.

    `first_replicas` are those of its first partition.
    """
    start = next((i for i, broker_id in enumerate(sorted(racks)) if broker_id >= first_replicas[0]), 0)
    return assign_replicas(racks, partitions, len(first_replicas), Spread(start, start), existing)


def alternate_racks(racks: Mapping[int, str]) -> list[int]:
    """Return the brokers so that those of one rack are as far apart as possible: one of each rack in turn."""
    by_rack: dict[str, list[int]] = {}
    for broker_id in sorted(racks):
        by_rack.setdefault(racks[broker_id], []).append(broker_id)
    rounds = max(map(len, by_rack.values()))
    return [by_rack[rack][turn] for turn in range(rounds) for rack in sorted(by_rack) if turn < len(by_rack[rack])]


def _over_racks(
    brokers: list[int], racks: Mapping[int, str], first: int, shift: int, replication_factor: int
) -> tuple[int, ...]:
    rack_count = len(set(racks.values()))
    replicas = [brokers[first]]
    used_racks = {racks[brokers[first]]}
    step = 0
    while len(replicas) < replication_factor:
        broker_id = brokers[_replica_index(first, shift * rack_count, step, len(brokers))]
        step += 1
        rack_is_free = racks[broker_id] not in used_racks or len(used_racks) == rack_count
        if rack_is_free and broker_id not in replicas:
            replicas.append(broker_id)
            used_racks.add(racks[broker_id])
    return tuple(replicas)


def _replica_index(first: int, shift: int, replica: int, brokers: int) -> int:
    return (first + 1 + (shift + replica) % (brokers - 1)) % brokers
