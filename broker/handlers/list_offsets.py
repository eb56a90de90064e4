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

from broker.handlers.call import Call
from broker.log import leader_epochs
from broker.log.partition_log import PartitionLog
from broker.now import Now
from broker.record.batch import CorruptBatch
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.fetch import CONSUMER, READ_COMMITTED
from broker.wire.list_offsets import FoundOffset, ListOffsetsRequest, ListOffsetsResponse, WantedOffset

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
NOT_FOUND = -1, -1  # offset, timestamp
_KNOWN_FROM = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING: 11}
_NEVER = 1 << 15


def handle(call: Call, now: Now) -> ListOffsetsResponse:
    request: ListOffsetsRequest = call.request
    asked = Counter((each.topic, each.partition) for each in request.partitions)
    answers = [_answer(call, each, asked[each.topic, each.partition] > 1) for each in request.partitions]
    return ListOffsetsResponse(answers, request.by_id)


def _answer(call: Call, each: WantedOffset, twice: bool) -> FoundOffset:
    try:
        if twice:
            said = f"{each.topic}-{each.partition} stands in the request more than once"
            raise ApiError(ErrorCode.INVALID_REQUEST, said)
        log = call.services.log_of(each.topic, each.partition)
        log.check_leader_epoch(each.current_leader_epoch)
        if call.request.by_id:
            offset, timestamp = log.offset_of_id(each.timestamp), -1
        else:
            offset, timestamp = find(call.request, call.version, log, each.timestamp)
    except ApiError as error:
        return FoundOffset(each.topic, each.partition, error.code)
    return FoundOffset(each.topic, each.partition, 0, timestamp, offset, epoch_of(log, each.timestamp, offset))


def epoch_of(log: PartitionLog, timestamp: int, offset: int) -> int:
    """The leader epoch an answer names: in which what was found was written, of the log's end the one that is on."""
    if offset < 0:
        return leader_epochs.NO_EPOCH
    return log.leader_epoch if timestamp == LATEST else leader_epochs.epoch_of(log.epochs, offset)


def find(request: ListOffsetsRequest, version: int, log: PartitionLog, timestamp: int) -> tuple[int, int]:
    """(offset, timestamp) of what is asked for; ApiError."""
    if timestamp < 0 and version < _KNOWN_FROM.get(timestamp, _NEVER):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} means nothing in v{version}")
    if timestamp == LATEST:
        return _end(request, log), -1
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.log_start_offset, -1
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING):
        return NOT_FOUND
    try:
        found = log.offset_of_newest() if timestamp == MAX_TIMESTAMP else log.offset_of_time(timestamp)
    except CorruptBatch as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{log.name}: {error}") from None
    return found if found is not None and found[0] < _end(request, log) else NOT_FOUND


def _end(request: ListOffsetsRequest, log: PartitionLog) -> int:
    """The offset after the last that who asks may see."""
    if request.replica_id != CONSUMER:
        return log.log_end_offset
    return log.last_stable_offset if request.isolation_level == READ_COMMITTED else log.high_watermark
