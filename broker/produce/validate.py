"""The validation of one partition's batch of a Produce: its log, its header, and its records.

The records are checked as the topic's `flakelog.validate.records` says, and a topic may have further rules for them
(broker.log.validation.opening).
"""

from uuid import UUID

from broker.log.validation.batch import validate
from broker.log.validation.open_job import OpenTask
from broker.log.validation.opening import IdHeaders, check_records, prepare
from broker.log.validation.record_check import Budget, OverBudget, end_of_usual_record
from broker.log.verification import Verification
from broker.metadata.topic import INTERNAL_TOPICS
from broker.now import Now
from broker.produce.outcome import (
    MUST_OPEN,
    AwaitsVerification,
    LogReserved,
    Outcome,
    Postponed,
    Unverified,
    Validated,
)
from broker.produce.ports import ProduceServices
from broker.produce.turn import StagedProduce
from broker.record.batch import COMPRESSION_MASK, HEADER_BYTES, TRANSACTIONAL_BIT, seal
from broker.replication.stored_end import ACKS_ALL, check_in_sync
from broker.security.authorization.acl import Operation, ResourceType
from broker.security.authorization.rights import AUTHORIZATION_FAILED, Rights
from broker.steps import Steps
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.produce import ProduceRequest

PARTITIONS_AT_ONCE = 500
"""The partitions of one slice. Each takes some 15 microseconds, and most requests have fewer partitions."""
ZSTD_VERSION = 7
ADMIN_CLIENT_ID = "__admin_client"  # the client id with which Kafka's tools write to internal topics


def validate_batch(
    services: ProduceServices, staged: StagedProduce, index: int, batch: memoryview | None, now: Now, budget: Budget
) -> Outcome:
    """Validate the batch of one partition: return it with its log, an error, or why its request is postponed.

    Without a limit on the budget it is never postponed: see `validate_again`.
    """
    target = staged.request.partitions[index]
    if (rights := staged.rights) is not None:
        if target[0] not in rights.granted or rights.granted_generation != rights.authorizer.generation:
            if (denial := _denial(services, rights, target[0])) is not None:
                return denial
    try:
        log = services.log_of(target[0], target[1])
        if services.replication is not None and staged.acks == ACKS_ALL:
            check_in_sync(services.partition_of(log))
        config = log.config
        header = validate(batch, config, services.config, staged.version >= ZSTD_VERSION)
        assert batch is not None
        if header.attributes & TRANSACTIONAL_BIT:
            services.coordinators.transactions.verify(staged.request.transactional_id, header, log, staged.version)
        opened, reserved = staged.opened, services.turn.reserved
        if reserved and budget.is_limited and reserved.get(log, opened) is not opened:
            return LogReserved(log)
        asks = config.asks_of_records or header.max_timestamp > now.wall_ms + config.message_timestamp_after_max_ms
        if asks and log.topic in INTERNAL_TOPICS and staged.client_id != ADMIN_CLIENT_ID:
            reason = f"{log.topic} is written by the broker, not by clients"
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
        if opened is not None and (outcome := opened.outcome(index, log)) is not None:
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
        prepared = prepare(batch, header, config, log.name, now.wall_ms, services.record_limits, budget)
        staged.keep_original(index, batch)
        id_headers = IdHeaders(config, prepared.opened) if config.id_header and prepared.opened is not None else None
        return log, prepared.batch, prepared.header, id_headers
    except ApiError as error:
        return error
    except OverBudget:
        return MUST_OPEN
    except Unverified as unverified:
        if budget.is_limited:
            return AwaitsVerification((unverified.verification,))
        return ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, str(unverified))


def _denial(services: ProduceServices, rights: Rights, topic: str | UUID) -> ApiError | None:
    """Return the error of a client that may not write to a topic, None for an id that no topic has."""
    name = topic
    if isinstance(name, UUID):
        named = services.metadata.topic(name)
        if named is None:
            return None
        name = named.name
    return None if rights.may_on_topic(Operation.WRITE, topic, name) else AUTHORIZATION_FAILED[ResourceType.TOPIC]


def await_all(
    services: ProduceServices, staged: StagedProduce, index: int, first: Postponed, now: Now, budget: Budget
) -> Postponed:
    """Return why a request is postponed whose partition `index` is the `first` that postpones it.

    If it awaits a verification, the following partitions are verified together with it, for one wait instead of many.
    """
    if not isinstance(first, AwaitsVerification):
        return first
    verifications = list(first.verifications)
    partitions = staged.request.partitions
    for following in range(index + 1, min(len(partitions), index + PARTITIONS_AT_ONCE)):
        outcome = validate_batch(services, staged, following, partitions[following][2], now, budget)
        if isinstance(outcome, AwaitsVerification):
            verifications += outcome.verifications
    return AwaitsVerification(tuple(verifications))


def questions_of(services: ProduceServices, version: int, request: ProduceRequest) -> list[Verification]:
    """Return the questions to other brokers that a request needs which is not executed yet.

    A question that exists is left alone, because its answer is for the batch that is executed first.
    """
    questions = []
    for topic, partition, batch in request.partitions:
        try:
            log = services.log_of(topic, partition)
            header = validate(batch, log.config, services.config, version >= ZSTD_VERSION)
            if header.attributes & TRANSACTIONAL_BIT and header.producer_id not in log.producers.verifications:
                services.coordinators.transactions.verify(request.transactional_id, header, log, version)
        except ApiError:
            continue  # `validate_batch` finds it again
        except Unverified as unverified:
            questions.append(unverified.verification)
    return questions


def validate_again(
    services: ProduceServices, staged: StagedProduce, index: int, batch: memoryview | None, now: Now
) -> Validated:
    """Validate a batch that was valid before and is staged now, because logs and topics may have changed meanwhile.

    Its records cost what they cost, and batches that came later may wait for it, so its request is not postponed.
    """
    outcome = validate_batch(services, staged, index, batch, now, Budget(None))
    assert not isinstance(outcome, Postponed)
    return outcome


def _opened_by_thread(
    staged: StagedProduce, outcome: OpenTask, batch: memoryview, now: Now, budget: Budget
) -> Outcome:
    """Return what a thread has made of a batch; the thread must do so again if the ids are stale."""
    if outcome.error is not None:
        return outcome.error
    assert outcome.prepared is not None
    if outcome.is_stale and budget.is_limited:
        return MUST_OPEN
    made, header, _ = outcome.prepared
    if outcome.batch is made:
        made = batch  # unchanged
    else:
        staged.keep_original(outcome.index, batch)
        if header.is_log_append_time:
            header = seal(made, header._replace(max_timestamp=now.wall_ms))
    return outcome.log, made, header, outcome.id_headers


def to_open(services: ProduceServices, version: int, request: ProduceRequest, now: Now) -> Steps[list[OpenTask]]:
    """Return, in slices, the batches whose records a thread shall open: all that have a valid header."""
    tasks = []
    for index, (topic, partition, batch) in enumerate(request.partitions):
        if index % PARTITIONS_AT_ONCE == PARTITIONS_AT_ONCE - 1:
            now = yield
        try:
            log = services.log_of(topic, partition)
            header = validate(batch, log.config, services.config, version >= ZSTD_VERSION)
        except ApiError:
            continue  # `validate_batch` finds it again
        if batch is not None:
            tasks.append(OpenTask(index, log, log.config, batch, header, now.wall_ms, services.record_limits))
    return tasks
