"""Consumer groups: the list, and one group with its members, its committed offsets and its lag."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from broker.client.core import Partition
from broker.security.authorization.acl import Operation, ResourceType
from broker.services.context import BrokerServices
from flakelog.console.access import Access
from flakelog.console.topics import Pages, pages_of
from flakelog.operations.groups import DEAD, assigned_partitions, lag_of

LAG = ("messages behind",)
STOPPED = ("Empty", DEAD)
MEMBERS_MAX = 10_000  # whose assignments are read to find a topic's readers, some 50 ms
PARTITIONS_MAX = 20_000  # partitions whose lag a list of groups adds up, some 50 ms; further groups show theirs alone


class GroupRow(NamedTuple):
    """A group in the list. `lag` is over all partitions it has committed; it and `topics` are None if not counted."""

    group_id: str
    state: str
    members: int
    topics: int | None
    lag: int | None


class GroupList(NamedTuple):
    """A page of the groups whose ids contain `search`."""

    rows: Sequence[GroupRow]
    pages: Pages
    search: str
    groups: int


class PositionRow(NamedTuple):
    """A partition that a group reads. `committed`, `end` and `lag` are None if they are not known."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None
    commit_ms: int | None
    metadata: str
    client: str


class MemberRow(NamedTuple):
    """A member of a group."""

    member_id: str
    client_id: str
    host: str
    partitions: int


class GroupPage(NamedTuple):
    """A group. `positions` is one page of its partitions, those furthest behind first."""

    group_id: str
    state: str
    protocol: str
    members: Sequence[MemberRow]
    positions: Sequence[PositionRow]
    pages: Pages
    topics: Sequence[str]
    lag: int

    @property
    def is_stopped(self) -> bool:
        """True if its offsets can be reset."""
        return self.state in STOPPED and not self.members


def group_list(services: BrokerServices, access: Access, search: str = "", page: int = 0) -> GroupList:
    """Return a page of the groups that may be seen, by id."""
    groups = services.coordinators.groups
    needle = search.strip().lower()
    sees_all = access.sees(Operation.DESCRIBE, ResourceType.CLUSTER)  # as ListGroups
    listed = [group for group in groups.list_groups() if sees_all or access.sees_group(group.group_id)]
    matching = sorted(group for group in listed if needle in group.group_id.lower())
    pages = pages_of(len(matching), page)
    rows = []
    budget = PARTITIONS_MAX
    for group in matching[pages.start : pages.end]:
        topics = lag = None
        if budget > 0:
            offsets = _committed(services, access, group.group_id)
            budget -= len(offsets)
            topics = len({topic for topic, _ in offsets})
            lag = sum(lag_of(offset, _end(services, partition)) or 0 for partition, offset in offsets.items())
        rows.append(GroupRow(group.group_id, group.state, len(groups.describe(group.group_id).members), topics, lag))
    return GroupList(rows, pages, search.strip(), len(listed))


def group_page(services: BrokerServices, access: Access, group_id: str, page: int = 0) -> GroupPage | None:
    """Return a group, without topics that may not be seen; None if there is no such group."""
    described = services.coordinators.groups.describe(group_id)
    committed = services.coordinators.groups.fetch_all(group_id)
    fetched = {(offset.topic, offset.partition): offset.committed for offset in committed}
    if described.error and not fetched:
        return None
    owners: dict[Partition, str] = {}
    members = []
    for member in described.members:
        assigned = assigned_partitions(described.protocol_type, member.assignment)
        owners |= dict.fromkeys(assigned, member.client_id)
        members.append(MemberRow(member.member_id, member.client_id, member.client_host, len(assigned)))
    rows = []
    for partition in fetched.keys() | owners.keys():
        if not access.sees_topic(partition[0]):
            continue
        at = fetched.get(partition)
        is_committed = at is not None and at.offset >= 0
        end = _end(services, partition)
        rows.append(
            PositionRow(
                *partition,
                at.offset if at is not None and is_committed else None,
                end,
                lag_of(at.offset, end) if at is not None and is_committed else None,
                at.commit_ms if at is not None and is_committed else None,
                at.metadata if at is not None else "",
                owners.get(partition, ""),
            )
        )
    rows.sort(key=lambda row: (-(row.lag or 0), row.topic, row.partition))
    pages = pages_of(len(rows), page)
    return GroupPage(
        group_id=group_id,
        state=described.state,
        protocol=described.protocol_data,
        members=members,
        positions=rows[pages.start : pages.end],
        pages=pages,
        topics=sorted({row.topic for row in rows}),
        lag=sum(row.lag or 0 for row in rows),
    )


class Reader(NamedTuple):
    """A group that a topic's deletion concerns. `members` are those that read the topic now."""

    group_id: str
    has_committed: bool
    members: int


def readers(services: BrokerServices, access: Access, topic: str) -> list[Reader]:
    """Return the groups that may be seen and have committed offsets of a topic, or whose members read it now, by id.

    Of the members, at most MEMBERS_MAX are looked at.
    """
    groups, budget = services.coordinators.groups, MEMBERS_MAX
    by_group = {group_id: Reader(group_id, True, 0) for group_id in groups.readers(topic)}
    for group in groups.list_groups():
        if group.state in STOPPED:
            continue
        described = groups.describe(group.group_id)
        budget -= len(described.members)
        if budget < 0:
            break
        assigned = [assigned_partitions(described.protocol_type, member.assignment) for member in described.members]
        members = sum(any(name == topic for name, _ in assignment) for assignment in assigned)
        if members:
            by_group[group.group_id] = Reader(group.group_id, group.group_id in by_group, members)
    return [by_group[group_id] for group_id in sorted(by_group) if access.sees_group(group_id)]


def _committed(services: BrokerServices, access: Access, group_id: str) -> Mapping[Partition, int]:
    """Return the committed offsets of a group that may be seen, in topics that may be seen."""
    if not access.sees_group(group_id):
        return {}
    fetched = services.coordinators.groups.fetch_all(group_id)
    return {
        (offset.topic, offset.partition): offset.committed.offset
        for offset in fetched
        if offset.committed.offset >= 0 and access.sees_topic(offset.topic)
    }


def _end(services: BrokerServices, partition: Partition) -> int | None:
    log = services.logs.find(*partition)
    return None if log is None else log.high_watermark
