"""DescribeProducers, v0 to v0.

Behaviour: returns the producers that a partition remembers, each partition once, with the offset at which their open
transaction begins (KIP-664). A partition that does not exist, or is offline, is answered with its error, and so is an
invalid topic name.
"""

from typing import Any

from broker.log.producer_state import ActiveProducer
from broker.metadata.topic import check_name
from broker.now import Now
from broker.security.authorization.acl import Operation, ResourceType
from broker.security.authorization.rights import check
from broker.services.context import RequestContext
from broker.steps import LazyArray
from broker.wire.errors import ApiError


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    return {
        "throttle_time": 0,
        "topics": LazyArray(_partitions_by_topic(call), lambda topic: _topic(call, *topic)),
    }


def _partitions_by_topic(call: RequestContext) -> list[tuple[str, list[int]]]:
    """Return the topics and partitions, each partition once, because its answer may have thousands of producers."""
    seen: set[tuple[str, int]] = set()
    topics = []
    for topic in call.request.topics:
        new = [index for index in dict.fromkeys(topic.partition_indexes) if (topic.name, index) not in seen]
        seen.update((topic.name, index) for index in new)
        topics.append((topic.name, new))
    return topics


def _topic(call: RequestContext, name: str, indexes: list[int]) -> dict[str, Any]:
    return {"name": name, "partitions": LazyArray(indexes, lambda index: _partition(call, name, index))}


def _partition(call: RequestContext, topic: str, partition: int) -> dict[str, Any]:
    try:
        check(call.rights, Operation.READ, ResourceType.TOPIC, topic)
        check_name(topic)
        log = call.services.log_of(topic, partition)
    except ApiError as error:
        failed = {"partition_index": partition, "error_code": error.code, "error_message": error.message}
        return failed | {"active_producers": []}
    return {
        "partition_index": partition,
        "active_producers": LazyArray(list(log.producers.active()), _producer),
    }


def _producer(producer: ActiveProducer) -> dict[str, Any]:
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "last_sequence": producer.last_sequence,
        "last_timestamp": producer.last_timestamp_ms,
        "coordinator_epoch": producer.coordinator_epoch,
        "current_txn_start_offset": producer.first_offset,
    }
