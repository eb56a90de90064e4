"""The fetches of one broker, without sockets: one request at a time, for all partitions whose records are wanted.

    want --> wanted --> request: names what changed --> accept --> an answer for each partition that has something new

**Sessions** (KIP-227). The first request names every wanted partition. If the broker keeps a session, each later one
names only partitions that are wanted from another offset or no longer wanted. So the work is proportional to the
partitions that have records, and idle partitions cost nothing. A broker without room for a session gets every wanted
partition each time. When the broker has lost the session, the next request begins a new one.

**Topics** are named by their ids (KIP-516) if all are known and the broker has v13, else by their names. With ids, a
topic that was deleted and made again is an error, and is never read by mistake.

**Epochs.** Each partition names the leader epoch that the client knows (KIP-320). A broker that leads in another epoch
answers with an error, also to a fetch that waits for records.

**The wait.** A broker answers the requests of a connection in order, so the fetches need a connection of their own. A
fetch that is out cannot be called back, so a partition that is wanted meanwhile waits for its end. Therefore a fetch
takes the longest wait only if no partition is away, that is answered and not wanted again yet. Otherwise it takes as
long as the last one has been away by now, at least WAIT_MS_MIN. So being late costs a partition at most the time it was
away once more. The price is short fetches: 5, 10, 20 ms and so on up to the longest wait, six after each answer with
the default of 200 ms, and only while no other partition has records.

**Fairness.** A partition that gave records goes to the end of the broker's order, and to the end of this one's.
"""

from typing import NamedTuple, TypeAlias
from uuid import UUID

from broker.client.core import Address, ClientCore, Steps, fetch_exchange
from broker.client.leaders import NO_EPOCH
from broker.wire import fetch
from broker.wire.errors import ErrorCode
from broker.wire.fetch import (
    CONSUMER,
    INITIAL_EPOCH,
    NO_OFFSET,
    NO_SESSION_ID,
    READ_COMMITTED,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionKey,
)

WAIT_MS_MIN = 5
BY_NAME_MAX = 12
BY_ID_MAX = 16  # later versions concern followers only
LOST = {
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
}
"""Errors of a session; a new one mends them."""
EPOCH_MAX = 2**31 - 1
_record = tuple.__new__  # as FetchPartition(...), at half its price

Key: TypeAlias = tuple[str, int]  # topic, partition


class PartitionAsk(NamedTuple):
    """A partition whose records are wanted from `offset` on, at most `max_bytes`; the first batch may be larger.

    `last_epoch` is the leader epoch of the record before `offset`, -1 if it is not known. If the log has another record
    there by now, the result has a diverging epoch (KIP-595).
    """

    topic: str
    partition: int
    offset: int
    max_bytes: int
    topic_id: UUID | None = None
    last_epoch: int = -1
    log_start_offset: int = -1
    """Where the log of a follower begins."""

    @property
    def key(self) -> Key:
        return self.topic, self.partition


class FetchSession:
    """The asks of one broker, and what its fetch session knows of them. Times are in ms on the caller's clock."""

    def __init__(
        self, max_wait_ms: int, max_bytes: int, isolation_level: int, *, min_bytes: int = 1, replica_id: int = CONSUMER
    ) -> None:
        """An answer has at most `max_bytes` of records, or one batch if that is larger.

        With fewer than `min_bytes` of records the broker waits for more, as long as it may hold the request.
        `replica_id` is the broker whose followers fetch. Another start of a leader's log is news to them.
        """
        self._replica_id = replica_id
        self._max_wait_ms = max_wait_ms
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._isolation_level = isolation_level
        self._asks: dict[Key, PartitionAsk] = {}  # the longest wanted first
        self._leader_epochs: dict[Key, int] = {}
        self._changed: dict[Key, None] = {}  # partitions that the session may know otherwise than they are wanted
        self._known: dict[Key, FetchPartition] = {}  # what the broker was asked for last
        self._keys: dict[str | UUID, dict[int, Key]] = {}  # of the known, by their topics' names in requests
        self._ends: dict[Key, tuple[int, int]] = {}  # the end and the start of the log that each was told last
        self._id = NO_SESSION_ID
        self._epoch = INITIAL_EPOCH
        self._by_id = False
        self._without_id = 0  # asks without a topic id
        self._away: set[Key] = set()
        self._joined_ms = self._answered_ms = 0

    def __len__(self) -> int:
        """Number of partitions that are wanted now."""
        return len(self._asks)

    @property
    def has_topic_ids(self) -> bool:
        """True if requests can name all topics by their ids."""
        return not self._without_id

    def want(self, ask: PartitionAsk, now_ms: int, leader_epoch: int = NO_EPOCH) -> PartitionAsk | None:
        """Add a partition, whose broker leads in `leader_epoch`. Return the ask that it replaces.

        That ask is never answered.
        """
        key = ask.topic, ask.partition
        replaced = self._remove(key) if key in self._asks else None
        self._asks[key] = ask
        self._leader_epochs[key] = leader_epoch
        self._without_id += ask.topic_id is None
        self._changed[key] = None
        if replaced is None and key not in self._away:
            self._joined_ms = self._answered_ms = now_ms  # others of its kind may follow
        self._away.discard(key)
        return replaced

    def forget(self, key: Key) -> None:
        """Want a partition no more."""
        self._remove(key)
        self._away.discard(key)
        self._ends.pop(key, None)
        self._changed[key] = None

    def request(self, by_id: bool, now_ms: int) -> FetchRequest:
        """Return the next request. Pass its answer to `accept`, or call `fail` if no answer comes."""
        if by_id != self._by_id:
            self._by_id = by_id
            self._epoch = INITIAL_EPOCH
        if self._epoch == INITIAL_EPOCH:
            self._known.clear()
            self._keys.clear()
            self._changed = dict.fromkeys(self._asks)
        partitions, forgotten = self._changes()
        return FetchRequest(
            self._wait_ms(now_ms),
            self._min_bytes,
            self._max_bytes,
            partitions,
            self._isolation_level,
            self._id,
            self._epoch,
            tuple(forgotten),
            replica_id=self._replica_id,
            wants_ids=True,
        )

    def accept(self, response: FetchResponse, now_ms: int) -> list[tuple[PartitionAsk, FetchedPartition]]:
        """Return the asks that are answered, each with its result, which may be an error.

        An ask without anything new stays. After an error of the whole request, every ask is answered with it, unless a
        new session may mend it.
        """
        if response.error_code:
            may_mend = response.error_code in LOST and self._epoch != INITIAL_EPOCH
            self._epoch = INITIAL_EPOCH
            if may_mend:
                return []
            return [(ask, FetchedPartition(*ask.key, response.error_code)) for ask in self.fail()]
        self._id = response.session_id
        self._epoch = INITIAL_EPOCH if self._id == NO_SESSION_ID else _next(self._epoch)
        answered = []
        topic: str | UUID | None = None
        keys: dict[int, Key] = {}
        for result in response.partitions:
            if result.topic is not topic:
                topic = result.topic
                keys = self._keys.get(topic, {})
            key = keys.get(result.partition)
            ask = self._asks.get(key) if key is not None else None
            if key is None or ask is None or not self._is_asked_so(key, ask) or not self._is_news(key, result):
                continue
            self._remove(key)
            self._changed[key] = None
            self._away.add(key)
            result.topic = ask.topic
            answered.append((ask, result))
        if answered:
            self._answered_ms = now_ms
        return answered

    def fail(self) -> list[PartitionAsk]:
        """Return all asks, which are no longer wanted: the broker did not answer. The next request begins anew."""
        self._epoch = INITIAL_EPOCH
        asks = list(self._asks.values())
        self._away.update(self._asks)
        self._asks.clear()
        self._leader_epochs.clear()
        self._ends.clear()
        self._without_id = 0
        return asks

    def _remove(self, key: Key) -> PartitionAsk | None:
        ask = self._asks.pop(key, None)
        self._leader_epochs.pop(key, None)
        if ask is not None and ask.topic_id is None:
            self._without_id -= 1
        return ask

    def _changes(self) -> tuple[list[FetchPartition], list[PartitionKey]]:
        """Return what the broker is asked for anew, and what it should forget."""
        partitions, forgotten = [], []
        for key in self._changed:
            known, asked = self._known.get(key), self._asked(key)
            if known is not None and (asked is None or asked[:2] != known[:2]):
                forgotten.append((known.topic, known.partition))
                del self._known[key]
                self._name_no_more(known)
            if asked is not None and asked != known:
                partitions.append(asked)
                self._known[key] = asked
                if known is None or known.topic is not asked.topic:
                    self._keys.setdefault(asked.topic, {})[asked.partition] = key
        self._changed.clear()
        return partitions, forgotten

    def _name_no_more(self, forgotten: FetchPartition) -> None:
        keys = self._keys[forgotten.topic]
        del keys[forgotten.partition]
        if not keys:
            del self._keys[forgotten.topic]

    def _asked(self, key: Key) -> FetchPartition | None:
        """Return an ask as requests have it, None if the partition is not wanted."""
        ask = self._asks.get(key)
        if ask is None:
            return None
        topic = ask.topic_id if self._by_id and ask.topic_id is not None else ask.topic
        epoch = self._leader_epochs[key]
        fields = topic, ask.partition, ask.offset, ask.max_bytes, epoch, ask.last_epoch, ask.log_start_offset
        return _record(FetchPartition, fields)

    def _is_asked_so(self, key: Key, ask: PartitionAsk) -> bool:
        """Return True if the answer is to this ask, and not to one that it replaced while the request was out.

        An answer counts only in the leader epoch that was asked in: the log may have been cut since (rule E5).
        """
        known = self._known.get(key)
        if known is None or known.fetch_offset != ask.offset or known.current_leader_epoch != self._leader_epochs[key]:
            return False
        topic = ask.topic_id if self._by_id and ask.topic_id is not None else ask.topic
        return topic is known.topic or topic == known.topic

    def _is_news(self, key: Key, result: FetchedPartition) -> bool:
        """Return True for an error, records, a diverging epoch, and another end of the log than was told before."""
        if result.error_code or result.diverging is not None:
            self._ends.pop(key, None)  # the caller takes no end from such an answer
            return True
        start = NO_OFFSET if self._replica_id == CONSUMER else result.log_start_offset
        end = end_of(result, self._isolation_level), start
        before, self._ends[key] = self._ends.get(key), end
        return end != before or result.size > 0

    def _wait_ms(self, now_ms: int) -> int:
        """Return how long the broker may hold the next request; see the module."""
        if not self._away and now_ms - self._joined_ms >= self._max_wait_ms:
            return self._max_wait_ms
        return min(self._max_wait_ms, max(WAIT_MS_MIN, now_ms - self._answered_ms))


def end_of(result: FetchedPartition, isolation_level: int) -> int:
    """Return the end of the log as a reader sees it: the last stable offset at READ_COMMITTED (KIP-98)."""
    return result.last_stable_offset if isolation_level == READ_COMMITTED else result.high_watermark


def fetch_next(core: ClientCore, address: Address, session: FetchSession, now_ms: int) -> Steps[FetchResponse]:
    """Carry out the session's next request; return the answer, for `accept`."""
    newest = yield from core.version(address, fetch.API_KEY, BY_ID_MAX)
    by_id = session.has_topic_ids and newest >= fetch.TOPIC_IDS
    version = newest if by_id else min(newest, BY_NAME_MAX)
    answer = yield fetch_exchange(address, version, session.request(by_id, now_ms))
    return fetch.decode_response(version, answer, 0)


def _next(epoch: int) -> int:
    return 1 if epoch == EPOCH_MAX else epoch + 1
