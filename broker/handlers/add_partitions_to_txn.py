"""AddPartitionsToTxn, v0 to v3.

Behaviour: adds all of the partitions to the producer's transaction, or none. The first partition begins the
transaction. If a partition does not exist, or belongs to a topic of the broker's internal records, it gets that error
and the others get OPERATION_NOT_ATTEMPTED. While the last transaction is being ended the answer is
CONCURRENT_TRANSACTIONS.
Version notes: before v2 a fenced producer gets INVALID_PRODUCER_EPOCH (KIP-588). Only brokers send v4 and later
(broker.handlers.add_partitions_for_brokers).
"""

from collections.abc import Callable, Mapping
from typing import Any

from broker.metadata.topic import INTERNAL_TOPICS
from broker.now import Now
from broker.security.authorization.acl import Operation, ResourceType
from broker.security.authorization.rights import AUTHORIZATION_FAILED, may
from broker.services.context import RequestContext
from broker.services.coordinator_topic import Answer
from broker.services.transaction_partition import TransactionPartition
from broker.txn.coordinator import Partition
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ErrorCode

FENCED_VERSION = 2


def handle(call: RequestContext, now: Now) -> Answer | Delayed[Answer]:
    partitions = [(topic.name, index) for topic in call.request.v3_and_below_topics for index in topic.partitions]
    refused = {partition: error for partition in partitions if (error := refusal(call, partition))}
    if refused:
        return _answer(call, refused, ErrorCode.OPERATION_NOT_ATTEMPTED)
    request = call.request
    producer = request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
    return add_partitions(
        call,
        request.v3_and_below_transactional_id,
        *producer,
        partitions,
        lambda error: _answer(call, {}, error),
        now,
    )


def refusal(call: RequestContext, partition: Partition) -> ErrorCode:
    """Return the error of a partition that a client may not add to a transaction, or NONE."""
    if partition[0] in INTERNAL_TOPICS:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if not may(call.rights, Operation.WRITE, ResourceType.TOPIC, partition[0]):
        return AUTHORIZATION_FAILED[ResourceType.TOPIC].code
    return missing(call, partition)


def missing(call: RequestContext, partition: Partition) -> ErrorCode:
    """Return the error of a partition that does not exist, or NONE."""
    topic = call.services.metadata.topic(partition[0])
    exists = topic is not None and 0 <= partition[1] < len(topic.partitions)
    return ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def add_partitions(
    call: RequestContext,
    transactional_id: str,
    producer_id: int,
    epoch: int,
    partitions: list[Partition],
    answer: Callable[[ErrorCode], Answer],
    now: Now,
) -> Answer | Delayed[Answer]:
    """Add partitions, for AddPartitionsToTxn and AddOffsetsToTxn. Return the answer, with an error that the request's
    version knows, once the change is on the disk."""
    transactions = call.services.coordinators.transactions
    led = transactions.find(transactional_id)
    if isinstance(led, ErrorCode):
        return answer(led)
    error = add_to(led, call, transactional_id, producer_id, epoch, partitions, now)
    if error == ErrorCode.PRODUCER_FENCED and call.version < FENCED_VERSION:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return transactions.when_stored([led], answer(error), now)


def add_to(
    led: TransactionPartition,
    call: RequestContext,
    transactional_id: str,
    producer_id: int,
    epoch: int,
    partitions: list[Partition],
    now: Now,
) -> ErrorCode:
    """Let the coordinator of a transactional id add partitions. Raise Backpressure, with nothing changed."""
    if call.services.coordinators.transactions.is_held_up(producer_id):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    call.services.id_stamper.ensure(1, now)
    return led.run(led.core.add_partitions(transactional_id, producer_id, epoch, partitions, now), now)


def _answer(call: RequestContext, refused: Mapping[Partition, ErrorCode], others: ErrorCode) -> dict[str, Any]:
    return {
        "throttle_time": 0,
        "results_by_topic_v3_and_below": [
            {
                "name": topic.name,
                "results_by_partition": [
                    {"partition_index": index, "partition_error_code": refused.get((topic.name, index), others)}
                    for index in topic.partitions
                ],
            }
            for topic in call.request.v3_and_below_topics
        ],
    }
