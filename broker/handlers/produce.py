"""Produce, v3 to v13.

Behaviour: each partition is validated, appended and answered separately. A valid batch is staged, and appended with
the other batches of the turn (broker.engine.produce_turn). acks 0 has no answer, but an error closes the connection,
as Kafka does, because nothing else can tell the client. acks 1 and -1 mean the same on one node, except for topics
whose answers wait for the disk: the answer leaves when each log is synced up to the batch, or names the partitions
that are late. The records are checked as the topic's `flakelog.validate.records` says, and a topic may have further
rules for them (broker.log.validation.opening). min.insync.replicas has no effect, because a partition has one replica
and, as in Kafka, the setting never requires more than a partition has.
Produce never creates a topic; producers request Metadata first.
Version notes: v8 names the records at fault (KIP-467). From v13 topics have ids.
With the private tag (broker.wire.tags) the answer has the ids of the records.
"""

from collections.abc import Sequence
from itertools import islice
from uuid import UUID

from broker.engine.produce_turn import StagedProduce
from broker.engine.purgatory import Delayed
from broker.log.log_appender import Rewrite
from broker.log.partition_log import PartitionLog
from broker.log.validation.batch import validate
from broker.log.validation.opening import IdHeaders, check_records, limits_of, prepare
from broker.log.validation.record_check import Budget
from broker.log.validation.topic_rules import RecordsRefused
from broker.now import Now
from broker.record.batch import TRANSACTIONAL_BIT, BatchHeader, is_transactional, record_count_of
from broker.services.context import BrokerServices, RequestContext
from broker.services.metadata import INTERNAL_TOPICS
from broker.wire.errors import ApiError, ErrorCode

ZSTD_VERSION = 7
ADMIN_CLIENT_ID = "__admin_client"  # the client id with which Kafka's tools write to internal topics
_ACKS = (0, 1, -1)


def handle(call: RequestContext, now: Now) -> StagedProduce:
    """Stage the batches of a request; a refused partition is settled at once. Raise Backpressure without ids."""
    services, request = call.services, call.request
    batches = [each.records for each in request.partitions]
    if len(batches) > 1:
        # A request that must wait for ids waits before any of its batches is appended.
        services.id_stamper.ensure(max(sum([record_count_of(batch) for batch in batches if batch is not None]), 1), now)
    staged = StagedProduce(call.version, call.client_id, request, len(batches))
    turn = services.turn
    turn.requests.append(staged)
    if request.acks not in _ACKS:
        for place in range(len(batches)):
            turn.refuse(staged, place, _acks_refusal(services, staged, place))
    elif (
        len(batches) > 1
        and request.transactional_id is None
        and any([batch is not None and is_transactional(batch) for batch in batches])
    ):
        # A request with a transactional batch and without a transactional id is refused as a whole, as in Kafka.
        error = ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transaction without transactional id")
        for place in range(len(batches)):
            turn.refuse(staged, place, error)
    else:
        try:
            for place, batch in enumerate(batches):
                stage(services, staged, place, batch, now)
        except Exception:
            turn.abandon(staged)
            raise
    return staged


def stage(services: BrokerServices, staged: StagedProduce, place: int, batch: memoryview | None, now: Now) -> None:
    """Validate and stage the batch of one partition, or refuse it."""
    each = staged.request.partitions[place]
    rewrite: Rewrite | None = None
    try:
        log = services.log_of(each[0], each[1])
        config = log.config
        header = validate(batch, config, services.config, staged.version >= ZSTD_VERSION)
        assert batch is not None
        if header.attributes & TRANSACTIONAL_BIT:
            services.transactions.verify(staged.request.transactional_id, header, log, staged.version)
        if config.asks_of_records or header.max_timestamp > now.wall_ms + config.message_timestamp_after_max_ms:
            staged.originals = {**(staged.originals or {}), place: batch}
            batch, header, rewrite = _by_topic_rules(services, staged.client_id, log, batch, header, now)
        else:
            check_records(batch, header, config, limits_of(services.config), Budget(None))
    except RecordsRefused as error:
        services.turn.refuse(staged, place, error, record_errors=error.record_errors)
    except ApiError as error:
        services.turn.refuse(staged, place, error)
    else:
        by_log = services.turn.by_log
        batches = by_log.get(log)
        if batches is None:
            batches = by_log[log] = []
        batches.append((batch, header, staged, place, rewrite))


def _acks_refusal(services: BrokerServices, staged: StagedProduce, place: int) -> ApiError:
    """Return the error for a wrong `acks`; as in Kafka, a partition that does not exist is reported first."""
    each = staged.request.partitions[place]
    try:
        services.log_of(each[0], each[1])
    except ApiError as error:
        return error
    return ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={staged.acks}; there are 0, 1 and -1 (all)")


def _by_topic_rules(
    services: BrokerServices, client_id: str | None, log: PartitionLog, batch: memoryview, header: BatchHeader, now: Now
) -> tuple[memoryview, BatchHeader, Rewrite | None]:
    """Apply the rules of a topic for records.

    Return the batch to append, its header, and the function that finishes the batch once its ids are known.
    """
    if log.topic in INTERNAL_TOPICS and client_id != ADMIN_CLIENT_ID:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{log.topic} is written by the broker, not by clients")
    prepared = prepare(batch, header, log.config, log.name, now.wall_ms, limits_of(services.config), Budget(None))
    rewrite = None if prepared.opened is None or not log.config.id_header else IdHeaders(log.config, prepared.opened)
    return prepared.batch, prepared.header, rewrite


# --- answers that wait for the disk ------------------------------------------------------------------------------


def when_on_disk(
    services: BrokerServices, requests: Sequence[StagedProduce], deadline_ms: int
) -> Delayed[Sequence[StagedProduce]]:
    """Return a Delayed that waits until every batch of some requests is on the disk or its log is offline.

    A partition that is late at the deadline times out (`flakelog.durable.acks`, `flakelog.visible.after.flush`).
    """
    synced = 0

    def try_complete(now: Now) -> Sequence[StagedProduce] | None:
        nonlocal synced
        for staged in islice(requests, synced, None):
            for log, end_offset, _ in staged.on_disk or ():
                if log.durable_end_offset < end_offset and log.offline is None:
                    return None
            synced += 1
        return answer(now)

    def answer(now: Now) -> Sequence[StagedProduce]:
        for staged in requests:
            for log, end_offset, place in staged.on_disk or ():
                if log.durable_end_offset < end_offset:
                    services.metrics.failed_produce(log.topic)
                    staged.late(place, _why_late(services, log, staged.request.partitions[place][0]))
        return requests

    keys = {log.on_disk for staged in requests for log, _, _ in staged.on_disk or ()}
    return Delayed(keys, deadline_ms, try_complete, answer)


def _why_late(services: BrokerServices, log: PartitionLog, topic: str | UUID) -> ApiError:
    """Return the error for a batch that was appended to `log`, the request's `topic`, and may not be on the disk."""
    try:
        services.log_of(topic, log.partition)
    except ApiError as gone:
        return gone
    if log.offline is not None:
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.name} is offline: {log.offline}")
    return ApiError(ErrorCode.REQUEST_TIMED_OUT, f"{log.name}: the disk takes longer than the request's timeout")
