"""Produce, v3 to v13.

Behaviour: each partition is validated, appended and answered separately. A valid batch is staged, and appended with
the other batches of the turn (broker.produce). acks 0 has no answer, but an error closes the connection, as Kafka
does, because nothing else can tell the client. With acks -1 (all) the answer waits until all replicas in sync have the
batch, and a partition with fewer of them than min.insync.replicas is refused. As in Kafka, that setting never requires
more replicas than a partition has. For topics whose answers wait for the disk the answer leaves when each log is synced
up to the batch. The answer names the partitions that are late. The records are checked as the topic's
`flakelog.validate.records` says, and a topic may have further rules for them (broker.log.validation.opening).
Produce never creates a topic; producers request Metadata first.
Version notes: v8 names the records at fault (KIP-467). From v13 topics have ids.
With the private tag (broker.wire.tags) the answer has the ids of the records.
"""

from collections.abc import Iterable

from broker.log.validation import opening
from broker.log.validation.record_check import Budget
from broker.now import Now
from broker.produce.outcome import Postponed, WithoutIds
from broker.produce.turn import StagedProduce
from broker.produce.validate import PARTITIONS_AT_ONCE, await_all, validate_again, validate_batch
from broker.record.batch import is_transactional, record_count_of
from broker.security.authorization.acl import Operation, ResourceType
from broker.security.authorization.rights import AUTHORIZATION_FAILED
from broker.services.context import BrokerServices, RequestContext
from broker.steps import Steps
from broker.wire.errors import ApiError, ErrorCode

_ACKS = (0, 1, -1)


def handle(call: RequestContext, now: Now) -> StagedProduce | Postponed:
    """Stage the batches of a request; a refused partition is settled at once.

    Return a request for more than PARTITIONS_AT_ONCE partitions with `steps`, which stage its batches in slices.
    """
    services, request, opened = call.services, call.request, call.opened
    partitions = request.partitions
    number = len(partitions)
    turn = services.turn
    if number == 1 and request.acks in _ACKS:  # nearly always; the rules for several partitions cost it time
        staged = StagedProduce(call.version, call.client_id, request, 1, opened, call.rights)
        budget = turn.budget
        budget.units = opening.INLINE_UNITS
        batch = partitions[0][2] if call.records is None else call.records
        if call.rights is not None and request.transactional_id is not None and not _may_transact(call, [batch]):
            turn.refuse(staged, 0, AUTHORIZATION_FAILED[ResourceType.TRANSACTIONAL_ID])
            turn.requests.append(staged)
            return staged
        outcome = validate_batch(services, staged, 0, batch, now, budget)
        if outcome.__class__ is not tuple and isinstance(outcome, Postponed):
            return outcome
        turn.stage(staged, 0, outcome)
        turn.requests.append(staged)
        return staged
    if number > 1 and (opened is None or not opened.has_ids):
        # A request that must wait for ids waits before any of its batches is appended.
        records = sum([record_count_of(batch) for _, _, batch in partitions if batch is not None])
        retry_wall_ms = services.id_stamper.retry_wall_ms(max(records, 1), now)
        if retry_wall_ms is not None:
            return WithoutIds(retry_wall_ms)
    staged = StagedProduce(call.version, call.client_id, request, number, opened, call.rights)
    if request.acks not in _ACKS:
        for index in range(number):
            turn.refuse(staged, index, _acks_refusal(services, staged, index))
    elif (
        number > 1
        and request.transactional_id is None
        and any([batch is not None and is_transactional(batch) for _, _, batch in partitions])
    ):
        # A request with a transactional batch and without a transactional id is refused as a whole, as in Kafka.
        error = ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transaction without transactional id")
        for index in range(number):
            turn.refuse(staged, index, error)
    elif call.rights is not None and not _may_transact(call, [batch for _, _, batch in partitions]):
        for index in range(number):
            turn.refuse(staged, index, AUTHORIZATION_FAILED[ResourceType.TRANSACTIONAL_ID])
    elif number > PARTITIONS_AT_ONCE:
        staged.steps = _stage_in_steps(services, staged, now)
        return staged
    else:
        budget = turn.budget
        budget.units = opening.INLINE_UNITS
        outcomes = []
        for index, (_, _, batch) in enumerate(partitions):
            outcome = validate_batch(services, staged, index, batch, now, budget)
            if isinstance(outcome, Postponed):
                return await_all(services, staged, index, outcome, now, budget)
            outcomes.append(outcome)
        for index, validated in enumerate(outcomes):
            turn.stage(staged, index, validated)
    turn.requests.append(staged)
    return staged


def _may_transact(call: RequestContext, batches: Iterable[memoryview | None]) -> bool:
    """Return True unless a batch is transactional and the client may not write with the request's transactional id."""
    rights, transactional_id = call.rights, call.request.transactional_id
    if rights is None or transactional_id is None:
        return True
    if not any(batch is not None and is_transactional(batch) for batch in batches):
        return True
    return rights.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)


def _stage_in_steps(services: BrokerServices, staged: StagedProduce, now: Now) -> Steps[Postponed | None]:
    """Stage the batches of a request in slices; the engine appends those of a slice before the next slice.

    Validate all of them before that, so that a request has no effect yet if it is postponed.
    """
    partitions = staged.request.partitions
    budget = Budget(opening.INLINE_UNITS)
    for index, (_, _, batch) in enumerate(partitions):
        outcome = validate_batch(services, staged, index, batch, now, budget)
        if isinstance(outcome, Postponed):
            return await_all(services, staged, index, outcome, now, budget)
        if (index + 1) % PARTITIONS_AT_ONCE == 0:
            now = yield
    for index, (_, _, batch) in enumerate(partitions):
        services.turn.stage(staged, index, validate_again(services, staged, index, batch, now))
        if (index + 1) % PARTITIONS_AT_ONCE == 0:
            now = yield
    services.turn.requests.append(staged)
    return None


def _acks_refusal(services: BrokerServices, staged: StagedProduce, index: int) -> ApiError:
    """Return the error for a wrong `acks`; as in Kafka, a partition that does not exist is reported first."""
    topic, partition, _ = staged.request.partitions[index]
    try:
        services.log_of(topic, partition)
    except ApiError as error:
        return error
    return ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={staged.acks}; there are 0, 1 and -1 (all)")
