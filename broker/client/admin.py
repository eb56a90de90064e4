"""Administration of a cluster: operations over a `ClientCore`, for a shell to run.

    with Client(servers) as client:
        groups = client.run(admin.list_groups(client.core))

Operations raise BrokerError for a refused request, with the broker's message if the API has a field for it.
"""

from collections.abc import Mapping
from typing import NamedTuple

from broker.client.api_versions import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    OFFSET_FETCH,
)
from broker.client.core import ClientCore, Steps
from broker.client.errors import BrokerError
from broker.client.group_protocol import Partition, decode_assignment
from broker.client.group_requests import CommittedOffset, GroupIdentity, commit_offsets, find_coordinator
from broker.wire.errors import WireError

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


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    """Empty if the broker does not report it."""


# --- groups ------------------------------------------------------------------------------------------------------


def list_groups(core: ClientCore) -> Steps[list[ListedGroup]]:
    """Return the groups of all nodes, sorted by id."""
    nodes = yield from core.nodes()
    found = []
    for node, address in nodes.items():
        response = yield from core.ask(address, LIST_GROUPS, {"states_filter": ()})
        _check(response.error_code, f"groups of node {node}")
        found += [ListedGroup(each.group_id, each.protocol_type, each.group_state) for each in response.groups]
    return sorted(found)


def describe_group(core: ClientCore, group_id: str) -> Steps[Group]:
    """Return a group and its members. The state of an unknown group is `DEAD`."""
    address = yield from find_coordinator(core, group_id)
    response = yield from core.ask(address, DESCRIBE_GROUPS, {"groups": [group_id]})
    group = response.groups[0]
    _check(group.error_code, f"group {group_id}")
    members = tuple(
        Member(each.member_id, each.client_id, each.client_host, _assigned(group.protocol_type, each.member_assignment))
        for each in group.members
    )
    return Group(group_id, group.group_state, group.protocol_type, group.protocol_data, members)


def committed(core: ClientCore, group_id: str) -> Steps[dict[Partition, int]]:
    """Return a group's committed offsets, by topic and partition."""
    address = yield from find_coordinator(core, group_id)
    response = yield from core.ask(address, OFFSET_FETCH, {"group_id": group_id, "topics": None})
    _check(response.error_code, f"group {group_id}")
    found = {}
    for topic in response.topics:
        for each in topic.partitions:
            _check(each.error_code, f"group {group_id}, {topic.name}-{each.partition_index}")
            if each.committed_offset >= 0:
                found[str(topic.name), int(each.partition_index)] = int(each.committed_offset)
    return dict(sorted(found.items()))


def commit(core: ClientCore, group_id: str, offsets: Mapping[Partition, int]) -> Steps[None]:
    """Commit offsets for a group without members."""
    address = yield from find_coordinator(core, group_id)
    places = {place: CommittedOffset(offset) for place, offset in offsets.items()}
    errors = yield from commit_offsets(core, address, GroupIdentity(group_id), places)
    for (topic, partition), error in errors.items():
        _check(error, f"group {group_id}, {topic}-{partition}")


def delete_group(core: ClientCore, group_id: str) -> Steps[None]:
    """Delete a group without members, and its committed offsets."""
    address = yield from find_coordinator(core, group_id)
    response = yield from core.ask(address, DELETE_GROUPS, {"groups_names": [group_id]})
    _check(response.results[0].error_code, f"group {group_id}")


def _assigned(protocol_type: str, assignment: bytes) -> tuple[Partition, ...]:
    """Return the partitions of a ConsumerProtocolAssignment, or none if it cannot be read or is of another protocol."""
    if protocol_type != CONSUMER:
        return ()
    try:
        return decode_assignment(assignment)
    except WireError:
        return ()


def _check(code: int, what: str, message: str | None = None) -> None:
    if code:
        raise BrokerError(int(code), what, message)
