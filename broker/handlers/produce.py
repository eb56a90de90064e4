"""Produce, v3 to v13.

Behaviour: each partition is judged and appended by itself, and answered by itself. acks 0 has no answer, but an error
closes the connection, as Kafka does, since nothing else can tell the client. acks 1 and -1 are one thing on one node.
Version notes: a topic that does not exist is never made here; producers ask Metadata first. From v13 topics have ids.
With the private tag (broker.wire.tags) the answer says which ids the records got.
"""

from broker.handlers.call import LEAD_RETRY_MS, Backpressure, Call, Services
from broker.log.judge import judge
from broker.now import Now
from broker.record.batch import record_count_of
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.produce import PartitionRecords, PartitionResult, ProduceRequest
from idgen.errors import IdError, LeadExhausted, SequenceExhausted

ZSTD_VERSION = 7
_ACKS = (0, 1, -1)


def handle(call: Call, now: Now) -> list[PartitionResult] | None:
    """The results, or None for a request that wants no answer. Backpressure while no ids are to be had."""
    request: ProduceRequest = call.request
    if request.acks not in _ACKS:
        return [_refused(each, ApiError(ErrorCode.INVALID_REQUIRED_ACKS)) for each in request.partitions]
    if len(request.partitions) > 1:
        _ensure_ids(call, request, now)
    results: list[PartitionResult] = []
    for each in request.partitions:
        try:
            results.append(_append(call, each, request.wants_ids, now))
        except Backpressure:
            if not results:
                raise
            # What stands before it is in the log and must be answered; the client sends this one again.
            results.append(_refused(each, ApiError(ErrorCode.REQUEST_TIMED_OUT, "ids have run ahead of the clock")))
    if request.acks == 0:
        failed = next((result for result in results if result.error_code), None)
        if failed is not None:
            raise ApiError(ErrorCode(failed.error_code), f"a Produce with acks=0 failed: {failed.message}")
        return None
    return results


def _ensure_ids(call: Call, request: ProduceRequest, now: Now) -> None:
    """Wait before anything is appended: a request that is tried again must not have left half of itself in the log."""
    records = sum(record_count_of(each.records) for each in request.partitions if each.records is not None)
    if records > 0:
        call.services.stamp.ensure(records, now)


def _append(call: Call, each: PartitionRecords, wants_ids: bool, now: Now) -> PartitionResult:
    services: Services = call.services
    try:
        log = services.log_of(each.topic, each.partition)
        header = judge(each.records, log.config, services.config, call.version >= ZSTD_VERSION)
        assert each.records is not None
        if header.is_transactional:
            raise ApiError(ErrorCode.INVALID_TXN_STATE, "the batch is part of a transaction; none are served")
        done = log.append(each.records, header, services.stamp, now)
    except ApiError as error:
        return _refused(each, error)
    except SequenceExhausted as error:
        raise Backpressure(error.retry_at_ms) from None
    except LeadExhausted:
        raise Backpressure(now.wall_ms + LEAD_RETRY_MS) from None
    except IdError as error:
        return _refused(each, ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
    if not done.duplicate:
        services.appended(log, now)
    result = PartitionResult(each.topic, each.partition, 0, done.base_offset, -1, log.log_start_offset)
    if wants_ids:
        result.runs = tuple(map(tuple, done.runs))  # type: ignore[arg-type]
    return result


def _refused(each: PartitionRecords, error: ApiError) -> PartitionResult:
    return PartitionResult(each.topic, each.partition, error.code, message=error.message)
