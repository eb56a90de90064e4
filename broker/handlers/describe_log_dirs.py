"""DescribeLogDirs, v1 to v5.

Behaviour: returns the one data directory, and the size of each log in it that the request names, or of all (KIP-113).
It omits logs that do not exist, as Kafka does, and logs that could not be opened.
Version notes: v3 has a top-level error; v4 the size of the disk and its free space (KIP-827); v5 whether the directory
is closed to new logs (KIP-1066), which it never is.
"""

from itertools import groupby
from typing import Any

from broker.log.partition_log import PartitionLog
from broker.log.storage.port import StorageError
from broker.now import Now
from broker.services.context import RequestContext
from broker.steps import LazyArray
from broker.wire.errors import ErrorCode


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    return {"throttle_time": 0, "error_code": ErrorCode.NONE, "results": [_directory(call)]}


def _directory(call: RequestContext) -> dict[str, Any]:
    storage = call.services.logs.storage
    named = {"log_dir": storage.location, "topics": ()}
    try:
        total, usable = storage.space()
    except StorageError as error:
        call.services.report(f"the data directory could not be described: {error}")
        return named | {"error_code": ErrorCode.KAFKA_STORAGE_ERROR}
    logs = [(name, list(of_topic)) for name, of_topic in groupby(_logs(call), lambda log: log.topic)]
    topics = LazyArray(logs, lambda topic: {"name": topic[0], "partitions": LazyArray(topic[1], _partition)})
    return named | {"error_code": ErrorCode.NONE, "topics": topics, "total_bytes": total, "usable_bytes": usable}


def _logs(call: RequestContext) -> list[PartitionLog]:
    """Return the logs that the request names, or all, by topic and partition."""
    topics = call.request.topics
    logs = call.services.logs.all()
    if topics is not None:
        wanted = {(topic.topic, index) for topic in topics for index in topic.partitions}
        logs = [log for log in logs if (log.topic, log.partition) in wanted]
    return sorted(logs, key=lambda log: (log.topic, log.partition))


def _partition(log: PartitionLog) -> dict[str, Any]:
    size = log.segments.size
    return {"partition_index": log.partition, "partition_size": size, "offset_lag": 0, "is_future_key": False}
