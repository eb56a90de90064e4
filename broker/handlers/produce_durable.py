"""A Produce whose answer waits for the disk: `flakelog.durable.acks`, `flakelog.visible.after.flush`.

It waits on its logs in the purgatory, and is looked at whenever a sync of one of them, or of the journal, is back.
"""

from typing import TypeAlias
from uuid import UUID

from broker.handlers.call import Services
from broker.log.partition_log import PartitionLog
from broker.now import Now
from broker.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.produce import NO_OFFSET, PartitionResult

Waiting: TypeAlias = list[tuple[PartitionLog, int, PartitionResult]]
"""Logs whose disk an answer waits for, up to which offset, and the part of the answer that is good then."""


def when_on_disk(
    services: Services, waiting: Waiting, results: list[PartitionResult], deadline_ms: int
) -> Delayed[list[PartitionResult]]:
    """The answer when each log is synced so far, or cannot be any more; a partition that is late has timed out."""

    def try_complete(now: Now) -> list[PartitionResult] | None:
        for log, end_offset, _ in waiting:
            if log.durable_end_offset < end_offset and log.offline is None:
                return None
        return answer(now)

    def answer(now: Now) -> list[PartitionResult]:
        for log, end_offset, result in waiting:
            if log.durable_end_offset < end_offset:
                error = why_late(services, log, result.topic)
                result.error_code, result.message = error.code, error.message
                result.base_offset, result.runs = NO_OFFSET, ()
                services.metrics.failed_produce(log.topic)
        return results

    return Delayed([log.on_disk for log, _, _ in waiting], deadline_ms, try_complete, answer)


def why_late(services: Services, log: PartitionLog, topic: str | UUID) -> ApiError:
    """Why what was appended to `log`, named as `topic`, is not known to be on the disk."""
    try:
        services.log_of(topic, log.partition)
    except ApiError as gone:
        return gone
    if log.offline is not None:
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.name} is offline: {log.offline}")
    return ApiError(ErrorCode.REQUEST_TIMED_OUT, f"{log.name}: the disk takes longer than the request's timeout")
