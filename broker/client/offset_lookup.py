"""The offsets that a position has in partitions: the brokers are asked, for many partitions at once."""

from collections.abc import Iterable

from broker.client.core import EARLIEST, LATEST, NOT_FOUND, ClientCore, Partition, Steps
from broker.client.errors import ClientError
from broker.client.offset_spec import (
    AtId,
    AtOffset,
    AtTime,
    Bounds,
    Earliest,
    Last,
    Latest,
    OffsetSpec,
    Position,
    position_of,
)
from broker.wire.fetch import READ_UNCOMMITTED


def find_bounds(
    core: ClientCore,
    partitions: Iterable[Partition],
    *,
    isolation_level: int = READ_UNCOMMITTED,
    failed: dict[Partition, ClientError] | None = None,
) -> Steps[dict[Partition, Bounds]]:
    """Return the bounds of partitions; at READ_COMMITTED a log ends at the start of its first open transaction.

    Raise the error of the first partition that has one. If `failed` is given, put the errors of partitions into it
    instead, and return the other partitions.
    """
    starts = yield from core.list_offsets(partitions, EARLIEST, failed=failed)
    ends = yield from core.list_offsets(starts, LATEST, isolation_level=isolation_level, failed=failed)
    bounds = {}
    for partition, end in ends.items():
        start, log_end = starts[partition], NOT_FOUND if end is None else end
        bounds[partition] = Bounds(log_end if start is None else start, log_end)
    return bounds


def find_positions(
    core: ClientCore, partitions: Iterable[Partition], spec: OffsetSpec, *, isolation_level: int = READ_UNCOMMITTED
) -> Steps[dict[Partition, Position]]:
    """Return the position in each partition, with the partition's bounds; raise as `find_bounds` does."""
    bounds = yield from find_bounds(core, partitions, isolation_level=isolation_level)
    matches: dict[Partition, int | None] = {}
    if isinstance(spec, (AtTime, AtId)):
        timestamp, by_id = _timestamp_of(spec)
        matches = yield from core.list_offsets(bounds, timestamp, by_id=by_id, isolation_level=isolation_level)
    return {partition: position_of(spec, within, matches.get(partition)) for partition, within in bounds.items()}


def find_offsets(
    core: ClientCore,
    partitions: Iterable[Partition],
    spec: OffsetSpec,
    *,
    isolation_level: int = READ_UNCOMMITTED,
    failed: dict[Partition, ClientError] | None = None,
) -> Steps[dict[Partition, int]]:
    """Return the offset in each partition by the fewest requests; that of a time or an id is the log's end if all
    messages are before it.

    Raise Unsupported for an id if a broker keeps no ids, and the error of the first partition that has one. If `failed`
    is given, put the errors of partitions into it instead, and return the other partitions.
    """
    if isinstance(spec, (AtOffset, Last)):
        bounds = yield from find_bounds(core, partitions, isolation_level=isolation_level, failed=failed)
        return {partition: position_of(spec, within).offset for partition, within in bounds.items()}
    timestamp, by_id = _timestamp_of(spec)
    offsets = yield from _offsets_at(core, partitions, timestamp, by_id, isolation_level, failed)
    return offsets


def find_offset(
    core: ClientCore, topic: str, partition: int, timestamp_ms: int, isolation_level: int = READ_UNCOMMITTED
) -> Steps[int]:
    """Return the offset at LATEST or EARLIEST, or the first at or after a time; the log's end if all are older.

    At READ_COMMITTED the log ends at the start of the first open transaction.
    """
    key = topic, partition
    offsets = yield from _offsets_at(core, [key], timestamp_ms, False, isolation_level, None)
    return offsets[key]


def find_id(core: ClientCore, topic: str, partition: int, id: int) -> Steps[int]:
    """Return the first offset whose id is at least `id`; the log's end if all ids are below.

    Raise Unsupported if the broker is not Flakelog.
    """
    key = topic, partition
    offsets = yield from _offsets_at(core, [key], id, True, READ_UNCOMMITTED, None)
    return offsets[key]


def _offsets_at(
    core: ClientCore,
    partitions: Iterable[Partition],
    timestamp: int,
    by_id: bool,
    isolation_level: int,
    failed: dict[Partition, ClientError] | None,
) -> Steps[dict[Partition, int]]:
    """Return the offsets of ListOffsets, and the log's end where it has none."""
    offsets = yield from core.list_offsets(
        partitions, timestamp, by_id=by_id, isolation_level=isolation_level, failed=failed
    )
    unmatched = [partition for partition, offset in offsets.items() if offset is None]
    if unmatched:
        offsets |= yield from core.list_offsets(unmatched, LATEST, isolation_level=isolation_level, failed=failed)
    return {
        partition: NOT_FOUND if offset is None else offset
        for partition, offset in offsets.items()
        if failed is None or partition not in failed
    }


def _timestamp_of(spec: Earliest | Latest | AtTime | AtId) -> tuple[int, bool]:
    """Return the timestamp of a ListOffsets request, and True if it is an id."""
    match spec:
        case Earliest():
            return EARLIEST, False
        case Latest():
            return LATEST, False
        case AtId(id):
            return id, True
        case AtTime(timestamp_ms):
            assert isinstance(timestamp_ms, int), "check_start makes a number of a datetime"
            return timestamp_ms, False
