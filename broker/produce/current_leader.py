"""The leader that an answer of Produce or Fetch names when the request should have gone there (KIP-951)."""

from collections.abc import Iterable
from uuid import UUID

from broker.metadata.image import Image
from broker.wire import produce
from broker.wire.current_leader import CurrentLeader, NodeEndpoint
from broker.wire.errors import ErrorCode
from broker.wire.produce import PartitionResult

ELSEWHERE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
"""The errors that come with the current leader."""


def current_leader(metadata: Image, topic: str | UUID, partition: int, listener: str) -> CurrentLeader | None:
    """Return a partition's leader, as clients of a listener reach it; None if the partition is unknown."""
    described = metadata.topic(topic)
    if described is None or not 0 <= partition < len(described.partitions):
        return None
    state = described.partitions[partition]
    node = metadata.node(state.leader, listener)
    return CurrentLeader(state.leader, state.leader_epoch, None if node is None else NodeEndpoint(*node))


def with_leaders(
    results: Iterable[PartitionResult], metadata: Image, version: int, listener: str
) -> list[PartitionResult]:
    """Return the results of a Produce, with the leaders of the partitions that are led elsewhere."""
    if version < produce.CURRENT_LEADERS:
        return list(results)
    return [
        result._replace(leader=current_leader(metadata, result.topic, result.partition, listener))
        if result.error_code in ELSEWHERE
        else result
        for result in results
    ]
