"""A broker's followers of the partitions that another broker leads: what they fetch from it (Kafka's ReplicaFetcher).

    follow -> request -> answered: Copy      -> append_copied -> go_on
                                   Truncate  -> the log is opened anew -> follow
                                   failed    -> go_on, or asked again later

One request is under way at a time. The owner carries out what `answered` returns, and a partition is asked for again
once it says `go_on`: with durable acks when its disk has the records (rule S3).

A follower names the newest epoch of its file of epochs, never that of its last record (rule T1). If the leader's log
ends that epoch earlier, its answer says where (KIP-595), and the follower drops what the leader does not have. Records
that fail a check are asked for again over a new connection; at the third time the follower stops, by name, until the
next order of the controller. All others go on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias
from uuid import UUID

from broker.client.fetch_session import FetchSession, Key, PartitionAsk
from broker.log import leader_epochs
from broker.log.partition_log import PartitionLog
from broker.now import Now
from broker.waiting.pending import Pending
from broker.wire.errors import ErrorCode
from broker.wire.fetch import READ_UNCOMMITTED, FetchedPartition, FetchRequest, FetchResponse, IdRegion
from broker.wire.frame import FileRegion
from broker.wire.tags import NO_ID

CHECKS_MAX = 3
"""So often are records asked for that fail a check."""
SOON_MS = 100
"""The pause after an answer of a leader that has not taken its order yet. It takes the order soon."""
_record = tuple.__new__  # as PartitionAsk(...) and Copy(...), at half their price
NOT_LEADING_YET = frozenset({
    ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_ID
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Kafka's settings of its fetchers: replica.fetch.wait.max.ms, .response.max.bytes, .max.bytes, .backoff.ms,
    .min.bytes."""

    wait_max_ms: int = 500
    response_max_bytes: int = 10 << 20
    partition_max_bytes: int = 1 << 20
    backoff_ms: int = 1_000
    min_bytes: int = 1


class Copy(NamedTuple):
    """Records to append as they are, none if only the leader's offsets are news."""

    log: PartitionLog
    records: memoryview
    ids: IdRegion | None
    """The ids of the records; None without records."""
    high_watermark: int
    """The leader's high watermark; the follower's is at most its own end (rule R4)."""
    log_start_offset: int
    """Where the leader's log begins."""
    last_id: int = NO_ID
    """The last id of the leader's log if that is empty (rule I7), else NO_ID."""


class Truncate(NamedTuple):
    """Cut a log at an offset, because the leader has none of what follows; with `is_anew`, begin an empty log there.

    Committed records go after an unclean election, or a power cut of all.
    """

    log: PartitionLog
    offset: int
    is_anew: bool = False
    last_id: int = NO_ID
    """The last id before `offset`, if a log that begins there may be in sync before it has copied a record."""

    @property
    def dropped(self) -> range:
        """The offsets whose records go, without those that the leader's log has deleted."""
        return range(max(self.offset, self.log.log_start_offset), self.log.log_end_offset)

    @property
    def committed(self) -> int:
        """The least number of committed records among them. The high watermark of a follower is late, most of all after
        a crash (replica.high.watermark.checkpoint.interval.ms), so that more of them may have been committed."""
        return max(self.log.high_watermark - self.dropped.start, 0)


Decision: TypeAlias = Copy | Truncate


@dataclass(slots=True)
class _Followed:
    log: PartitionLog
    topic_id: UUID
    leader_epoch: int
    failed_checks: int = 0
    leader_high_watermark: int | None = None
    """As the leader's last answer had it; None before the first, and while the leader does not answer."""
    retry_ms: int | None = None
    """When it is asked for again; None while it is asked for, or until the owner says `go_on`."""

    @property
    def lag(self) -> int | None:
        end_offset = self.leader_high_watermark
        return None if end_offset is None else max(end_offset - self.log.log_end_offset, 0)


class ReplicaFetcher:
    """The followers of broker `broker_id` of the partitions that one leader leads.

    It marks `pending` when `request` may have one.
    """

    def __init__(self, broker_id: int, limits: FetchLimits, pending: Pending) -> None:
        self._limits = limits
        self._pending = pending
        self._session = FetchSession(
            limits.wait_max_ms,
            limits.response_max_bytes,
            READ_UNCOMMITTED,
            min_bytes=limits.min_bytes,
            replica_id=broker_id,
        )
        self._followed: dict[Key, _Followed] = {}
        self._retries: dict[Key, _Followed] = {}
        """The partitions that are asked for again at their time."""
        self._failed: dict[str, str] = {}
        self._stalled: dict[str, str] = {}
        self._is_under_way = False
        self._pause_ends_ms = 0
        self._is_distrusted = False

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def failed(self) -> Mapping[str, str]:
        """Return why partitions have stopped, by their names: their records failed a check three times."""
        return self._failed

    @property
    def stalled(self) -> Mapping[str, str]:
        """Return why the records of partitions cannot be written now, by their names. They are asked for again."""
        return self._stalled

    # --- the partitions ------------------------------------------------------------------------------------------

    def follow(
        self, log: PartitionLog, topic_id: UUID, leader_epoch: int, now: Now, *, waits: bool = False
    ) -> None:
        """Fetch a partition in a leader epoch, from its log's end. If it `waits`, begin once the owner says `go_on`."""
        key = log.topic, log.partition
        self._failed.pop(log.name, None)
        self._stalled.pop(log.name, None)
        followed = self._followed[key] = _Followed(log, topic_id, leader_epoch)
        self._retries.pop(key, None)
        if not waits:
            self._want(key, followed, now)

    def unfollow(self, topic: str, partition: int) -> None:
        """Fetch a partition no more. An answer that is under way counts for nothing."""
        key = topic, partition
        followed = self._followed.pop(key, None)
        self._retries.pop(key, None)
        if followed is not None:
            self._failed.pop(followed.log.name, None)
            self._stalled.pop(followed.log.name, None)
            self._session.forget(key)

    def go_on(self, log: PartitionLog, now: Now) -> None:
        """Fetch a partition from its log's end, because what came before is appended."""
        key = log.topic, log.partition
        followed = self._followed.get(key)
        if followed is not None and followed.log is log:
            followed.failed_checks = 0
            if self._stalled:
                self._stalled.pop(log.name, None)
            self._want(key, followed, now)

    def failed_check(self, log: PartitionLog, reason: str, now: Now) -> bool:
        """Ask again for records that failed a check, over a new connection. Return False if the partition stops."""
        followed = self._of(log)
        if followed is None:
            return True
        followed.failed_checks += 1
        if followed.failed_checks >= CHECKS_MAX:
            self._failed[log.name] = reason
            self._session.forget((log.topic, log.partition))
            return False
        self._is_distrusted = True
        self._want((log.topic, log.partition), followed, now)
        return True

    def try_later(self, log: PartitionLog, reason: str, now: Now) -> None:
        """Ask again later for records that could not be written."""
        followed = self._of(log)
        if followed is not None:
            self._stalled[log.name] = reason
            self._try_later((log.topic, log.partition), followed, self._limits.backoff_ms, now)

    def _of(self, log: PartitionLog) -> _Followed | None:
        """Return the state of a log that is still followed."""
        followed = self._followed.get((log.topic, log.partition))
        return followed if followed is not None and followed.log is log else None

    def _want(self, key: Key, followed: _Followed, now: Now) -> None:
        log = followed.log
        followed.retry_ms = None
        last_epoch = log.epochs[-1][0] if log.epochs else leader_epochs.NO_EPOCH
        fields = (
            *key,
            log.log_end_offset,
            self._limits.partition_max_bytes,
            followed.topic_id,
            last_epoch,
            log.log_start_offset,
        )
        self._session.want(_record(PartitionAsk, fields), now.ms, followed.leader_epoch)
        self._pending.fetches = True

    def _try_later(self, key: Key, followed: _Followed, pause_ms: int, now: Now) -> None:
        followed.retry_ms = now.ms + pause_ms
        self._retries[key] = followed

    def lags(self) -> dict[Key, int | None]:
        """Return how many committed offsets of its leader each log lacks; None if the leader does not tell now."""
        return {key: followed.lag for key, followed in self._followed.items()}

    # --- requests ------------------------------------------------------------------------------------------------

    def request(self, broker_epoch: int, now: Now) -> FetchRequest | None:
        """Return the next request, None while one is under way, or nothing is wanted. `broker_epoch` is of this life.
        """
        if self._retries:
            for key, followed in list(self._retries.items()):
                if (followed.retry_ms or 0) <= now.ms:
                    del self._retries[key]
                    self._want(key, followed, now)
        if self._is_under_way or now.ms < self._pause_ends_ms or not len(self._session):
            return None
        self._is_under_way = True
        return self._session.request(True, now.ms)._replace(replica_epoch=broker_epoch)

    def take_distrust(self) -> bool:
        """Return True if the next request shall go over a new connection."""
        is_distrusted, self._is_distrusted = self._is_distrusted, False
        return is_distrusted

    def next_deadline_ms(self) -> int | None:
        """Return when `request` may have one, None if only an answer or the owner leads to it."""
        retries = [followed.retry_ms for followed in self._retries.values() if followed.retry_ms is not None]
        if not self._is_under_way and len(self._session):
            retries.append(self._pause_ends_ms)
        return min(retries, default=None)

    def answered(self, response: FetchResponse | None, now: Now) -> list[Decision]:
        """Take the answer to the request, None if the leader was not reached. Return what it means for the logs."""
        self._is_under_way = False
        self._pending.fetches = True
        if response is None:
            self._pause_ends_ms = now.ms + self._limits.backoff_ms
            for state in self._followed.values():
                state.leader_high_watermark = None
            for ask in self._session.fail():
                followed = self._followed.get(ask.key)
                if followed is not None:
                    self._want(ask.key, followed, now)
            return []
        decisions = []
        for ask, result in self._session.accept(response, now.ms):
            followed = self._followed.get((ask.topic, ask.partition))
            if followed is None:
                continue
            decision = decide(followed.log, result)
            if decision is None:
                backoff_ms = self._limits.backoff_ms
                soon = ErrorCode(result.error_code) in NOT_LEADING_YET
                self._try_later(ask.key, followed, min(SOON_MS, backoff_ms) if soon else backoff_ms, now)
            else:
                decisions.append(decision)
                if isinstance(decision, Copy):
                    followed.leader_high_watermark = decision.high_watermark
        return decisions


def decide(log: PartitionLog, result: FetchedPartition) -> Decision | None:
    """Return what a leader's answer means for a follower's log, None if it is asked for again later."""
    start = result.log_start_offset
    if result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and (start > log.log_end_offset or not log.epochs):
        return Truncate(log, start, is_anew=True, last_id=result.last_id)
    if result.error_code:
        return None
    if result.diverging is not None:
        offset = truncation_offset(log, *result.diverging)
        # Below its start, the leader does not know whether the two logs are equal. So the follower keeps nothing there.
        if offset > start:
            return Truncate(log, offset)
        return Truncate(log, start, is_anew=True, last_id=result.last_id)
    records = result.records
    assert not isinstance(records, FileRegion), "an answer that came over a connection has bytes"
    return _record(Copy, (log, memoryview(records), result.ids, result.high_watermark, start, result.last_id))


def truncation_offset(log: PartitionLog, epoch: int, end_offset: int) -> int:
    """Return where to cut a log, given that its leader's log ends `epoch` at `end_offset` (KIP-595).

    If this log has no such epoch, it is cut at the end of its newest epoch before; the next fetch names that one.
    """
    own_epoch, own_end_offset = leader_epochs.end_of(log.epochs, epoch, log.log_end_offset)
    if own_epoch == leader_epochs.NO_EPOCH:
        return min(end_offset, log.log_end_offset)
    if own_epoch != epoch:
        return min(own_end_offset, log.log_end_offset)
    return min(own_end_offset, end_offset)
