"""OffsetCommit, v2 to v10.

Behaviour: commits or refuses each partition separately; a partition that does not exist is refused. Many are committed
in several steps, each checked on its own. The answer is sent when the offsets are in the log.
Version notes: v2 to v4 can name a retention; v6 has leader epochs (KIP-320); v7 static members; from v9 an unknown
group is GROUP_ID_NOT_FOUND (KIP-848); v10 names topics by id.
"""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from broker.group.results import NO_RETENTION, CommitRequest, OffsetToCommit
from broker.metadata.topic import Topic
from broker.now import Now
from broker.security.authorization.acl import Operation, ResourceType
from broker.security.authorization.rights import AUTHORIZATION_FAILED, may
from broker.services.context import RequestContext
from broker.services.coordinator_topic import Answer
from broker.services.group_coordination import GroupPartition
from broker.steps import CHANGES_AT_ONCE, Steps
from broker.waiting.purgatory import Delayed
from broker.wire.cold import milliseconds
from broker.wire.errors import ErrorCode

GROUP_NOT_FOUND_VERSION = 9
TOPIC_IDS_VERSION = 10
NO_ID = UUID(int=0)


def handle(call: RequestContext, now: Now) -> Steps[Answer | Delayed[Answer]]:
    errors: list[ErrorCode] = []
    offsets: list[OffsetToCommit] = []
    indexes: list[int] = []
    coordinators: list[GroupPartition] = []
    for requested in call.original.topics:
        topic = _find(call, requested)
        is_readable = may(call.rights, Operation.READ, ResourceType.TOPIC, _topic_name(topic, requested))
        for partition in requested.partitions:
            error = _unknown(call, topic, partition) if is_readable else AUTHORIZATION_FAILED[ResourceType.TOPIC].code
            if topic is not None and not error:
                indexes.append(len(errors))
                offsets.append(_offset(topic, partition))
            errors.append(error)
            if len(offsets) == CHANGES_AT_ONCE:
                coordinators += _commit(call, offsets, indexes, errors, now)
                offsets, indexes = [], []
                now = yield
    coordinators += _commit(call, offsets, indexes, errors, now)
    return call.services.coordinators.groups.when_stored(coordinators, _answer(call, errors), now)


def _answer(call: RequestContext, errors: Iterable[ErrorCode]) -> Answer:
    codes = iter(errors)
    return {
        "throttle_time": 0,
        "topics": [
            {
                **_name(call, requested),
                "partitions": [
                    {"partition_index": partition.partition_index, "error_code": next(codes)}
                    for partition in requested.partitions
                ],
            }
            for requested in call.original.topics
        ],
    }


def _find(call: RequestContext, requested: Any) -> Topic | None:
    by_id = call.version >= TOPIC_IDS_VERSION
    return call.services.metadata.topic((requested.topic_id or NO_ID) if by_id else str(requested.name))


def _topic_name(topic: Topic | None, requested: Any) -> str:
    return topic.name if topic is not None else getattr(requested, "name", "")


def _name(call: RequestContext, requested: Any) -> dict[str, Any]:
    return {"topic_id": requested.topic_id} if call.version >= TOPIC_IDS_VERSION else {"name": requested.name}


def _unknown(call: RequestContext, topic: Topic | None, partition: Any) -> ErrorCode:
    """Return an error if the partition does not exist; this bounds the offsets that a group remembers."""
    if topic is None:
        by_id = call.version >= TOPIC_IDS_VERSION
        return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    exists = 0 <= partition.partition_index < len(topic.partitions)
    return ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _offset(topic: Topic, partition: Any) -> OffsetToCommit:
    return OffsetToCommit(
        topic.name,
        partition.partition_index,
        partition.committed_offset,
        getattr(partition, "committed_leader_epoch", -1),
        partition.committed_metadata,
    )


def _commit(
    call: RequestContext, offsets: list[OffsetToCommit], indexes: list[int], errors: list[ErrorCode], now: Now
) -> tuple[GroupPartition, ...]:
    """Commit offsets, and put the error of each at its place in `errors`. Return the coordinator, if it is here."""
    led = call.services.coordinators.groups.find(call.request.group_id)
    if isinstance(led, ErrorCode):
        for index in indexes:
            errors[index] = led
        return ()
    if offsets:
        call.services.id_stamper.ensure(len(offsets), now)
    request = _request(call, offsets)
    codes = led.core.commit(request, now)
    refused = led.settle(now).get(request.group_id, ErrorCode.NONE)
    if refused:
        led.core.take_back(request, codes)
    for index, error in zip(indexes, codes, strict=True):
        errors[index] = error or refused
    return (led,)


def _request(call: RequestContext, offsets: list[OffsetToCommit]) -> CommitRequest:
    request = call.request
    retention = getattr(call.original, "retention_time", None)
    known_since = call.version >= GROUP_NOT_FOUND_VERSION
    return CommitRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id_or_member_epoch,
        retention_ms=NO_RETENTION if retention is None else milliseconds(retention),
        unknown_group=ErrorCode.GROUP_ID_NOT_FOUND if known_since else ErrorCode.ILLEGAL_GENERATION,
        offsets=tuple(offsets),
    )
