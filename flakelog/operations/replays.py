"""Replays: the ranges that one would read, and the bytes that they probably have."""

from typing import TYPE_CHECKING, NamedTuple

from broker.client.blocking import Client
from broker.client.core import Partition
from broker.client.errors import ClientError
from flakelog.operations.cluster import partition_sizes
from flakelog.operations.partitions import bounds_of_all

if TYPE_CHECKING:
    from spark_bridge.selection.manifest import Manifest


class PlannedRange(NamedTuple):
    """A range of a plan. `bytes` is an estimate, None if the broker gives none."""

    topic: str
    partition: int
    start: int
    end: int
    rows: int
    bytes: int | None


def plan(client: Client, manifest: "Manifest") -> list[PlannedRange]:
    """Return the ranges of a manifest with the bytes that they probably have in the log."""
    try:
        sizes = partition_sizes(client)
    except ClientError:
        sizes = {}  # a broker may not have the request, or not allow it
    measured = {(part.topic, part.partition) for part in manifest.ranges} & sizes.keys()
    per_offset: dict[Partition, float] = {
        partition: sizes[partition] / max(end - begin, 1)
        for partition, (begin, end) in bounds_of_all(client, measured).items()
    }
    planned = []
    for part in manifest.ranges:
        bytes_each = per_offset.get((part.topic, part.partition))
        size = None if bytes_each is None else round(bytes_each * part.offsets)
        planned.append(PlannedRange(part.topic, part.partition, part.start, part.end, part.offsets, size))
    return planned
