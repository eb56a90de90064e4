"""Where a consumer begins: committed offsets, the ends of the log, a time or an id, for many partitions at once."""

from collections.abc import Iterable

from broker.client.core import EARLIEST, LATEST, NOT_FOUND, Address, ClientCore, Partition, Steps
from broker.client.errors import ClientError
from broker.client.group_requests import CommittedOffset, fetch_offsets

EARLIEST_START, LATEST_START = "earliest", "latest"
STARTS = {EARLIEST_START: EARLIEST, LATEST_START: LATEST}


def committed_positions(
    core: ClientCore, coordinator: Address, group_id: str, partitions: Iterable[Partition]
) -> Steps[dict[Partition, CommittedOffset]]:
    """Return what the group has committed, without the partitions of which it has committed nothing.

    Raise BrokerError UNSTABLE_OFFSET_COMMIT while an open transaction may change one of them (KIP-447).
    """
    found = yield from fetch_offsets(core, coordinator, group_id, partitions)
    return {key: each for key, each in found.items() if each.offset >= 0}


def find_positions(
    core: ClientCore,
    partitions: Iterable[Partition],
    place: int,
    isolation_level: int,
    *,
    by_id: bool = False,
    failed: dict[Partition, ClientError] | None = None,
) -> Steps[dict[Partition, int]]:
    """Return {partition: its offset at EARLIEST or LATEST, or that of its first record at or after the time `place`}.

    If all records are older, the offset is the log's end. With `by_id`, `place` is an id; raise Unsupported if a broker
    keeps no ids. Raise the error of the first partition that has one. If `failed` is given, put the errors of
    partitions into it instead, and return the other partitions.
    """
    wanted = list(partitions)
    found = yield from core.list_offsets(wanted, place, by_id=by_id, isolation_level=isolation_level, failed=failed)
    missing = [key for key, offset in found.items() if offset is None]
    if missing:
        found |= yield from core.list_offsets(missing, LATEST, isolation_level=isolation_level, failed=failed)
    return {
        key: NOT_FOUND if offset is None else offset
        for key, offset in found.items()
        if failed is None or key not in failed
    }
