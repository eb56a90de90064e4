"""DescribeProducers, v0 to v0.

Behaviour: returns the producers a partition remembers, with the offset at which their open transaction begins
(KIP-664). A partition that does not exist, or is offline, is answered with its error, and so is an invalid topic name.
"""

from typing import Any

from broker.now import Now
from broker.services.context import RequestContext
from broker.services.metadata import check_name
from broker.wire.errors import ApiError


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    return {
        "throttle_time": 0,
        "topics": [
            {"name": topic.name, "partitions": [_partition(call, topic.name, each) for each in topic.partition_indexes]}
            for topic in call.request.topics
        ],
    }


def _partition(call: RequestContext, topic: str, partition: int) -> dict[str, Any]:
    try:
        check_name(topic)
        log = call.services.log_of(topic, partition)
    except ApiError as error:
        failed = {"partition_index": partition, "error_code": error.code, "error_message": error.message}
        return failed | {"active_producers": []}
    return {
        "partition_index": partition,
        "active_producers": [
            {
                "producer_id": each.producer_id,
                "producer_epoch": each.epoch,
                "last_sequence": each.last_sequence,
                "last_timestamp": each.last_timestamp_ms,
                "coordinator_epoch": each.coordinator_epoch,
                "current_txn_start_offset": each.first_offset,
            }
            for each in log.producers.active()
        ],
    }
