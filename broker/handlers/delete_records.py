"""DeleteRecords, v0 to v2.

Behaviour: moves the beginning of each partition to the offset named; -1 means the high watermark. Records below it
cannot be read afterwards, and whole segments below it are deleted. The answer says where the partition begins now; it
waits for no replica, because there is one copy of the log. The new beginning is on the disk soon after the answer, not
before (as in Kafka, which writes it each minute).
Refused: offsets that do not exist, topics that are only compacted (KIP-107), and the topics of the broker's internal
records.
"""

from typing import Any

from broker.log.partition_log import PartitionLog
from broker.metadata.topic import INTERNAL_TOPICS
from broker.now import Now
from broker.services.context import RequestContext
from broker.steps import Pace, Steps
from broker.wire.errors import ApiError, ErrorCode

HIGH_WATERMARK = -1
NO_LOW_WATERMARK = -1


def handle(call: RequestContext, now: Now) -> Steps[dict[str, Any]]:
    topics: list[dict[str, Any]] = []
    pace = Pace()
    for topic in call.request.topics:
        partitions: list[dict[str, Any]] = []
        for partition in topic.partitions:
            partitions.append(_answer(call, topic.name, partition, now))
            if pace.is_over():
                now = yield
        topics.append({"name": topic.name, "partitions": partitions})
    return {"throttle_time": 0, "topics": topics}


def _answer(call: RequestContext, topic: str, partition: Any, now: Now) -> dict[str, Any]:
    error, low_watermark = ErrorCode.NONE, NO_LOW_WATERMARK
    try:
        log = call.services.log_of(topic, partition.partition_index)
        _delete(call, log, partition.offset, now)
        low_watermark = log.log_start_offset
    except ApiError as refusal:
        error = refusal.code
    return {"partition_index": partition.partition_index, "low_watermark": low_watermark, "error_code": error}


def _delete(call: RequestContext, log: PartitionLog, offset: int, now: Now) -> None:
    if log.topic in INTERNAL_TOPICS:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{log.topic} holds the broker's own records; they stay")
    if log.offline is not None:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.name} is offline: {log.offline}")
    if log.config.compacts and not log.config.deletes:
        reason = f"cleanup.policy of {log.topic} is {log.config.cleanup_policy}; records go where it has delete"
        raise ApiError(ErrorCode.POLICY_VIOLATION, reason)
    if offset == HIGH_WATERMARK:
        offset = log.high_watermark
    if offset < 0:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"there is no offset {offset}")
    call.services.logs.delete_records(log, offset, now)
    call.services.purgatory.touch(log, now)
