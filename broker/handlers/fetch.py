"""Fetch, v4 to v18.

Behaviour: the answer is sent when `min_bytes` are there, when a partition has an error, or after `max_wait_ms`; a first
batch larger than the limits is returned whole (KIP-74). Records leave as regions of the log's files.
Version notes: fetch sessions (v7) are not kept: a session asked for is answered with session id 0, as by a broker whose
cache is full, and clients go on with full requests (KIP-227); a request that goes on with a session names only what has
changed, and is refused. From v13 topics have ids.
With the private tag (broker.wire.tags) each partition's answer carries its ids.
"""

from broker.handlers.call import Call
from broker.log.partition_log import PartitionLog
from broker.now import Now
from broker.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.fetch import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    READ_COMMITTED,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from broker.wire.frame import FileRegion


def handle(call: Call, now: Now) -> FetchResponse | Delayed[FetchResponse]:
    """What there is, or a Delayed until there is enough."""
    request: FetchRequest = call.request
    if request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    response, enough = _collect(call)
    if enough or request.max_wait_ms <= 0:
        return response

    def try_complete(now: Now) -> FetchResponse | None:
        response, enough = _collect(call)
        return response if enough else None

    return Delayed(
        _logs(call),
        now.ms + request.max_wait_ms,
        try_complete,
        lambda now: _collect(call)[0],
    )


def _logs(call: Call) -> list[PartitionLog]:
    """What the fetch waits for: each partition's log."""
    found = []
    for each in call.request.partitions:
        try:
            found.append(call.services.log_of(each.topic, each.partition))
        except ApiError:
            continue
    return found


def _collect(call: Call) -> tuple[FetchResponse, bool]:
    """The answer as things stand, and whether it need not wait: enough bytes, or an error, or nothing asked for."""
    request: FetchRequest = call.request
    left = min(request.max_bytes, call.services.config.fetch_max_bytes)
    found = 0
    failed = False
    response = FetchResponse()
    for each in request.partitions:
        result = _read(call, each, left, found == 0)
        size = result.records.length if isinstance(result.records, FileRegion) else 0
        found += size
        left = max(left - size, 0)
        failed = failed or result.error_code != 0
        response.partitions.append(result)
    return response, failed or found >= request.min_bytes or not request.partitions


def _read(call: Call, each: FetchPartition, left: int, first: bool) -> FetchedPartition:
    request: FetchRequest = call.request
    result = FetchedPartition(each.topic, each.partition)
    try:
        log = call.services.log_of(each.topic, each.partition)
        log.check_leader_epoch(each.current_leader_epoch)
        result.high_watermark = log.high_watermark
        result.last_stable_offset = log.last_stable_offset
        result.log_start_offset = log.log_start_offset
        limit = min(each.max_bytes, left)
        read = log.read(each.fetch_offset, limit, at_least_one=first, with_ids=request.wants_ids)
    except ApiError as error:
        result.error_code = error.code
        return result
    result.records, result.ids = read
    if request.isolation_level == READ_COMMITTED:
        result.aborted = ()
    return result
