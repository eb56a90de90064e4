"""Produce, v3 to v13.

Behaviour: each partition is validated, appended and answered separately. A valid batch is staged, and appended with
the other batches of the turn (broker.services.produce_turn). acks 0 has no answer, but an error closes the connection,
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
from typing import TypeAlias
from uuid import UUID

from broker.log.log_appender import Rewrite
from broker.log.partition_log import PartitionLog
from broker.log.validation import opening
from broker.log.validation.batch import validate
from broker.log.validation.open_job import OpenTask
from broker.log.validation.opening import IdHeaders, check_records, prepare
from broker.log.validation.record_check import Budget, OverBudget, end_of_usual_record
from broker.log.validation.topic_rules import RecordsRefused
from broker.metadata.metadata import INTERNAL_TOPICS
from broker.now import Now
from broker.record.batch import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    TRANSACTIONAL_BIT,
    BatchHeader,
    is_transactional,
    record_count_of,
    seal,
)
from broker.services.context import BrokerServices, RequestContext
from broker.services.produce_turn import LogReserved, StagedProduce
from broker.steps import Steps
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.produce import ProduceRequest

PARTITIONS_AT_ONCE = 500
"""The partitions of one slice. Each takes some 15 microseconds, and most requests have fewer partitions."""
ZSTD_VERSION = 7
ADMIN_CLIENT_ID = "__admin_client"  # the client id with which Kafka's tools write to internal topics
_ACKS = (0, 1, -1)

Judged: TypeAlias = ApiError | tuple[PartitionLog, memoryview, BatchHeader, Rewrite | None]
"""The error that refuses a batch; or its log, the batch to append, its header, and how it is finished with its ids."""


def handle(call: RequestContext, now: Now) -> StagedProduce:
    """Stage the batches of a request; a refused partition is settled at once.

    Return a request for more than PARTITIONS_AT_ONCE partitions with `steps`, which stage its batches in slices.
    Raise Backpressure if there are no ids, and the errors of `judge`. In each case nothing is staged.
    """
    services, request, opened = call.services, call.request, call.opened
    batches = [each.records for each in request.partitions]
    if len(batches) > 1 and (opened is None or not opened.has_ids):
        # A request that must wait for ids waits before any of its batches is appended.
        services.id_stamper.ensure(max(sum([record_count_of(batch) for batch in batches if batch is not None]), 1), now)
    staged = StagedProduce(call.version, call.client_id, request, len(batches))
    staged.opened = opened
    turn = services.turn
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
    elif len(batches) > PARTITIONS_AT_ONCE:
        staged.steps = _stage_in_steps(services, staged, batches, now)
        return staged
    else:
        budget = Budget(opening.INLINE_UNITS)
        judged = [judge(services, staged, place, batch, now, budget) for place, batch in enumerate(batches)]
        for place, each in enumerate(judged):
            stage(services, staged, place, each)
    turn.requests.append(staged)
    return staged


def _stage_in_steps(
    services: BrokerServices, staged: StagedProduce, batches: Sequence[memoryview | None], now: Now
) -> Steps[None]:
    """Stage the batches of a request in slices; the engine appends those of a slice before the next slice.

    Validate all of them before that, so that a request has no effect yet if it must wait or a thread must open its
    records. A batch is validated again when it is staged, because logs and topics may have changed meanwhile.
    """
    budget = Budget(opening.INLINE_UNITS)
    for place, batch in enumerate(batches, 1):
        judge(services, staged, place - 1, batch, now, budget)
        if place % PARTITIONS_AT_ONCE == 0:
            now = yield
    unlimited = Budget(None)  # the loop above has shown that the records cost little to check
    for place, batch in enumerate(batches, 1):
        stage(services, staged, place - 1, judge(services, staged, place - 1, batch, now, unlimited))
        if place % PARTITIONS_AT_ONCE == 0:
            now = yield
    services.turn.requests.append(staged)


def judge(
    services: BrokerServices, staged: StagedProduce, place: int, batch: memoryview | None, now: Now, budget: Budget
) -> Judged:
    """Validate the batch of one partition, and return it with its log, or an error.

    Raise OverBudget if a thread must open the records first, and LogReserved if a thread does so for another
    connection and the log. Without a limit on the budget raise neither: the batch was judged before, and batches that
    came later may wait for it.
    """
    each = staged.request.partitions[place]
    try:
        log = services.log_of(each[0], each[1])
        config = log.config
        header = validate(batch, config, services.config, staged.version >= ZSTD_VERSION)
        assert batch is not None
        if header.attributes & TRANSACTIONAL_BIT:
            services.transactions.verify(staged.request.transactional_id, header, log, staged.version)
        opened, reserved = staged.opened, services.turn.reserved
        if reserved and budget.is_limited and reserved.get(log, opened) is not opened:
            raise LogReserved(log)
        asks = config.asks_of_records or header.max_timestamp > now.wall_ms + config.message_timestamp_after_max_ms
        if asks and log.topic in INTERNAL_TOPICS and staged.client_id != ADMIN_CLIENT_ID:
            said = f"{log.topic} is written by the broker, not by clients"
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, said)
        if opened is not None and (outcome := opened.outcome(place, log)) is not None:
            return _opened_by_thread(staged, outcome, batch, now, budget)
        if not asks:
            # Most requests of services that send single events need no more than `end_of_usual_record`.
            if (
                header.record_count != 1
                or header.attributes & COMPRESSION_MASK
                or end_of_usual_record(batch, HEADER_BYTES, 0) != len(batch)
            ):
                check_records(batch, header, config, services.record_limits, budget)
            return log, batch, header, None
        found = prepare(batch, header, config, log.name, now.wall_ms, services.record_limits, budget)
        staged.keep_original(place, batch)
        id_headers = IdHeaders(config, found.opened) if config.id_header and found.opened is not None else None
        return log, found.batch, found.header, id_headers
    except ApiError as error:
        return error


def _opened_by_thread(
    staged: StagedProduce, outcome: OpenTask, batch: memoryview, now: Now, budget: Budget
) -> Judged:
    """Return what a thread has made of a batch. Raise OverBudget if it must do so again, with other ids."""
    if outcome.error is not None:
        return outcome.error
    assert outcome.prepared is not None
    if outcome.is_stale and budget.is_limited:
        raise OverBudget
    made, header, _ = outcome.prepared
    if outcome.batch is made:
        made = batch  # unchanged
    else:
        staged.keep_original(outcome.place, batch)
        if header.is_log_append_time:
            header = seal(made, header._replace(max_timestamp=now.wall_ms))
    return outcome.log, made, header, outcome.id_headers


def stage(services: BrokerServices, staged: StagedProduce, place: int, judged: Judged) -> None:
    """Stage the batch of one partition that `judge` has validated, or refuse it."""
    if isinstance(judged, tuple):
        log, batch, header, rewrite = judged
        services.turn.by_log[log].append((batch, header, staged, place, rewrite))
    elif isinstance(judged, RecordsRefused):
        services.turn.refuse(staged, place, judged, record_errors=judged.record_errors)
    else:
        services.turn.refuse(staged, place, judged)


def to_open(services: BrokerServices, version: int, request: ProduceRequest, now: Now) -> Steps[list[OpenTask]]:
    """Return, in slices, the batches whose records a thread shall open: all that have a valid header."""
    tasks = []
    for place, (topic, partition, batch) in enumerate(request.partitions):
        if place % PARTITIONS_AT_ONCE == PARTITIONS_AT_ONCE - 1:
            now = yield
        try:
            log = services.log_of(topic, partition)
            header = validate(batch, log.config, services.config, version >= ZSTD_VERSION)
        except ApiError:
            continue  # `judge` finds it again
        if batch is not None:
            tasks.append(OpenTask(place, log, log.config, batch, header, now.wall_ms, services.record_limits))
    return tasks


def _acks_refusal(services: BrokerServices, staged: StagedProduce, place: int) -> ApiError:
    """Return the error for a wrong `acks`; as in Kafka, a partition that does not exist is reported first."""
    each = staged.request.partitions[place]
    try:
        services.log_of(each[0], each[1])
    except ApiError as error:
        return error
    return ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={staged.acks}; there are 0, 1 and -1 (all)")


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
