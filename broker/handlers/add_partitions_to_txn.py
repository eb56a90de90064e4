"""AddPartitionsToTxn, v0 to v3.

Behaviour: all of the partitions are added to the producer's transaction, which begins with the first of them, or none:
where one does not exist, or is of a topic the broker keeps its own records in, the others are OPERATION_NOT_ATTEMPTED.
CONCURRENT_TRANSACTIONS while the last one is ended.
Version notes: before v2 fencing is INVALID_PRODUCER_EPOCH (KIP-588). v4 and later are spoken among brokers only.
"""

from collections.abc import Mapping
from typing import Any

from broker.handlers.call import Call
from broker.handlers.coordinator_topic import Answer
from broker.metadata import INTERNAL_TOPICS
from broker.now import Now
from broker.purgatory import Delayed
from broker.txn.coordinator import Partition
from broker.wire.errors import ErrorCode

FENCED_VERSION = 2


def handle(call: Call, now: Now) -> Answer | Delayed[Answer]:
    answer = _handle(call, now)
    return call.services.transactions.topic.when_on_disk([call.request.v3_and_below_transactional_id], answer, now)


def _handle(call: Call, now: Now) -> Answer:
    asked = [(topic.name, index) for topic in call.request.v3_and_below_topics for index in topic.partitions]
    refused = {each: error for each in asked if (error := _refusal(call, each))}
    if refused:
        return _answer(call, refused, ErrorCode.OPERATION_NOT_ATTEMPTED)
    return _answer(call, {}, _add(call, asked, now))


def _refusal(call: Call, partition: Partition) -> ErrorCode:
    if partition[0] in INTERNAL_TOPICS:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = call.services.metadata.topic(partition[0])
    exists = topic is not None and 0 <= partition[1] < len(topic.partitions)
    return ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _add(call: Call, partitions: list[Partition], now: Now) -> ErrorCode:
    request = call.request
    return add_partitions(
        call,
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        partitions,
        now,
    )


def add_partitions(
    call: Call, transactional_id: str, producer_id: int, epoch: int, partitions: list[Partition], now: Now
) -> ErrorCode:
    """What AddPartitionsToTxn and AddOffsetsToTxn do; the codes of versions before 2 included."""
    transactions = call.services.transactions
    error = transactions.check(transactional_id)
    if not error and transactions.is_held_up(producer_id):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if not error:
        call.services.stamp.ensure(1, now)
        decision = transactions.core.add_partitions(transactional_id, producer_id, epoch, partitions, now)
        error = transactions.run(decision, now)
    if error == ErrorCode.PRODUCER_FENCED and call.version < FENCED_VERSION:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def _answer(call: Call, refused: Mapping[Partition, ErrorCode], others: ErrorCode) -> dict[str, Any]:
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
