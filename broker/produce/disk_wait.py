"""The wait of a Produce's answer for the disk (`flakelog.durable.acks`, `flakelog.visible.after.flush`)."""

from collections.abc import Sequence
from itertools import islice
from uuid import UUID

from broker.log.partition_log import PartitionLog
from broker.now import Now
from broker.produce.ports import ProduceServices
from broker.produce.turn import StagedProduce
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode


def when_on_disk(
    services: ProduceServices, requests: Sequence[StagedProduce], deadline_ms: int
) -> Delayed[Sequence[StagedProduce]]:
    """Return a Delayed that waits until every batch of some requests is on the disk or its log is offline.

    A partition that is late at the deadline times out (`flakelog.durable.acks`, `flakelog.visible.after.flush`).
    """
    synced = 0

    def try_complete(now: Now) -> Sequence[StagedProduce] | None:
        nonlocal synced
        for staged in islice(requests, synced, None):
            for log, end_offset, _ in staged.on_disk or ():
                if log.durability.end_offset < end_offset and log.offline is None:
                    return None
            synced += 1
        return answer(now)

    def answer(now: Now) -> Sequence[StagedProduce]:
        for staged in requests:
            for log, end_offset, index in staged.on_disk or ():
                if log.durability.end_offset < end_offset:
                    services.metrics.failed_produce(log.topic)
                    staged.late(index, _why_late(services, log, staged.request.partitions[index][0]))
        return requests

    keys = {log.durability.key for staged in requests for log, _, _ in staged.on_disk or ()}
    return Delayed(keys, deadline_ms, try_complete, answer)


def _why_late(services: ProduceServices, log: PartitionLog, topic: str | UUID) -> ApiError:
    """Return the error for a batch that was appended to `log`, the request's `topic`, and may not be on the disk."""
    try:
        services.log_of(topic, log.partition)
    except ApiError as gone:
        return gone
    if log.offline is not None:
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.name} is offline: {log.offline}")
    return ApiError(ErrorCode.REQUEST_TIMED_OUT, f"{log.name}: the disk takes longer than the request's timeout")
