"""DescribeLogDirs, v1 to v5.

Behaviour: returns the one data directory, and the size of each log in it that the request names, or of all (KIP-113).
It omits logs that do not exist, as Kafka does, and logs that could not be opened. The lag of a copy counts the
committed records of its leader that it lacks, and is -1 while its leader does not answer. Bytes that the reserve for a
full disk lacks are not usable.
Version notes: v3 has a top-level error; v4 the size of the disk and its free space (KIP-827); v5 whether the directory
is closed to new logs (KIP-1066), which it never is.
"""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from broker.log.partition_log import PartitionLog
from broker.log.storage.port import StorageError
from broker.now import Now
from broker.services.context import RequestContext
from broker.steps import LazyArray
from broker.wire.errors import ErrorCode

UNKNOWN_LAG = -1


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    return {"throttle_time": 0, "error_code": ErrorCode.NONE, "results": [_directory(call)]}


def _directory(call: RequestContext) -> dict[str, Any]:
    storage = call.services.logs.storage
    named = {"log_dir": storage.location, "topics": ()}
    try:
        total, free = storage.space()
    except StorageError as error:
        call.services.report(f"the data directory could not be described: {error}")
        return named | {"error_code": ErrorCode.KAFKA_STORAGE_ERROR}
    usable = max(free - call.services.logs.disk.lacking_bytes, 0)
    logs = [(name, list(of_topic)) for name, of_topic in groupby(_logs(call), lambda log: log.topic)]
    replication = call.services.replication
    lags = {} if replication is None else replication.followed.lags()
    topics = LazyArray(
        logs, lambda topic: {"name": topic[0], "partitions": LazyArray(topic[1], lambda log: _partition(log, lags))}
    )
    return named | {"error_code": ErrorCode.NONE, "topics": topics, "total_bytes": total, "usable_bytes": usable}


def _logs(call: RequestContext) -> list[PartitionLog]:
    """Return the logs that the request names, or all, by topic and partition."""
    topics = call.request.topics
    logs = call.services.logs.all()
    if topics is not None:
        wanted = {(topic.topic, index) for topic in topics for index in topic.partitions}
        logs = [log for log in logs if (log.topic, log.partition) in wanted]
    return sorted(logs, key=lambda log: (log.topic, log.partition))


def _partition(log: PartitionLog, lags: Mapping[tuple[str, int], int | None]) -> dict[str, Any]:
    lag = lags.get((log.topic, log.partition), 0)
    return {
        "partition_index": log.partition,
        "partition_size": log.segments.size,
        "offset_lag": UNKNOWN_LAG if lag is None else lag,
        "is_future_key": False,
    }
