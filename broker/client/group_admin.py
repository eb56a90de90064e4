"""The groups of a cluster and what they have committed: requests over a `ClientCore`, for a shell to run.

They lie here, and not in flakelog/operations/ with the other requests of administrators, because mirrors use them too.
"""

from typing import NamedTuple

from broker.client.api_versions import LIST_GROUPS, OFFSET_FETCH
from broker.client.core import ClientCore, Partition, Steps
from broker.client.errors import BrokerError
from broker.client.group_requests import find_coordinator


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    """Empty if the broker does not report it."""


def list_groups(core: ClientCore) -> Steps[list[ListedGroup]]:
    """Return the groups of all nodes, sorted by id. Raise BrokerError."""
    groups: list[ListedGroup] = []
    nodes = yield from core.nodes()
    for node, address in nodes.items():
        response = yield from core.ask(address, LIST_GROUPS, {"states_filter": ()})
        _check(response.error_code, f"groups of node {node}")
        groups += [ListedGroup(group.group_id, group.protocol_type, group.group_state) for group in response.groups]
    return sorted(groups)


def committed_offsets(core: ClientCore, group_id: str) -> Steps[dict[Partition, int]]:
    """Return all offsets that a group has committed, sorted by topic and partition. Raise BrokerError."""
    address = yield from find_coordinator(core, group_id)
    response = yield from core.ask(address, OFFSET_FETCH, {"group_id": group_id, "topics": None})
    _check(response.error_code, f"group {group_id}")
    offsets = {}
    for topic in response.topics:
        for part in topic.partitions:
            _check(part.error_code, f"group {group_id}, {topic.name}-{part.partition_index}")
            if part.committed_offset >= 0:
                offsets[str(topic.name), int(part.partition_index)] = int(part.committed_offset)
    return dict(sorted(offsets.items()))


def _check(code: int, name: str) -> None:
    if code:
        raise BrokerError(int(code), name)
