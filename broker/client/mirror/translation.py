"""Which offsets of a source's group are written into the target."""

from collections.abc import Callable, Mapping

from broker.client.group_admin import ListedGroup
from broker.client.leaders import Partition
from broker.client.mirror.offset_pairs import OffsetPairs

WITHOUT_MEMBERS = ("Empty", "Dead", "")  # a broker before KIP-518 lists no state; it refuses the commit itself


def takes_offsets(group: ListedGroup | None) -> bool:
    """Return True if a group of the target has no members, or does not exist."""
    return group is None or group.state in WITHOUT_MEMBERS


def translated(
    offsets: Mapping[Partition, int],
    pairs: Mapping[Partition, OffsetPairs],
    known: Mapping[Partition, int],
    target_of: Callable[[Partition], Partition],
) -> dict[Partition, int]:
    """Return the offsets to write, by partition of the target.

    `offsets` are those of the group at the source, and `known` those that it has at the target. An offset never goes
    back. It is never past what the target has, because the pairs come from its acknowledgements.
    """
    wanted = {}
    for key, offset in offsets.items():
        target = pairs[key].translate(offset) if key in pairs else None
        if target is not None and target > known.get(target_of(key), -1):
            wanted[target_of(key)] = target
    return wanted
