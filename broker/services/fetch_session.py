"""Fetch sessions (KIP-227): what a client that fetches many partitions last asked for, and what it last received.

A full request may begin a session. The requests after it name only the partitions whose parameters changed, and their
answers have only the partitions whose results changed. Each request of a session has the next epoch, so the broker
detects a lost or repeated request, and the client begins again.

    request epoch 0     full; begins a session if there is room (the answer has its id, or 0)
    request epoch -1    full; without a session
    request epoch n     continues the session it names; an answer to epoch n is due before n + 1 is sent

A session belongs to no connection. The number of sessions and the number of partitions in all of them are limited; a
client without room continues with full requests. To make room the broker evicts a session that was not used for two
minutes. If all were used, it evicts the smallest session older than two minutes if that is smaller than the new one,
because large sessions save most.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from broker.log.leader_epochs import NO_EPOCH
from broker.log.partition_log import PartitionLog
from broker.now import Now
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.fetch import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_OFFSET,
    NO_SESSION_ID,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionKey,
)

EVICTION_AGE_MS = 120_000  # Kafka's; a shorter age would let two clients evict each other again and again
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

    def is_news(self, result: FetchedPartition) -> bool:
        """Note what the client receives. Return False if the client knows all of it, so that the answer can omit it."""
        failed = result.error_code != ErrorCode.NONE
        is_known = (self.high_watermark, self.log_start_offset) == (result.high_watermark, result.log_start_offset)
        # After an error any result is news, because the client must learn that the error is over.
        self.high_watermark = NO_OFFSET if failed else result.high_watermark
        self.log_start_offset = result.log_start_offset
        return failed or not is_known or result.diverging is not None or result.size > 0


def wanted(partitions: Sequence[FetchPartition]) -> list[WantedPartition]:
    """Return each partition once, in order. If a partition is named twice the last one counts, as in Kafka."""
    if len(partitions) == 1:
        return [WantedPartition(partitions[0])]
    return [
        WantedPartition(requested)
        for requested in {(partition.topic, partition.partition): partition for partition in partitions}.values()
    ]


def with_news(
    partitions: Iterable[WantedPartition], generation: int, is_follower: bool = False
) -> list[WantedPartition]:
    """Return the partitions of a session that may have something new; most have not, most of the time.

    A partition has nothing new if the client is at the end of the log that it may see, and knows the log's state. A
    client that has read records of the current leader epoch has not read anything that the log has lost. A follower
    sees the log up to its end.
    """
    news = []
    for partition in partitions:
        log, requested = partition.log, partition.requested
        if (
            log is None
            or requested.fetch_offset != (log.log_end_offset if is_follower else partition.high_watermark)
            or log.high_watermark != partition.high_watermark
            or log.log_start_offset != partition.log_start_offset
            or log.offline is not None
            or partition.generation != generation
            or requested.last_fetched_epoch not in (NO_EPOCH, log.leader_epoch)
            or (requested.current_leader_epoch != log.leader_epoch and requested.current_leader_epoch != NO_EPOCH)
        ):
            news.append(partition)
    return news


class FetchSession:
    """A fetch session. `epoch` is that of the next request.

    Partitions are served in their order. Partitions that gave records move to the end, so that none starves behind
    others that always have more than an answer holds.
    """

    def __init__(self, id: int, partitions: dict[PartitionKey, WantedPartition], by_id: bool, now_ms: int) -> None:
        self.id = id
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.by_id = by_id
        self.made_ms = now_ms
        self.used_ms = now_ms
        self._partitions = partitions

    def __len__(self) -> int:
        return len(self._partitions)

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

    def answer(self, epoch: int, results: list[tuple[WantedPartition, FetchedPartition]]) -> FetchResponse:
        """Return the answer to the request with `epoch`. Refuse if another request of the session came meanwhile."""
        if self.epoch != next_epoch(epoch):
            return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=self.id)
        news: list[FetchedPartition] = []
        for partition, result in results:
            if partition.is_news(result):
                news.append(result)
            if result.size and self._partitions.pop(partition.key, None) is not None:
                self._partitions[partition.key] = partition
        return FetchResponse(news, session_id=self.id)


class FetchSessions:
    """All sessions of one broker. `new_id` returns random numbers from 1 to 2^31 - 1."""

    def __init__(self, sessions_max: int, partitions_max: int, new_id: Callable[[], int]) -> None:
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._new_id = new_id
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # least recently used first
        self.partitions = 0
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def resume(self, request: FetchRequest, by_id: bool, now: Now) -> FetchSession | None:
        """Return the session that a request continues, updated by the request. Return None if the request is full.

        A full request closes the session it names. Raise ApiError if the session does not exist, or is not in the state
        that the client thinks.
        """
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._remove(request.session_id)
            return None
        session = self._sessions.get(request.session_id)
        if session is None:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"there is no fetch session {request.session_id}")
        if session.epoch != request.session_epoch:
            reason = f"fetch session {session.id} is at epoch {session.epoch}, not {request.session_epoch}"
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH, reason)
        if session.by_id != by_id:
            named = "ids" if session.by_id else "names"
            reason = f"fetch session {session.id} names topics by their {named}"
            raise ApiError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, reason)
        return self._go_on(session, request, now)

    def _go_on(self, session: FetchSession, request: FetchRequest, now: Now) -> FetchSession | None:
        before = len(session)
        session.update(request)
        self.partitions += len(session) - before
        if not len(session):
            self._remove(session.id)
            return None
        if self.partitions > self._partitions_max and len(session) > before:
            self._remove(session.id)
            reason = (
                f"fetch sessions remember {self._partitions_max} partitions (flakelog.fetch.session.partitions.max)"
            )
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, reason)
        session.epoch = next_epoch(session.epoch)
        session.used_ms = now.ms
        self._sessions.move_to_end(session.id)
        return session

    def open(self, results: list[tuple[WantedPartition, FetchedPartition]], by_id: bool, now: Now) -> int:
        """Begin a session for a client that receives `results`. Return its id, or 0 if there is no room for it."""
        size = len(results)
        if not self._has_room(size, now):
            return NO_SESSION_ID
        for partition, result in results:
            partition.is_news(result)
        id = self._new_id()
        while id in self._sessions or id == NO_SESSION_ID:
            id = self._new_id()
        self._sessions[id] = FetchSession(id, {partition.key: partition for partition, _ in results}, by_id, now.ms)
        self.partitions += size
        return id

    def _has_room(self, size: int, now: Now) -> bool:
        if len(self._sessions) >= self._sessions_max and not self._evict(size, now):
            return False
        return self.partitions + size <= self._partitions_max

    def _evict(self, size: int, now: Now) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now.ms - oldest.used_ms <= EVICTION_AGE_MS:
            aged = (session for session in self._sessions.values() if now.ms - session.made_ms > EVICTION_AGE_MS)
            oldest = min(aged, key=len, default=None)
            if oldest is None or len(oldest) >= size:
                return False
        self._remove(oldest.id)
        self.evicted += 1
        return True

    def _remove(self, id: int) -> None:
        session = self._sessions.pop(id, None)
        if session is not None:
            self.partitions -= len(session)


def next_epoch(epoch: int) -> int:
    """Return the next epoch. The largest epoch is followed by 1, because 0 and -1 have other meanings."""
    return 1 if epoch == _EPOCH_MAX else epoch + 1
