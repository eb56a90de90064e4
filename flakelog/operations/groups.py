"""Consumer groups: list, describe and delete them, their committed offsets and their lag."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from broker.client import group_admin
from broker.client.api_versions import DELETE_GROUPS, DESCRIBE_GROUPS
from broker.client.blocking import Client
from broker.client.core import Partition
from broker.client.errors import BrokerError
from broker.client.group_admin import ListedGroup
from broker.client.group_protocol import decode_assignment
from broker.client.group_requests import CommittedOffset, GroupIdentity, commit_offsets, find_coordinator
from broker.client.subscription import check_offset
from broker.wire.errors import WireError
from flakelog.operations.errors import NotPossible
from flakelog.operations.partitions import ends_of
from flakelog.visible_text import count_of

CONSUMER = "consumer"  # the only protocol type whose assignments can be decoded
DEAD = "Dead"


class Member(NamedTuple):
    member_id: str
    client_id: str
    host: str
    partitions: tuple[Partition, ...]


class Group(NamedTuple):
    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[Member, ...]


@dataclass(frozen=True)
class GroupPosition:
    """A group's position in a partition: its committed offset, the end of the log, and the member that reads it."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    member: Member | None

    @property
    def lag(self) -> int | None:
        """The number of offsets that are not committed yet; None if it is not known."""
        return lag_of(self.committed, self.end)

    @property
    def is_beyond_end(self) -> bool:
        """True if the group has committed an offset that the log does not have yet: its readers would begin again."""
        return self.committed is not None and self.end is not None and self.committed > self.end


@dataclass(frozen=True)
class GroupProgress:
    """A group, and its position in each partition that it has committed or reads, sorted."""

    group: Group
    positions: tuple[GroupPosition, ...]

    @property
    def lag(self) -> int:
        return sum(position.lag or 0 for position in self.positions)


def list_groups(client: Client) -> list[ListedGroup]:
    """Return the groups of all nodes, sorted by id."""
    return client.run(group_admin.list_groups(client.core))


def describe_group(client: Client, group_id: str) -> Group:
    """Return a group and its members. The state of an unknown group is `DEAD`."""
    address = client.run(find_coordinator(client.core, group_id))
    response = client.run(client.core.ask(address, DESCRIBE_GROUPS, {"groups": [group_id]}))
    group = response.groups[0]
    _check(group.error_code, f"group {group_id}")
    members = tuple(
        Member(
            member.member_id,
            member.client_id,
            member.client_host,
            assigned_partitions(group.protocol_type, member.member_assignment),
        )
        for member in group.members
    )
    return Group(group_id, group.group_state, group.protocol_type, group.protocol_data, members)


def committed(client: Client, group_id: str) -> dict[Partition, int]:
    """Return a group's committed offsets, by topic and partition."""
    return client.run(group_admin.committed_offsets(client.core, group_id))


def progress(client: Client, group_id: str) -> GroupProgress:
    """Return a group with its positions. Raise NotPossible if there is no such group."""
    group = describe_group(client, group_id)
    offsets = committed(client, group_id)
    _check_known(group, offsets)
    owners = {partition: member for member in group.members for partition in member.partitions}
    partitions = sorted(offsets.keys() | owners.keys())
    ends = ends_of(client, partitions)
    positions = [
        GroupPosition(*partition, offsets.get(partition), ends.get(partition), owners.get(partition))
        for partition in partitions
    ]
    return GroupProgress(group, tuple(positions))


def lag(client: Client, group_id: str) -> dict[Partition, int]:
    """Return the number of offsets between what a group has committed and the end of each partition.

    Partitions whose end no broker tells now are left out, such as those of a topic that was deleted.
    """
    offsets = committed(client, group_id)
    lags = {partition: lag_of(offsets[partition], end) for partition, end in ends_of(client, offsets).items()}
    return {partition: number for partition, number in lags.items() if number is not None}


def commit(client: Client, group_id: str, offsets: Mapping[Partition, int]) -> None:
    """Commit offsets for a group without members, which need not exist. Raise ValueError for a wrong offset.

    As Apache Kafka, the broker takes each offset of at least 0: it does not look whether the log has it.
    """
    for key, offset in offsets.items():
        check_offset(key, offset)
    address = client.run(find_coordinator(client.core, group_id))
    commits = {partition: CommittedOffset(offset) for partition, offset in offsets.items()}
    errors = client.run(commit_offsets(client.core, address, GroupIdentity(group_id), commits))
    for (topic, partition), error in errors.items():
        _check(error, f"group {group_id}, {topic}-{partition}")


def check_deletable(client: Client, group_id: str) -> None:
    """Raise NotPossible if there is no such group, or if it has members."""
    group = describe_group(client, group_id)
    _check_known(group, committed(client, group_id))
    check_stopped(group)


def check_stopped(group: Group) -> None:
    """Raise NotPossible if the group has members, because the broker then refuses to move or to delete it."""
    if group.members:
        members = count_of(len(group.members), "member")
        raise NotPossible(f"group {group.group_id} is {group.state} with {members}; stop them first")


def delete_group(client: Client, group_id: str) -> None:
    """Delete a group without members, and its committed offsets."""
    address = client.run(find_coordinator(client.core, group_id))
    response = client.run(client.core.ask(address, DELETE_GROUPS, {"groups_names": [group_id]}))
    _check(response.results[0].error_code, f"group {group_id}")


def lag_of(offset: int | None, end: int | None) -> int | None:
    """Return the number of offsets from a committed one to the end of the log, None if one of them is not known."""
    return None if offset is None or end is None else max(end - offset, 0)


def assigned_partitions(protocol_type: str, assignment: bytes) -> tuple[Partition, ...]:
    """Return the partitions of a ConsumerProtocolAssignment, or none if it cannot be read or is of another protocol."""
    if protocol_type != CONSUMER:
        return ()
    try:
        return decode_assignment(assignment)
    except WireError:
        return ()


def _check_known(group: Group, offsets: Mapping[Partition, int]) -> None:
    if group.state == DEAD and not offsets:
        raise NotPossible(f"there is no group {group.group_id}; `flakelog group list` shows those that there are")


def _check(code: int, name: str) -> None:
    if code:
        raise BrokerError(int(code), name)
