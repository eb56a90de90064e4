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
from broker.wire.errors import ErrorCode


def handle(call: RequestContext, now: Now) -> Answer | Delayed[Answer]:
    request = call.request
    offsets_partition = GROUP_OFFSETS_TOPIC, call.services.coordinators.groups.topic.partition_of(request.group_id)
    producer = request.transactional_id, request.producer_id, request.producer_epoch
    return add_partitions(call, *producer, [offsets_partition], _answer, now)


def _answer(error: ErrorCode) -> Answer:
    return {"throttle_time": 0, "error_code": error}
