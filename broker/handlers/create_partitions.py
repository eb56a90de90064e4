"""CreatePartitions, v0 to v3.

Behaviour: topics get more partitions, never fewer; each by itself. New partitions may be assigned to nodes, with as
many replicas as the topic has. Consumers see them with their next Metadata. With `validate_only` nothing is made, and
the answer is the same.
"""

from collections import Counter
from typing import Any

from broker.handlers.call import Call
from broker.handlers.create_topics import PARTITIONS_MAX, check_replicas
from broker.handlers.time_limit import check_time
from broker.metadata import Topic
from broker.now import Now
from broker.wire.errors import ApiError, ErrorCode


def handle(call: Call, now: Now) -> dict[str, Any]:
    named = Counter(topic.name for topic in call.request.topics)
    results: dict[str, tuple[ErrorCode, str | None]] = {}
    left = PARTITIONS_MAX
    for topic in call.request.topics:
        try:
            check_time(call.request)
            if named[topic.name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"topic {topic.name} stands in the request more than once")
            left -= _grow(call, topic, left)
            results[topic.name] = ErrorCode.NONE, None
        except ApiError as error:
            results[topic.name] = error.code, error.message
    return {
        "throttle_time": 0,
        "results": [
            {"name": name, "error_code": code, "error_message": message} for name, (code, message) in results.items()
        ],
    }


def _grow(call: Call, asked: Any, most: int) -> int:
    """How many partitions a topic got; ApiError."""
    topic = call.services.metadata.topic(str(asked.name))
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {asked.name}")
    added = int(asked.count) - len(topic.partitions)
    if added <= 0:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {topic.name} has {len(topic.partitions)} partitions; {asked.count} would not be more",
        )
    if added > most:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"one request makes {PARTITIONS_MAX} partitions at most")
    if asked.assignments is not None:
        _check_assignments(call, topic, added, asked.assignments)
    if not call.request.validate_only:
        call.services.add_partitions(topic, asked.count)
    return added


def _check_assignments(call: Call, topic: Topic, added: int, assignments: Any) -> None:
    if len(assignments) != added:
        said = f"{added} new partitions need so many assignments, not {len(assignments)}"
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, said)
    replicas = len(topic.partitions[0].replicas)
    for each in assignments:
        check_replicas(call, each.broker_ids, replicas)
