"""AddPartitionsToTxn, v4 to v5.

Behaviour: the leaders of partitions ask the coordinator about several transactions (KIP-890). With VerifyOnly each
partition is answered NONE if it was added to the producer's open transaction, and TRANSACTION_ABORTABLE if not. Without
it the partitions are added, all of a transaction or none. If a partition does not exist it gets that error, and the
others of its transaction get OPERATION_NOT_ATTEMPTED. Served on the inter-broker listener only.
Version notes: v5 knows TRANSACTION_ABORTABLE.
"""

from typing import Any

from broker.handlers.add_partitions_to_txn import add_to, missing
from broker.now import Now
from broker.services.context import RequestContext
from broker.services.coordinator_topic import Answer
from broker.services.transaction_partition import TransactionPartition
from broker.txn.coordinator import Partition
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ErrorCode

Codes = dict[Partition, ErrorCode]


def handle(call: RequestContext, now: Now) -> Answer | Delayed[Answer]:
    transactions = call.request.transactions
    additions = sum(not transaction.verify_only for transaction in transactions)
    if additions:
        call.services.id_stamper.ensure(additions, now)
    changed: list[TransactionPartition] = []
    codes = [_codes_of(call, transaction, changed, now) for transaction in transactions]
    answer = _answer(transactions, codes)
    return call.services.coordinators.transactions.when_stored(changed, answer, now) if changed else answer


def _codes_of(call: RequestContext, transaction: Any, changed: list[TransactionPartition], now: Now) -> Codes:
    """Return an error for each partition of a transaction. Add its coordinator to `changed` if it adds them."""
    partitions = [(topic.name, index) for topic in transaction.topics for index in topic.partitions]
    refused = {partition: error for partition in partitions if (error := missing(call, partition))}
    if refused:
        return dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED) | refused
    led = call.services.coordinators.transactions.find(transaction.transactional_id)
    if isinstance(led, ErrorCode):
        return dict.fromkeys(partitions, led)
    producer = transaction.transactional_id, transaction.producer_id, transaction.producer_epoch
    if transaction.verify_only:
        return {partition: led.core.verify(*producer, partition) for partition in partitions}
    changed.append(led)
    return dict.fromkeys(partitions, add_to(led, call, *producer, partitions, now))


def _answer(transactions: Any, codes: list[Codes]) -> Answer:
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "results_by_transaction": [
            {
                "transactional_id": transaction.transactional_id,
                "topic_results": [
                    {
                        "name": topic.name,
                        "results_by_partition": [
                            {"partition_index": index, "partition_error_code": errors[topic.name, index]}
                            for index in topic.partitions
                        ],
                    }
                    for topic in transaction.topics
                ],
            }
            for transaction, errors in zip(transactions, codes, strict=True)
        ],
    }
