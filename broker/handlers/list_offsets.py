"""ListOffsets, v1 to v11.

Behaviour: the first offset whose timestamp is not below the one asked for; -1 latest, -2 earliest, -3 the offset of the
largest timestamp (KIP-734), -4 earliest local and -5 latest tiered (no tiers here: the earliest, and none).
Version notes: v2 isolation level (latest is then the last stable offset); v4 leader epochs (KIP-320); -3 is known from
v7 on, -4 from v8, -5 from v9.
With the private tag (broker.wire.tags) the timestamps are ids: the first offset whose id is not below it; the answer
has the tag too, so that a broker which does not know it is not believed to have read ids.
"""

from collections import Counter
from typing import Any

from broker.handlers.call import Call, Tagged
from broker.log.partition_log import PartitionLog
from broker.now import Now
from broker.record.batch import CorruptBatch
from broker.wire import tags
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.fetch import READ_COMMITTED

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
NOT_FOUND = -1, -1  # offset, timestamp
_KNOWN_FROM = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
_NEVER = 1 << 15


def handle(call: Call, now: Now) -> dict[str, Any] | Tagged:
    answer = _answer_all(call)
    return Tagged(answer, {tags.IDS: tags.REQUEST}) if tags.IDS in call.tags else answer


def _answer_all(call: Call) -> dict[str, Any]:
    asked = Counter((topic.name, each.partition_index) for topic in call.request.topics for each in topic.partitions)
    return {
        "throttle_time": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _answer(call, topic.name, each, asked[topic.name, each.partition_index] > 1)
                    for each in topic.partitions
                ],
            }
            for topic in call.request.topics
        ],
    }


def _answer(call: Call, topic: str, each: Any, twice: bool) -> dict[str, Any]:
    index = each.partition_index
    try:
        if twice:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{topic}-{index} stands in the request more than once")
        log = call.services.log_of(topic, index)
        log.check_leader_epoch(each.current_leader_epoch)
        offset, timestamp = _find(call, log, each.timestamp)
    except ApiError as error:
        failed = {"partition_index": index, "error_code": error.code, "offset": -1, "timestamp": -1}
        return failed | {"leader_epoch": -1}
    epoch = log.leader_epoch if offset >= 0 else -1
    return {
        "partition_index": index,
        "error_code": ErrorCode.NONE,
        "offset": offset,
        "timestamp": timestamp,
        "leader_epoch": epoch,
    }


def _find(call: Call, log: PartitionLog, timestamp: int) -> tuple[int, int]:
    if tags.IDS in call.tags:
        return log.offset_of_id(timestamp), -1
    if timestamp < 0 and call.version < _KNOWN_FROM.get(timestamp, _NEVER):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} means nothing in v{call.version}")
    if timestamp == LATEST:
        committed = call.request.isolation_level == READ_COMMITTED
        return (log.last_stable_offset if committed else log.high_watermark), -1
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.log_start_offset, -1
    if timestamp == LATEST_TIERED:
        return NOT_FOUND
    try:
        if timestamp == MAX_TIMESTAMP:
            newest = max((segment.max_timestamp_ms for segment in log.segments), default=-1)
            return (log.offset_of_time(newest) or NOT_FOUND) if newest >= 0 else NOT_FOUND
        return log.offset_of_time(timestamp) or NOT_FOUND
    except CorruptBatch as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{log.name}: {error}") from None
