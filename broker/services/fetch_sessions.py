"""All fetch sessions of a broker (KIP-227).

The number of sessions and the number of partitions in all of them are limited; a client without room continues with
full requests. To make room the broker evicts a session that was not used for two minutes. If all were used, it evicts
the smallest session older than two minutes if that is smaller than the new one, because large sessions save most. As
in Kafka, a follower's session counts as larger than any consumer's, and makes room at the cost of consumers of any age.

A follower's session (`broker.services.follower_session`) is continued by that follower only, because its requests count
for partitions that they do not name. A new session of a follower replaces one of its sessions with a partition of the
new one: a follower that has lost its answers, or was killed, would leave sessions that listen to its logs.
"""

from collections import OrderedDict
from collections.abc import Callable

from broker.now import Now
from broker.services.fetch_session import FetchSession, Owner, WantedPartition, next_epoch
from broker.services.follower_session import FollowerSession
from broker.waiting.purgatory import Purgatory
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.fetch import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION_ID, FetchedPartition, FetchRequest, PartitionKey

EVICTION_AGE_MS = 120_000  # Kafka's; a shorter age would let two clients evict each other again and again


class FetchSessions:
    """All sessions of one broker. `new_id` returns random numbers from 1 to 2^31 - 1.

    `serves_brokers` returns True for a listener that other brokers may use; there is none on a server alone.
    """

    def __init__(
        self,
        sessions_max: int,
        partitions_max: int,
        new_id: Callable[[], int],
        purgatory: Purgatory,
        serves_brokers: Callable[[str], bool] = lambda listener: False,
    ) -> None:
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._new_id = new_id
        self._purgatory = purgatory
        self._serves_brokers = serves_brokers
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # least recently used first
        self.partitions = 0
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def owner_of(self, request: FetchRequest, listener: str) -> Owner | None:
        """Return the follower that sends a request over a listener of brokers; None for any other client."""
        is_follower = request.replica_id >= 0 and self._serves_brokers(listener)
        return (request.replica_id, listener) if is_follower else None

    def resume(self, request: FetchRequest, by_id: bool, now: Now, listener: str = "") -> FetchSession | None:
        """Return the session that a request continues, updated by the request. Return None if the request is full.

        A full request closes the session it names. Raise ApiError if the session does not exist, or is not in the state
        that the client thinks.
        """
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._remove(request.session_id)
            return None
        session = self._sessions.get(request.session_id)
        if session is None or session.owner != self.owner_of(request, listener):
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
        number = len(session)
        self.partitions += number - before
        if not number:
            self._remove(session.id)
            return None
        if self.partitions > self._partitions_max and number > before:
            self._remove(session.id)
            reason = (
                f"fetch sessions remember {self._partitions_max} partitions (flakelog.fetch.session.partitions.max)"
            )
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, reason)
        session.epoch = next_epoch(session.epoch)
        session.used_ms = now.ms
        self._sessions.move_to_end(session.id)
        return session

    def open(
        self,
        results: list[tuple[WantedPartition, FetchedPartition]],
        by_id: bool,
        now: Now,
        owner: Owner | None = None,
    ) -> int:
        """Begin a session for a client that receives `results`. Return its id, or 0 if there is no room for it.

        `owner` is the follower whose session it is, None for a consumer's.
        """
        size = len(results)
        if owner is not None:
            self._replace(owner, {partition.key for partition, _ in results})
        if not self._has_room(size, owner is not None, now):
            return NO_SESSION_ID
        for partition, result in results:
            partition.is_news(result)
        id = self._new_id()
        while id in self._sessions or id == NO_SESSION_ID:
            id = self._new_id()
        partitions = {partition.key: partition for partition, _ in results}
        if owner is None:
            self._sessions[id] = FetchSession(id, partitions, by_id, now.ms)
        else:
            self._sessions[id] = FollowerSession(id, partitions, by_id, now.ms, owner, self._purgatory)
        self.partitions += size
        return id

    def _replace(self, owner: Owner, keys: set[PartitionKey]) -> None:
        replaced = [id for id, session in self._sessions.items() if session.owner == owner and session.has_any(keys)]
        for id in replaced:
            self._remove(id)

    def _has_room(self, size: int, is_follower: bool, now: Now) -> bool:
        if len(self._sessions) >= self._sessions_max and not self._evict(size, is_follower, now):
            return False
        return self.partitions + size <= self._partitions_max

    def _evict(self, size: int, is_follower: bool, now: Now) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now.ms - oldest.used_ms <= EVICTION_AGE_MS:
            evictable = (
                session
                for session in self._sessions.values()
                if now.ms - session.made_ms > EVICTION_AGE_MS or (is_follower and session.owner is None)
            )
            oldest = min(evictable, key=_rank, default=None)
            if oldest is None or _rank(oldest) >= (is_follower, size):
                return False
        self._remove(oldest.id)
        self.evicted += 1
        return True

    def _remove(self, id: int) -> None:
        session = self._sessions.pop(id, None)
        if session is not None:
            self.partitions -= len(session)
            session.close()


def _rank(session: FetchSession) -> tuple[bool, int]:
    return session.owner is not None, len(session)
