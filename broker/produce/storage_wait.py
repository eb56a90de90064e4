"""The wait of a Produce's answer for the disk (`flakelog.durable.acks`, `flakelog.visible.after.flush`) and, with
acks=all, for the replicas in sync."""

from collections.abc import Sequence
from itertools import islice
from uuid import UUID

from broker.now import Now
from broker.produce.ports import ProduceServices
from broker.produce.turn import StagedProduce
from broker.replication.stored_end import StoredEnd
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError


def when_stored(
    services: ProduceServices, requests: Sequence[StagedProduce], deadline_ms: int
) -> Delayed[Sequence[StagedProduce]]:
    """Return a Delayed that waits until every batch of some requests is stored, or cannot be.

    A partition that is late at the deadline times out.
    """
    settled = 0

    def try_complete(now: Now) -> Sequence[StagedProduce] | None:
        nonlocal settled
        for staged in islice(requests, settled, None):
            for end, _ in staged.unstored or ():
                if not end.is_settled(services):
                    return None
            settled += 1
        return answer(now)

    def answer(now: Now) -> Sequence[StagedProduce]:
        for staged in requests:
            for end, index in staged.unstored or ():
                error = _error_of(services, end, staged.request.partitions[index][0])
                if error is not None:
                    services.metrics.failed_produce(end.log.topic)
                    staged.late(index, error)
        return requests

    keys, offset = set(), 0
    for staged in requests:
        for end, _ in staged.unstored or ():
            keys.add(end.log.durability.key)
            offset = max(offset, end.end_offset)
    return Delayed(keys, deadline_ms, try_complete, answer, offset=offset if len(keys) == 1 else 0)


def _error_of(services: ProduceServices, end: StoredEnd, topic: str | UUID) -> ApiError | None:
    """Return the error of a batch that was appended, None if it is stored. The request names its topic as `topic`."""
    error = end.error(services)
    if error is None:
        return None
    try:
        services.log_of(topic, end.log.partition)
    except ApiError as gone:
        return gone
    return error
