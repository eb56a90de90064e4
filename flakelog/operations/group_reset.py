"""The reset of a consumer group's offsets: a plan that changes nothing, and its execution.

The plan of a group that runs is allowed; its execution needs a group without members. An offset that a log does not
have is refused. A time after all messages of a partition is the partition's end, and the plan says so.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from broker.client.blocking import Client
from broker.client.core import Partition
from broker.client.offset_spec import OffsetSpec, Position
from broker.client.subscription import check_offset
from flakelog.operations import groups
from flakelog.operations.errors import NotPossible
from flakelog.operations.partitions import partitions_of, positions_at, positions_of
from flakelog.visible_text import count_of


@dataclass(frozen=True)
class GroupReset:
    """The committed offsets that a group has, and the positions that it is to have in the partitions of the reset."""

    group: groups.Group
    before: Mapping[Partition, int]
    positions: Mapping[Partition, Position]

    @property
    def after(self) -> dict[Partition, int]:
        return {partition: position.offset for partition, position in self.positions.items()}

    @property
    def at_end(self) -> list[Partition]:
        return at_end_of(self.positions)


def at_end_of(positions: Mapping[Partition, Position]) -> list[Partition]:
    """Return the partitions that go to their end because all their messages are before the time."""
    return [partition for partition, position in positions.items() if position.wanted is None]


def plan_reset(
    client: Client, group_id: str, spec: OffsetSpec, topics: Iterable[str] = (), numbers: Iterable[int] = ()
) -> GroupReset:
    """Plan to move a group to a position, in all partitions of these topics, or in those that it has committed.

    With `numbers`, only in partitions of these numbers. Raise NotPossible if none is left, or if a log does not have
    the offset of an AtOffset.
    """
    group = groups.describe_group(client, group_id)
    before = groups.committed(client, group_id)
    return GroupReset(group, before, find_targets(client, group_id, before, spec, topics, numbers))


def plan_offsets(client: Client, group_id: str, offsets: Mapping[Partition, int]) -> GroupReset:
    """Plan to move a group, which need not exist, to these offsets.

    Raise ValueError for an offset below 0, NotPossible if a log does not have one of them.
    """
    for partition, offset in offsets.items():
        check_offset(partition, offset)
    group = groups.describe_group(client, group_id)
    before = groups.committed(client, group_id)
    return GroupReset(group, before, positions_at(client, offsets))


def find_targets(
    client: Client,
    name: str,
    before: Iterable[Partition],
    spec: OffsetSpec,
    topics: Iterable[str] = (),
    numbers: Iterable[int] = (),
) -> dict[Partition, Position]:
    """Return the positions to which a group moves that has offsets of the partitions `before`; see `plan_reset`."""
    named, only = list(topics), set(numbers)
    known = list(partitions_of(client, named) if named else before)
    partitions = [partition for partition in known if not only or partition[1] in only]
    if not partitions:
        which = f"partition {', '.join(map(str, sorted(only)))}"
        if named:
            counts = Counter(topic for topic, _ in known)
            has = ", ".join(f"{topic} has {count_of(number, 'partition')}" for topic, number in counts.items())
            raise NotPossible(f"{', '.join(named)} has no {which}: {has}, from 0 on")
        where = f" in {which}" if only else ""
        raise NotPossible(f"group {name} has committed no offsets{where}; name a topic it is to begin with")
    return positions_of(client, partitions, spec)


def carry_out(client: Client, reset: GroupReset) -> None:
    """Commit the offsets of a plan. Raise NotPossible if the group has members now."""
    group_id = reset.group.group_id
    groups.check_stopped(groups.describe_group(client, group_id))
    groups.commit(client, group_id, reset.after)
