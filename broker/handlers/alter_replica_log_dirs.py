"""AlterReplicaLogDirs, v1 to v2.

Behaviour: the one data directory holds every log. A move to it is done at once; any other directory is
LOG_DIR_NOT_FOUND (KIP-113).
"""

from typing import Any

from broker.now import Now
from broker.services.context import RequestContext
from broker.wire.errors import ApiError, ErrorCode


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    # Move each partition once, as Kafka does. If a request names two directories for it, the last one counts.
    paths = {
        (topic.name, index): directory.path
        for directory in call.request.dirs
        for topic in directory.topics
        for index in topic.partitions
    }
    results: dict[str, list[dict[str, Any]]] = {}
    for (topic, index), path in paths.items():
        answer = {"partition_index": index, "error_code": _move(call, topic, index, path)}
        results.setdefault(topic, []).append(answer)
    return {
        "throttle_time": 0,
        "results": [{"topic_name": topic, "partitions": partitions} for topic, partitions in results.items()],
    }


def _move(call: RequestContext, topic: str, index: int, path: str) -> ErrorCode:
    if path != call.services.logs.storage.location:
        return ErrorCode.LOG_DIR_NOT_FOUND
    try:
        call.services.log_of(topic, index)
    except ApiError as error:
        return error.code
    return ErrorCode.NONE
