"""OffsetForLeaderEpoch, v2 to v4.

Behaviour: returns where each leader epoch asked for ended, so that a client finds out whether the records it has read
are still in the log (KIP-101, KIP-320). The latest epoch ends at the log's end. An epoch that is not known yet ends at
-1.
Version notes: v3 names the replica that asks; followers and clients get the same answer.
"""

from typing import Any

from broker.log import leader_epochs
from broker.now import Now
from broker.security.authorization.acl import CLUSTER_NAME, Operation, ResourceType
from broker.security.authorization.rights import AUTHORIZATION_FAILED
from broker.services.context import RequestContext
from broker.steps import LazyArray
from broker.wire.errors import ApiError, ErrorCode


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    return {
        "throttle_time": 0,
        "topics": LazyArray(call.request.topics, lambda topic: _topic(call, topic)),
    }


def _topic(call: RequestContext, topic: Any) -> dict[str, Any]:
    name = topic.topic
    if not _may_describe(call, name):
        code = AUTHORIZATION_FAILED[ResourceType.TOPIC].code
        denied = [{"partition": partition.partition, "error_code": code} for partition in topic.partitions]
        return {"topic": name, "partitions": denied}
    return {"topic": name, "partitions": LazyArray(topic.partitions, lambda partition: _answer(call, name, partition))}


def _may_describe(call: RequestContext, topic: str) -> bool:
    """Return True for another broker, and for a client that may see the topic."""
    rights = call.rights
    return (
        rights is None
        or rights.sees(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        or rights.may(Operation.DESCRIBE, ResourceType.TOPIC, topic)
    )


def _answer(call: RequestContext, topic: str, partition: Any) -> dict[str, Any]:
    try:
        log = call.services.log_of(topic, partition.partition)
        log.check_leader_epoch(partition.current_leader_epoch)
    except ApiError as error:
        return {"partition": partition.partition, "error_code": error.code}
    epoch, end_offset = leader_epochs.end_of(log.epochs, partition.leader_epoch, log.log_end_offset)
    epoch_end = {"leader_epoch": epoch, "end_offset": end_offset}
    return {"partition": partition.partition, "error_code": ErrorCode.NONE} | epoch_end
