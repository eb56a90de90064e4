"""AlterPartitionReassignments, v0 to v1.

Behaviour: the copies of a partition stay where they are. An assignment to those brokers is done at once, and any other
is refused. A request to cancel an assignment is refused too, because none is ever in progress (KIP-455).
Version notes: v1 can forbid to change the number of replicas, which never changes.
"""

from collections.abc import Callable
from typing import Any

from broker.handlers.create_topics import check_replicas
from broker.now import Now
from broker.services.context import RequestContext
from broker.services.controller_requests import check_request
from broker.steps import LazyArray
from broker.wire.errors import ApiError, ErrorCode


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    error = _error_of(lambda: check_request(call))
    return {
        "throttle_time": 0,
        "allow_replication_factor_change": call.request.allow_replication_factor_change,
        **error,
        "responses": LazyArray(call.request.topics, lambda topic: _topic(call, topic)),
    }


def _topic(call: RequestContext, topic: Any) -> dict[str, Any]:
    name = str(topic.name)
    return {"name": name, "partitions": LazyArray(topic.partitions, lambda partition: _answer(call, name, partition))}


def _answer(call: RequestContext, name: str, partition: Any) -> dict[str, Any]:
    error = _error_of(lambda: _check(call, name, partition.partition_index, partition.replicas))
    return {"partition_index": partition.partition_index} | error


def _error_of(check: Callable[[], None]) -> dict[str, Any]:
    try:
        check()
    except ApiError as error:
        return {"error_code": error.code, "error_message": error.message}
    return {"error_code": ErrorCode.NONE, "error_message": None}


def _check(call: RequestContext, name: str, index: int, replicas: Any) -> None:
    check_request(call)
    topic = call.services.metadata.topic(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= index < len(topic.partitions):
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    if replicas is None:
        reason = f"No partition reassignment is in progress. {name}-{index} is not being moved."
        raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, reason)
    present = topic.partitions[index].replicas
    check_replicas(call, replicas, len(present))
    if tuple(replicas) != present:
        brokers = ", ".join(map(str, present))
        reason = f"{name}-{index} stays on {'broker' if len(present) == 1 else 'brokers'} {brokers}: no partition can "
        reason += "be moved yet."
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
