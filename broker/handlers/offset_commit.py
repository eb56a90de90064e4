"""OffsetCommit, v2 to v10.

Behaviour: commits or refuses each partition separately; a partition that does not exist is refused. The answer is sent
when the offsets are in the log.
Version notes: v2 to v4 can name a retention; v6 has leader epochs (KIP-320); v7 static members; from v9 an unknown
group is GROUP_ID_NOT_FOUND (KIP-848); v10 names topics by id.
"""

from typing import Any
from uuid import UUID

from broker.engine.purgatory import Delayed
from broker.group.results import NO_RETENTION, CommitRequest, OffsetToCommit
from broker.now import Now
from broker.services.context import RequestContext
from broker.services.coordinator_topic import Answer
from broker.services.metadata import Topic
from broker.wire.cold import milliseconds
from broker.wire.errors import ErrorCode

GROUP_NOT_FOUND_VERSION = 9
TOPIC_IDS_VERSION = 10
NO_ID = UUID(int=0)


def handle(call: RequestContext, now: Now) -> Answer | Delayed[Answer]:
    answer = _handle(call, now)
    return call.services.groups.topic.when_on_disk([call.request.group_id], answer, now)


def _handle(call: RequestContext, now: Now) -> Answer:
    named = [(topic, _find(call, topic)) for topic in call.original.topics]
    errors = iter(_commit(call, named, now))
    return {
        "throttle_time": 0,
        "topics": [
            {
                **_name(call, asked),
                "partitions": [
                    {"partition_index": each.partition_index, "error_code": _unknown(call, topic, each) or next(errors)}
                    for each in asked.partitions
                ],
            }
            for asked, topic in named
        ],
    }


def _find(call: RequestContext, asked: Any) -> Topic | None:
    by_id = call.version >= TOPIC_IDS_VERSION
    return call.services.metadata.topic((asked.topic_id or NO_ID) if by_id else str(asked.name))


def _name(call: RequestContext, asked: Any) -> dict[str, Any]:
    return {"topic_id": asked.topic_id} if call.version >= TOPIC_IDS_VERSION else {"name": asked.name}


def _unknown(call: RequestContext, topic: Topic | None, asked: Any) -> ErrorCode:
    """Return an error if the partition does not exist; this bounds the offsets that a group remembers."""
    if topic is None:
        by_id = call.version >= TOPIC_IDS_VERSION
        return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    exists = 0 <= asked.partition_index < len(topic.partitions)
    return ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _commit(call: RequestContext, named: list[tuple[Any, Topic | None]], now: Now) -> list[ErrorCode]:
    """Return an error for each partition that exists, in order."""
    groups, group_id = call.services.groups, call.request.group_id
    offsets = tuple(
        OffsetToCommit(
            topic.name,
            each.partition_index,
            each.committed_offset,
            getattr(each, "committed_leader_epoch", -1),
            each.committed_metadata,
        )
        for asked, topic in named
        if topic is not None
        for each in asked.partitions
        if not _unknown(call, topic, each)
    )
    error = groups.check(group_id)
    if error:
        return [error] * len(offsets)
    if offsets:
        call.services.id_stamper.ensure(len(offsets), now)
    errors = groups.core.commit(_request(call, offsets), now)
    refused = groups.settle(now).get(group_id, ErrorCode.NONE)
    return [error or refused for error in errors]


def _request(call: RequestContext, offsets: tuple[OffsetToCommit, ...]) -> CommitRequest:
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
        offsets=offsets,
    )
