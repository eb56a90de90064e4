"""Produce, v3 to v13.

Behaviour: each partition is judged and appended by itself, and answered by itself. acks 0 has no answer, but an error
closes the connection, as Kafka does, since nothing else can tell the client. acks 1 and -1 are one thing on one node,
but for topics whose answers wait for the disk (broker.handlers.produce_durable).
A topic may ask more of the records themselves (broker.log.demands). min.insync.replicas asks, as in Kafka, for no more
replicas than a partition has: with one it asks for nothing.
Version notes: a topic that does not exist is never made here; producers ask Metadata first. v8 names the records at
fault (KIP-467). From v13 topics have ids.
With the private tag (broker.wire.tags) the answer says which ids the records got.
"""

from functools import partial

from broker.handlers.call import LEAD_RETRY_MS, Backpressure, Call, Services
from broker.handlers.produce_durable import Waiting, when_on_disk
from broker.log.demands import Openable, RecordsRefused, meet, with_id_headers
from broker.log.judge import judge
from broker.log.partition_log import Appended, PartitionLog
from broker.metadata import INTERNAL_TOPICS
from broker.now import Now
from broker.purgatory import Delayed
from broker.record.batch import NO_TIMESTAMP, BatchHeader, is_transactional, record_count_of
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.produce import PartitionRecords, PartitionResult, ProduceRequest, RecordError
from idgen.errors import IdError, LeadExhausted, SequenceExhausted

ZSTD_VERSION = 7
ADMIN_CLIENT_ID = "__admin_client"  # Kafka's way for its tools to write to internal topics
_ACKS = (0, 1, -1)


def handle(call: Call, now: Now) -> list[PartitionResult] | Delayed[list[PartitionResult]] | None:
    """The results, at once or when they are on the disk; None for a request that wants no answer. Backpressure while
    no ids are to be had."""
    request: ProduceRequest = call.request
    if request.acks not in _ACKS:
        return [_refused(each, _acks_refusal(call, each)) for each in request.partitions]
    results: list[PartitionResult] = []
    waiting: Waiting = []
    to_append = request.partitions
    if len(to_append) > 1:
        if _is_of_no_transaction(request):
            wrong = ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transaction without transactional id")
            results, to_append = [_refused(each, wrong) for each in to_append], []
        _ensure_ids(call, request, now)
    for each in to_append:
        try:
            results.append(_append(call, each, waiting, now))
        except Backpressure:
            if not results:
                raise
            # What stands before it is in the log and must be answered; the client sends this one again.
            results.append(_refused(each, ApiError(ErrorCode.REQUEST_TIMED_OUT, "ids have run ahead of the clock")))
    failed = next((result for result in results if result.error_code), None)
    if failed is not None:
        _count_failed(call.services, results)
    if request.acks == 0:
        if failed is not None:
            raise ApiError(ErrorCode(failed.error_code), f"a Produce with acks=0 failed: {failed.message}")
        return None
    return when_on_disk(call.services, waiting, results, now.ms + request.timeout_ms) if waiting else results


def _acks_refusal(call: Call, each: PartitionRecords) -> ApiError:
    """As in Kafka a partition that is not there comes first."""
    try:
        call.services.log_of(each.topic, each.partition)
    except ApiError as error:
        return error
    return ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={call.request.acks}; there are 0, 1 and -1 (all)")


def _count_failed(services: Services, results: list[PartitionResult]) -> None:
    for result in results:
        if result.error_code:
            topic = services.metadata.topic(result.topic)
            services.metrics.failed_produce(topic.name if topic is not None else None)


def _is_of_no_transaction(request: ProduceRequest) -> bool:
    """Whether a batch is part of a transaction which the request does not name: as in Kafka nothing of it is taken."""
    return request.transactional_id is None and any(
        each.records is not None and is_transactional(each.records) for each in request.partitions
    )


def _ensure_ids(call: Call, request: ProduceRequest, now: Now) -> None:
    """Wait before anything is appended: a request that is tried again must not have left half of itself in the log."""
    records = sum(record_count_of(each.records) for each in request.partitions if each.records is not None)
    if records > 0:
        call.services.stamp.ensure(records, now)


def _append(call: Call, each: PartitionRecords, waiting: Waiting, now: Now) -> PartitionResult:
    services: Services = call.services
    try:
        log = services.log_of(each.topic, each.partition)
        config = log.config
        header = judge(each.records, config, services.config, call.version >= ZSTD_VERSION)
        assert each.records is not None
        if header.is_transactional:
            services.transactions.verify(call.request.transactional_id, header, log, call.version)
        if config.asks_of_records or header.max_timestamp > now.wall_ms + config.message_timestamp_after_max_ms:
            done, log_append_time_ms = _append_as_asked(call, log, each.records, header, now)
        else:
            done, log_append_time_ms = log.append(each.records, header, services.stamp, now), NO_TIMESTAMP
    except RecordsRefused as error:
        return _refused(each, error, error.record_errors)
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
    result = PartitionResult(
        each.topic, each.partition, 0, done.base_offset, log_append_time_ms, log.log_start_offset
    )
    if call.request.wants_ids:
        result.runs = tuple(map(tuple, done.runs))  # type: ignore[arg-type]
    if call.request.acks in log.waiting_acks and log.durable_end_offset <= done.last_offset:
        waiting.append((log, done.last_offset + 1, result))
    return result


def _append_as_asked(
    call: Call, log: PartitionLog, batch: memoryview, header: BatchHeader, now: Now
) -> tuple[Appended, int]:
    """Append to a topic that asks more of a batch than `judge` does; also the time it took in place of the
    producer's, ms."""
    if log.topic in INTERNAL_TOPICS and call.client_id != ADMIN_CLIENT_ID:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{log.topic} is written by the broker, not by clients")
    config, broker = log.config, call.services.config
    openable = Openable(broker.max_unpacked_batch_bytes, broker.max_opened_batch_records)
    batch, header = meet(batch, header, config, log.name, now.wall_ms, openable)
    rewrite = partial(with_id_headers, topic=config, openable=openable) if config.id_header else None
    done = log.append(batch, header, call.services.stamp, now, rewrite)
    if not header.is_log_append_time:
        return done, NO_TIMESTAMP
    return done, done.timestamp_ms if done.duplicate else header.max_timestamp


def _refused(
    each: PartitionRecords, error: ApiError, record_errors: tuple[RecordError, ...] = ()
) -> PartitionResult:
    return PartitionResult(
        each.topic, each.partition, error.code, message=error.message, record_errors=record_errors
    )
