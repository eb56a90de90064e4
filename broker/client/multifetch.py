"""A Fetch of several partitions in one request to each leader, as early Kafka's `multifetch`."""

from collections.abc import Mapping

from broker.client.core import Address, ClientCore, Partition, Steps
from broker.wire.fetch import READ_UNCOMMITTED, FetchedPartition, FetchPartition, FetchRequest

TOTAL_BYTES_MAX = 50 << 20  # of records in one answer, as Kafka's fetch.max.bytes; a larger batch comes alone


def multifetch(
    core: ClientCore,
    offsets: Mapping[Partition, int],
    *,
    max_bytes: int = 1 << 20,
    max_wait_ms: int = 500,
    isolation_level: int = READ_UNCOMMITTED,
) -> Steps[dict[Partition, FetchedPartition]]:
    """Fetch batches of several partitions, each from its offset, at most about `max_bytes` of each.

    First ask each leader for the records that it has now. If no partition has any, ask the leaders a second time, and
    wait up to `max_wait_ms` in all for a first record. Raise BrokerError for the first partition that has an error.
    """
    unknown = dict.fromkeys(topic for topic, partition in offsets if core.known_leader(topic, partition) is None)
    if unknown:
        yield from core.metadata(unknown)
    asked: dict[Address, list[FetchPartition]] = {}
    for (topic, partition), offset in offsets.items():
        leader = yield from core.leader(topic, partition)
        epoch = core.known_epoch(topic, partition)
        asked.setdefault(leader, []).append(FetchPartition(topic, partition, offset, max_bytes, epoch))
    fetched: dict[Partition, FetchedPartition] = {}
    waits_ms = [0, max_wait_ms // len(asked)] if len(asked) > 1 else [max_wait_ms]
    for wait_ms in waits_ms:
        for leader, partitions in asked.items():
            request = FetchRequest(
                wait_ms, 1, TOTAL_BYTES_MAX, partitions, isolation_level=isolation_level, wants_ids=True
            )
            response = yield from core.fetch_answer(leader, request)
            for row in response.partitions:
                core.check(str(row.topic), row.partition, row.error_code)
                fetched[str(row.topic), row.partition] = row
            if wait_ms and any(row.size for row in response.partitions):
                break  # skip the other leaders, which had no records a moment ago
        if any(row.size for row in fetched.values()):
            break
    return {key: fetched[key] for key in offsets if key in fetched}
