"""AddOffsetsToTxn, v0 to v4.

Behaviour: adds the partition of `__consumer_offsets` that keeps a group to the producer's transaction, as
AddPartitionsToTxn adds others.
Version notes: before v2 a fenced producer gets INVALID_PRODUCER_EPOCH (KIP-588).
"""

from broker.handlers.add_partitions_to_txn import add_partitions
from broker.metadata.topic import GROUP_OFFSETS_TOPIC
from broker.now import Now
from broker.services.context import RequestContext
from broker.services.coordinator_topic import Answer
from broker.waiting.purgatory import Delayed


def handle(call: RequestContext, now: Now) -> Answer | Delayed[Answer]:
    answer = _handle(call, now)
    return call.services.transactions.topic.when_on_disk([call.request.transactional_id], answer, now)


def _handle(call: RequestContext, now: Now) -> Answer:
    request = call.request
    offsets_partition = GROUP_OFFSETS_TOPIC, call.services.groups.topic.partition_of(request.group_id)
    producer = request.transactional_id, request.producer_id, request.producer_epoch
    return {"throttle_time": 0, "error_code": add_partitions(call, *producer, [offsets_partition], now)}
