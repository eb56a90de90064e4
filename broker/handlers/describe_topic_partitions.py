"""DescribeTopicPartitions, v0 to v0.

Behaviour: returns the partitions of the topics asked for, or of all, in the order of their names. An answer has at most
as many as the request and `max.request.partition.size.limit` allow, with a cursor for the next request (KIP-966). No
topic is made. A partition that is offline has no leader, and Kafka gives it no error. If the whole ISR is offline, it
is empty in Kafka 4.3, and its members are in the ELR. In ZooKeeper the ISR keeps them: only this answer moves them.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from broker.metadata.topic import NO_LEADER, Topic, check_name
from broker.now import Now
from broker.security.authorization.acl import Operation, ResourceType
from broker.security.authorization.rights import AUTHORIZATION_FAILED, may
from broker.services.authorized_operations import operations
from broker.services.context import RequestContext
from broker.services.partition_nodes import partition_nodes
from broker.steps import LazyArray
from broker.wire.errors import ApiError, ErrorCode

_DESCRIBE = Operation.DESCRIBE, ResourceType.TOPIC
_DENIED = range(-1, -1)
"""Stands for the partitions of a topic that the client may not see."""


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    request = call.request
    if not _fits(request):
        code = ErrorCode.INVALID_REQUEST
        return {
            "throttle_time": 0,
            "topics": [{"error_code": code, "name": requested.name} for requested in request.topics],
        }
    names, denied = _names(call)
    first, partition = 0, 0
    if request.cursor is not None:
        first = bisect_left(names, request.cursor.topic_name)
        here = names[first : first + 1] == [request.cursor.topic_name]
        partition = request.cursor.partition_index if here else 0
    limit = call.services.config.max_request_partition_size_limit
    room = max(min(limit, request.response_partition_limit), 1)
    return {"throttle_time": 0} | _page(call, names[first:], partition, room, denied)


def _names(call: RequestContext) -> tuple[list[str], list[str]]:
    """Return the topics to describe, and those that the request names though its client may not see them."""
    requested = sorted({topic.name for topic in call.request.topics})
    if not requested:
        names = [topic.name for topic in call.services.metadata.topics()]
        return sorted(names if call.rights is None else call.rights.visible(*_DESCRIBE, names)), []
    denied = [name for name in requested if not may(call.rights, *_DESCRIBE, name)]
    return [name for name in requested if name not in denied] if denied else requested, denied


def _fits(request: Any) -> bool:
    """Return True without a cursor, or if the cursor is a place in the topics asked for."""
    cursor = request.cursor
    names = {topic.name for topic in request.topics}
    return cursor is None or (cursor.partition_index >= 0 and (not names or cursor.topic_name in names))


def _page(call: RequestContext, names: list[str], first: int, room: int, denied: list[str]) -> dict[str, Any]:
    page: list[tuple[str, range]] = []
    cursor = None
    for at, name in enumerate(names):
        begin = 0 if at else first
        if not room:
            cursor = {"topic_name": name, "partition_index": 0}
            break
        topic = call.services.metadata.topic(name)
        partitions = 0 if topic is None else len(topic.partitions)
        end = min(partitions, begin + room)
        page.append((name, range(begin, end)))
        if end < partitions:
            cursor = {"topic_name": name, "partition_index": end}
            break
        room -= max(end - begin, 0)
    page += [(name, _DENIED) for name in denied]
    return {"topics": LazyArray(page, lambda topic_range: _topic(call, *topic_range)), "next_cursor": cursor}


def _topic(call: RequestContext, name: str, indexes: range) -> dict[str, Any]:
    if indexes is _DENIED:
        return {"error_code": AUTHORIZATION_FAILED[ResourceType.TOPIC].code, "name": name}
    topic = call.services.metadata.topic(name)
    if topic is None or len(topic.partitions) < indexes.stop:  # it may have been deleted a moment ago
        return _unknown(name)
    return _describe(call, topic, indexes)


def _unknown(name: str) -> dict[str, Any]:
    try:
        check_name(name)
    except ApiError as error:
        return {"error_code": error.code, "name": name}
    return {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "name": name}


def _describe(call: RequestContext, topic: Topic, indexes: range) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.NONE,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.is_internal,
        "partitions": [_partition(call, topic, index) for index in indexes],
        "topic_authorized_operations": operations(call, True, ResourceType.TOPIC, topic.name),
    }


def _partition(call: RequestContext, topic: Topic, index: int) -> dict[str, Any]:
    nodes = partition_nodes(call.services, topic, index)
    state = topic.partitions[index]
    last = _last_members(nodes, state.isr)
    if last:
        nodes["isr_nodes"] = ()
    # Empty lists, not null: null is allowed, but Java's admin client fails on it.
    eligible = (*state.elr, *last)
    return nodes | {"error_code": ErrorCode.NONE, "eligible_leader_replicas": eligible, "last_known_elr": last}


def _last_members(nodes: dict[str, Any], isr: Sequence[int]) -> Sequence[int]:
    """Return the members of an ISR that has no other, if nobody leads and all of them are offline."""
    if nodes["leader_id"] == NO_LEADER and set(isr).issubset(nodes["offline_replicas"]):
        return isr
    return ()
