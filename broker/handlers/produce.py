"""Produce, v3 to v13.

Behaviour: each partition is validated, appended and answered separately. A valid batch is staged, and appended with
the other batches of the turn (broker.produce). acks 0 has no answer, but an error closes the connection, as Kafka
does, because nothing else can tell the client. acks 1 and -1 mean the same on one node, except for topics
whose answers wait for the disk: the answer leaves when each log is synced up to the batch, or names the partitions
that are late. The records are checked as the topic's `flakelog.validate.records` says, and a topic may have further
rules for them (broker.log.validation.opening). min.insync.replicas has no effect, because a partition has one replica
and, as in Kafka, the setting never requires more than a partition has.
Produce never creates a topic; producers request Metadata first.
Version notes: v8 names the records at fault (KIP-467). From v13 topics have ids.
With the private tag (broker.wire.tags) the answer has the ids of the records.
"""

from collections.abc import Sequence

from broker.log.validation import opening
from broker.log.validation.record_check import Budget
from broker.now import Now
from broker.produce.turn import StagedProduce
from broker.produce.validate import PARTITIONS_AT_ONCE, validate_batch
from broker.record.batch import is_transactional, record_count_of
from broker.services.context import BrokerServices, RequestContext
from broker.steps import Steps
from broker.wire.errors import ApiError, ErrorCode

_ACKS = (0, 1, -1)


def handle(call: RequestContext, now: Now) -> StagedProduce:
    """Stage the batches of a request; a refused partition is settled at once.

    Return a request for more than PARTITIONS_AT_ONCE partitions with `steps`, which stage its batches in slices.
    Raise Backpressure if there are no ids, and the errors of `validate_batch`. In each case nothing is staged.
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
        validated = [validate_batch(services, staged, place, batch, now, budget) for place, batch in enumerate(batches)]
        for place, outcome in enumerate(validated):
            turn.stage(staged, place, outcome)
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
        validate_batch(services, staged, place - 1, batch, now, budget)
        if place % PARTITIONS_AT_ONCE == 0:
            now = yield
    unlimited = Budget(None)  # the loop above has shown that the records cost little to check
    for place, batch in enumerate(batches, 1):
        services.turn.stage(staged, place - 1, validate_batch(services, staged, place - 1, batch, now, unlimited))
        if place % PARTITIONS_AT_ONCE == 0:
            now = yield
    services.turn.requests.append(staged)


def _acks_refusal(services: BrokerServices, staged: StagedProduce, place: int) -> ApiError:
    """Return the error for a wrong `acks`; as in Kafka, a partition that does not exist is reported first."""
    each = staged.request.partitions[place]
    try:
        services.log_of(each[0], each[1])
    except ApiError as error:
        return error
    return ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={staged.acks}; there are 0, 1 and -1 (all)")
