"""ListOffsets, v1 to v11.

Behaviour: the first offset whose timestamp is not below the one asked for; -1 latest, -2 earliest, -3 the offset of the
largest timestamp (KIP-734) of the records that are left, where Kafka may name one that was deleted; -4 earliest local,
-5 latest tiered and -6 earliest not uploaded yet (no tiers here: the earliest, and none). A time is not found where its
record may not be seen yet.
Version notes: v2 isolation level (latest is then the last stable offset); v4 leader epochs (KIP-320); -3 is known from
v7 on, -4 from v8, -5 from v9, -6 from v11.
With the private tag (broker.wire.tags) the timestamps are ids: the first offset whose id is not below it; the answer
has the tag too, so that a broker which does not know it is not believed to have read ids.
"""

from collections import Counter
from typing import Any

from broker.handlers.call import Call, Tagged
from broker.log import leader_epochs
from broker.log.partition_log import PartitionLog
from broker.now import Now
from broker.record.batch import CorruptBatch
from broker.wire import tags
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.fetch import CONSUMER, READ_COMMITTED

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
NOT_FOUND = -1, -1  # offset, timestamp
_KNOWN_FROM = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING: 11}
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
    epoch = leader_epochs.epoch_of(log.epochs, offset) if each.timestamp != LATEST else log.leader_epoch
    return {
        "partition_index": index,
        "error_code": ErrorCode.NONE,
        "offset": offset,
        "timestamp": timestamp,
        "leader_epoch": epoch if offset >= 0 else leader_epochs.NO_EPOCH,
    }


def _find(call: Call, log: PartitionLog, timestamp: int) -> tuple[int, int]:
    if tags.IDS in call.tags:
        return log.offset_of_id(timestamp), -1
    if timestamp < 0 and call.version < _KNOWN_FROM.get(timestamp, _NEVER):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} means nothing in v{call.version}")
    if timestamp == LATEST:
        return _end(call, log), -1
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.log_start_offset, -1
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING):
        return NOT_FOUND
    try:
        found = log.offset_of_newest() if timestamp == MAX_TIMESTAMP else log.offset_of_time(timestamp)
    except CorruptBatch as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{log.name}: {error}") from None
    return found if found is not None and found[0] < _end(call, log) else NOT_FOUND


def _end(call: Call, log: PartitionLog) -> int:
    """The offset after the last that who asks may see."""
    if call.request.replica_id != CONSUMER:
        return log.log_end_offset
    return log.last_stable_offset if call.request.isolation_level == READ_COMMITTED else log.high_watermark
