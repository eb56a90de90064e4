"""Fetch sessions (KIP-227): what a client that fetches many partitions last asked for, and what it last received.

A full request may begin a session. The requests after it name only the partitions whose parameters changed, and their
answers have only the partitions whose results changed. Each request of a session has the next epoch, so the broker
detects a lost or repeated request, and the client begins again.

    request epoch 0     full; begins a session if there is room (the answer has its id, or 0)
    request epoch -1    full; without a session
    request epoch n     continues the session it names; an answer to epoch n is due before n + 1 is sent

A session belongs to no connection. `broker.services.fetch_sessions` keeps all sessions of a broker.
"""

from collections.abc import Iterable, Sequence, Set
from typing import TypeAlias

from broker.log.leader_epochs import NO_EPOCH
from broker.log.partition_log import PartitionLog
from broker.wire.errors import ErrorCode
from broker.wire.fetch import (
    INITIAL_EPOCH,
    NO_OFFSET,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionKey,
)

Owner: TypeAlias = tuple[int, str]
"""A broker that fetches as a replica, and the listener that it uses."""
_EPOCH_MAX = 2**31 - 1


class WantedPartition:
    """A partition of a Fetch: what the client asked for and, in a session, what it last received.

    `log` is the partition's log as of `generation` of the metadata. `name` is the topic's name, None until it was
    looked up.
    """

    __slots__ = ("requested", "name", "log", "generation", "high_watermark", "log_start_offset")

    def __init__(self, requested: FetchPartition) -> None:
        self.requested = requested
        self.name: str | None = None
        self.log: PartitionLog | None = None
        self.generation = -1
        self.high_watermark = NO_OFFSET
        self.log_start_offset = NO_OFFSET

    @property
    def key(self) -> PartitionKey:
        return self.requested.topic, self.requested.partition

    def renew(self, requested: FetchPartition) -> None:
        """Take what the client asks for now.

        A follower takes no answer that it has asked for in an earlier leader epoch (rule E5). So in another epoch it is
        told again what such an answer had.
        """
        if requested.current_leader_epoch != self.requested.current_leader_epoch:
            self.high_watermark = NO_OFFSET
        self.requested = requested

    def is_news(self, result: FetchedPartition) -> bool:
        """Note what the client receives. Return False if the client knows all of it, so that the answer can omit it."""
        failed = result.error_code != ErrorCode.NONE or result.diverging is not None
        is_known = (self.high_watermark, self.log_start_offset) == (result.high_watermark, result.log_start_offset)
        # After an error any result is news, because the client must learn that the error is over. From an answer that
        # says where logs diverge, a follower takes no high watermark.
        self.high_watermark = NO_OFFSET if failed else result.high_watermark
        self.log_start_offset = result.log_start_offset
        return failed or not is_known or result.size > 0


def wanted(partitions: Sequence[FetchPartition]) -> list[WantedPartition]:
    """Return each partition once, in order. If a partition is named twice the last one counts, as in Kafka."""
    if len(partitions) == 1:
        return [WantedPartition(partitions[0])]
    return [
        WantedPartition(requested)
        for requested in {(partition.topic, partition.partition): partition for partition in partitions}.values()
    ]


def with_news(partitions: Iterable[WantedPartition], generation: int) -> list[WantedPartition]:
    """Return the partitions of a session that may have something new; most have not, most of the time.

    A partition has nothing new if the client is at the end of the log that it may see, and knows the log's state. A
    client that has read records of the current leader epoch has not read anything that the log has lost.
    """
    news = []
    for partition in partitions:
        log, requested = partition.log, partition.requested
        if (
            log is None
            or requested.fetch_offset != partition.high_watermark
            or log.high_watermark != partition.high_watermark
            or log.log_start_offset != partition.log_start_offset
            or log.offline is not None
            or partition.generation != generation
            or requested.last_fetched_epoch not in (NO_EPOCH, log.leader_epoch)
            or (requested.current_leader_epoch != log.leader_epoch and requested.current_leader_epoch != NO_EPOCH)
        ):
            news.append(partition)
    return news


def is_at_end(partition: WantedPartition, generation: int) -> bool:
    """Return True if a follower has all records of a partition, so that only other offsets of it can be news."""
    log, requested = partition.log, partition.requested
    return (
        log is not None
        and requested.fetch_offset == log.log_end_offset
        and log.offline is None
        and partition.generation == generation
        and requested.last_fetched_epoch in (NO_EPOCH, log.leader_epoch)
        and requested.current_leader_epoch in (NO_EPOCH, log.leader_epoch)
    )


class FetchSession:
    """A fetch session. `epoch` is that of the next request.

    Partitions are served in their order. Partitions that gave records move to the end, so that none starves behind
    others that always have more than an answer holds.
    """

    owner: Owner | None = None
    """The follower whose session it is; None for a consumer's."""

    def __init__(self, id: int, partitions: dict[PartitionKey, WantedPartition], by_id: bool, now_ms: int) -> None:
        self.id = id
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.by_id = by_id
        self.made_ms = now_ms
        self.used_ms = now_ms
        self._partitions = partitions

    def __len__(self) -> int:
        return len(self._partitions)

    def has_any(self, keys: Set[PartitionKey]) -> bool:
        """Return True if the session has one of these partitions."""
        return not self._partitions.keys().isdisjoint(keys)

    def partitions(self) -> list[WantedPartition]:
        return list(self._partitions.values())

    def update(self, request: FetchRequest) -> None:
        """Apply the changes of a request: partitions added, asked for with new parameters, and forgotten."""
        for requested in request.partitions:
            partition = self._partitions.get((requested.topic, requested.partition))
            if partition is None:
                self._partitions[requested.topic, requested.partition] = WantedPartition(requested)
            else:
                partition.requested = requested
        for key in request.forgotten:
            self._partitions.pop(key, None)

    def to_read(self, generation: int) -> list[WantedPartition]:
        """Return the partitions to read. `generation` is that of the metadata."""
        return self.partitions()

    def with_news(self, partitions: Sequence[WantedPartition], generation: int) -> list[WantedPartition]:
        """Return those that may have something new."""
        return with_news(partitions, generation)

    def answer(self, epoch: int, results: list[tuple[WantedPartition, FetchedPartition]]) -> FetchResponse:
        """Return the answer to the request with `epoch`. Refuse if another request of the session came meanwhile."""
        if self.epoch != next_epoch(epoch):
            return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=self.id)
        news: list[FetchedPartition] = []
        for partition, result in results:
            if partition.is_news(result):
                news.append(result)
            self._answered(partition, has_records=result.size > 0)
        return FetchResponse(news, session_id=self.id)

    def _answered(self, partition: WantedPartition, *, has_records: bool) -> None:
        """Put a partition that gave records behind the others."""
        if has_records and self._partitions.pop(partition.key, None) is not None:
            self._partitions[partition.key] = partition

    def close(self) -> None:
        """Let go of what refers to the session, which no request continues."""


def next_epoch(epoch: int) -> int:
    """Return the next epoch. The largest epoch is followed by 1, because 0 and -1 have other meanings."""
    return 1 if epoch == _EPOCH_MAX else epoch + 1
