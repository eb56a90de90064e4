"""InitProducerId, v0 to v5.

Behaviour: without a transactional id, returns an unused producer id and epoch 0 (KIP-98); a producer that lost its
place asks again and gets a new id. With a transactional id, returns its producer id in the next epoch, which fences the
earlier producer. An open transaction is aborted first, and CONCURRENT_TRANSACTIONS makes the client retry. If the disk
takes no new block of ids the answer is an error, which clients retry.
Version notes: v3 names the id and epoch that a producer had (KIP-360); before v4 a fenced producer gets
INVALID_PRODUCER_EPOCH (KIP-588).
"""

from broker.metadata.producer_ids import NoProducerIds
from broker.now import Now
from broker.security.authorization.acl import CLUSTER_NAME, Operation, ResourceType
from broker.security.authorization.rights import AUTHORIZATION_FAILED
from broker.services.context import RequestContext
from broker.services.coordinator_topic import Answer
from broker.services.producer_ids import once_reserved, producer_answer
from broker.services.transaction_partition import TransactionPartition
from broker.txn.transaction import NO_EPOCH, NO_ID
from broker.waiting.purgatory import Delayed
from broker.wire.cold import milliseconds
from broker.wire.errors import ErrorCode

FENCED_VERSION = 4


def handle(call: RequestContext, now: Now) -> Answer | Delayed[Answer]:
    error = _denial(call)
    if error:
        return producer_answer(error)
    try:
        return _handle(call, now)
    except NoProducerIds:
        transactional_id = call.request.transactional_id
        if transactional_id is None:
            return once_reserved(call, _handle, now)
        timeout_ms = call.services.group_config.offsets_commit_timeout_ms
        disk = call.services.coordinators.transactions.topic.disk_keys(transactional_id)
        return once_reserved(call, _handle, now, timeout_ms, disk)


def _denial(call: RequestContext) -> ErrorCode:
    """Return the error of a client that may not produce so, or NONE. Without a transactional id, who may write to any
    topic may have a producer id (KIP-679)."""
    rights, transactional_id = call.rights, call.request.transactional_id
    if rights is None:
        return ErrorCode.NONE
    if transactional_id is not None:
        is_allowed = rights.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        return ErrorCode.NONE if is_allowed else AUTHORIZATION_FAILED[ResourceType.TRANSACTIONAL_ID].code
    writes = rights.may_on_any(Operation.WRITE, ResourceType.TOPIC)
    if writes or rights.may(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME):
        return ErrorCode.NONE
    return AUTHORIZATION_FAILED[ResourceType.CLUSTER].code


def _handle(call: RequestContext, now: Now) -> Answer | Delayed[Answer]:
    producer = call.request.producer_id, call.request.producer_epoch
    if (producer[0] == NO_ID) != (producer[1] == NO_EPOCH):
        return producer_answer(ErrorCode.INVALID_REQUEST)
    if call.request.transactional_id is None:
        return producer_answer(ErrorCode.NONE, call.services.producer_ids.take(), 0)
    led = call.services.coordinators.transactions.find(call.request.transactional_id)
    if isinstance(led, ErrorCode):
        return producer_answer(led)
    answer = _transactional(call, led, None if producer[0] == NO_ID else producer, now)
    return call.services.coordinators.transactions.when_stored([led], answer, now)


def _transactional(
    call: RequestContext, led: TransactionPartition, expected: tuple[int, int] | None, now: Now
) -> Answer:
    call.services.id_stamper.ensure(1, now)
    timeout_ms = milliseconds(call.request.transaction_timeout)
    decision = led.core.init_producer_id(call.request.transactional_id, timeout_ms, expected, now)
    error = led.run(decision, now)
    if error == ErrorCode.PRODUCER_FENCED and call.version < FENCED_VERSION:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    if error or decision.change is None:
        return producer_answer(error)
    return producer_answer(ErrorCode.NONE, decision.change.producer_id, decision.change.producer_epoch)
