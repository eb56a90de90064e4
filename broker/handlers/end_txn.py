"""EndTxn, v0 to v5.

Behaviour: the end is decided when it is in `__transaction_state`. The answer is sent when its markers are written, many
of them in slices, or after offsets.commit.timeout.ms. A partition that cannot take its marker is retried. While markers
are missing the producer's next request is answered CONCURRENT_TRANSACTIONS.
Version notes: before v2 a fenced producer gets INVALID_PRODUCER_EPOCH (KIP-588); v5 takes the next epoch with each end
and answers with it (KIP-890).
"""

from broker.metadata.producer_ids import NoProducerIds
from broker.now import Now
from broker.services.context import RequestContext
from broker.services.coordinator_topic import Answer
from broker.services.due_actions import MARKERS_AT_ONCE
from broker.services.producer_ids import once_reserved, producer_answer
from broker.services.transaction_partition import End, TransactionPartition
from broker.txn.transaction import NO_EPOCH, NO_ID
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ErrorCode

FENCED_VERSION = 2
EPOCH_VERSION = 5


def handle(call: RequestContext, now: Now) -> Answer | Delayed[Answer]:
    try:
        return _handle(call, now)
    except NoProducerIds:
        # The producer's next transaction has a new id.
        transactional_id = call.request.transactional_id
        also = (End(transactional_id), *call.services.coordinators.transactions.topic.disk_keys(transactional_id))
        timeout_ms = call.services.group_config.offsets_commit_timeout_ms
        return once_reserved(call, _handle, now, timeout_ms, also)


def _handle(call: RequestContext, now: Now) -> Answer | Delayed[Answer]:
    transactions, request = call.services.coordinators.transactions, call.request
    led = transactions.find(request.transactional_id)
    if isinstance(led, ErrorCode):
        return producer_answer(led)
    error = _end(call, led, now)
    if error == ErrorCode.PRODUCER_FENCED and call.version < FENCED_VERSION:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    if error:
        return transactions.when_stored([led], producer_answer(error), now)
    transaction = led.core.get(request.transactional_id)
    answer = producer_answer(ErrorCode.NONE, *((NO_ID, NO_EPOCH) if transaction is None else transaction.goes_on_as))
    return led.when_ended(request.transactional_id, answer, now)


def _end(call: RequestContext, led: TransactionPartition, now: Now) -> ErrorCode:
    request = call.request
    transaction = led.core.get(request.transactional_id)
    markers = 0 if transaction is None else min(len(transaction.partitions), MARKERS_AT_ONCE)
    call.services.id_stamper.ensure(2 + markers, now)
    producer = request.transactional_id, request.producer_id, request.producer_epoch
    decision = led.core.end(*producer, request.committed, call.version >= EPOCH_VERSION, now)
    return led.run(decision, now)
