"""OffsetFetch, v1 to v10.

Behaviour: returns the committed offsets; a partition without one has offset -1 and no error, also in a group that was
never used.
Version notes: from v2 null topics mean all; v5 has leader epochs (KIP-320); v7 asks for stable offsets (KIP-447), and
gets UNSTABLE_OFFSET_COMMIT if an open transaction may change one; v8 asks for several groups (KIP-709); v10 names
topics by id.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from broker.group.coordinator import GroupCoordinator
from broker.group.results import FetchedOffset
from broker.now import Now
from broker.security.authorization.acl import Operation, ResourceType
from broker.security.authorization.rights import AUTHORIZATION_FAILED, may
from broker.services.context import RequestContext
from broker.steps import LazyArray
from broker.wire.errors import ErrorCode

ALL_VERSION = 2
STABLE_VERSION = 7
GROUPS_VERSION = 8
TOPIC_IDS_VERSION = 10


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    if call.version >= GROUPS_VERSION:
        # Answer a group that is asked for all its offsets once, because its name of a few bytes has a large answer.
        groups = {
            group.group_id if group.topics is None else at: group for at, group in enumerate(call.original.groups)
        }
        return {"throttle_time": 0, "groups": LazyArray(groups.values(), lambda group: _group(call, group))}
    return {"throttle_time": 0} | _group(call, call.original)


def _group(call: RequestContext, group: Any) -> dict[str, Any]:
    if not may(call.rights, Operation.DESCRIBE, ResourceType.GROUP, group.group_id):
        return _denied(call, group)
    led = call.services.coordinators.groups.find(group.group_id)
    core, error = (None, led) if isinstance(led, ErrorCode) else (led.core, ErrorCode.NONE)
    topics: LazyArray[Any]
    if group.topics is None:
        topics = LazyArray([], dict) if core is None else _all(call, core, group.group_id)
    else:
        topics = LazyArray(group.topics, lambda topic: _topic(call, core, group.group_id, topic, error))
    return {"group_id": group.group_id, "topics": topics, "error_code": error}


def _denied(call: RequestContext, group: Any) -> dict[str, Any]:
    """Return the answer for a group that the client may not see. Only v1 has the error at the partitions."""
    code = AUTHORIZATION_FAILED[ResourceType.GROUP].code
    topics = []
    if call.version < ALL_VERSION:
        for topic in group.topics:
            topics.append(
                {"name": topic.name, "partitions": [_partition(index, code) for index in topic.partition_indexes]}
            )
    return {"group_id": group.group_id, "topics": topics, "error_code": code}


def _all(call: RequestContext, core: GroupCoordinator, group_id: str) -> LazyArray[Any]:
    metadata = call.services.metadata
    topic_offsets = [
        (name, list(partitions))
        for name, partitions in groupby(core.committed(group_id), lambda committed: committed[0])
    ]
    if call.rights is not None:
        names = (name for name, _ in topic_offsets)
        visible = call.rights.visible(Operation.DESCRIBE, ResourceType.TOPIC, names)
        topic_offsets = [of_topic for of_topic in topic_offsets if of_topic[0] in visible]
    by_id = call.version >= TOPIC_IDS_VERSION
    topics = {name: metadata.topic(name) for name, _ in topic_offsets} if by_id else {}

    def answer(of_topic: tuple[str, list[tuple[str, int]]]) -> dict[str, Any]:
        name, partitions = of_topic
        topic = topics.get(name)
        key = {"name": name} if topic is None else {"topic_id": topic.id}
        return key | {"partitions": _fetched(call, core.fetch(group_id, partitions))}

    return LazyArray([of_topic for of_topic in topic_offsets if not by_id or topics[of_topic[0]] is not None], answer)


def _topic(
    call: RequestContext, core: GroupCoordinator | None, group_id: str, requested: Any, error: ErrorCode
) -> dict[str, Any]:
    if call.version < TOPIC_IDS_VERSION:
        key, name = {"name": requested.name}, requested.name
    else:
        topic = call.services.metadata.topic(requested.topic_id) if requested.topic_id else None
        key, name = {"topic_id": requested.topic_id}, topic.name if topic else ""
        error = error or (ErrorCode.NONE if topic else ErrorCode.UNKNOWN_TOPIC_ID)
    if name and not may(call.rights, Operation.DESCRIBE, ResourceType.TOPIC, name):
        error = AUTHORIZATION_FAILED[ResourceType.TOPIC].code
    if error or core is None:
        return key | {"partitions": [_partition(index, error) for index in requested.partition_indexes]}
    wanted = [(name, index) for index in requested.partition_indexes]
    return key | {"partitions": _fetched(call, core.fetch(group_id, wanted))}


def _fetched(call: RequestContext, offsets: Iterable[FetchedOffset]) -> list[dict[str, Any]]:
    stable = call.version >= STABLE_VERSION and call.request.require_stable
    return [_unstable(offset) if stable and offset.is_open else _committed(offset) for offset in offsets]


def _unstable(offset: FetchedOffset) -> dict[str, Any]:
    return _partition(offset.partition, ErrorCode.UNSTABLE_OFFSET_COMMIT)


def _committed(offset: FetchedOffset) -> dict[str, Any]:
    committed = offset.committed
    return _partition(offset.partition, ErrorCode.NONE, committed.offset, committed.leader_epoch, committed.metadata)


def _partition(index: int, error: ErrorCode, offset: int = -1, epoch: int = -1, metadata: str = "") -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": offset,
        "committed_leader_epoch": epoch,
        "metadata": metadata,
        "error_code": error,
    }
