"""OffsetCommit, OffsetFetch, and the end of offsets nobody uses."""

from collections.abc import Callable, Container, Iterable

from broker.group.config import GroupConfig
from broker.group.group import Group
from broker.group.groups import Groups
from broker.group.lifetime import expired_offsets, is_abandoned, reads
from broker.group.offset_records import is_too_long, offset_key, offset_value
from broker.group.offsets import NO_COMMITTED_OFFSET, NO_EXPIRY, NO_METADATA, CommittedOffset
from broker.group.outbox import Outbox
from broker.group.rebalance import Rebalance
from broker.group.results import (
    NO_RETENTION,
    CommitRequest,
    FetchedOffset,
    OffsetToCommit,
)
from broker.group.states import GroupState
from broker.group.transactional_offsets import Place, TransactionalOffsets
from broker.now import Now
from broker.wire.errors import ErrorCode


class Commits:
    """The offsets of all groups of one coordinator."""

    def __init__(self, config: GroupConfig, groups: Groups, rebalance: Rebalance, outbox: Outbox) -> None:
        self._config = config
        self._groups = groups
        self._rebalance = rebalance
        self._outbox = outbox
        self._transactional = TransactionalOffsets()

    def commit(self, request: CommitRequest, now: Now) -> list[ErrorCode]:
        """One error code for each offset, in their order. That a partition exists is for the caller to know."""
        group = self._group(request, now)
        may_commit = _may_commit if request.producer is None else _may_commit_in_transaction
        error = group if isinstance(group, ErrorCode) else may_commit(group, request)
        if error or isinstance(group, ErrorCode):
            return [error] * len(request.offsets)
        if request.producer is not None:
            return [self._commit_in_transaction(group, offset, request.producer, now) for offset in request.offsets]
        if group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            self._rebalance.keep_alive(group, group.members[request.member_id], now)
        return [self._commit(group, offset, request.retention_ms, now) for offset in request.offsets]

    def _group(self, request: CommitRequest, now: Now) -> Group | ErrorCode:
        """The group, made for a commit without group management if there is none; or why not."""
        if is_too_long(request.group_id):
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.find(request.group_id)
        if group is None and request.generation >= 0:
            return request.unknown_group
        return group or self._groups.find_or_make(request.group_id, now) or ErrorCode.POLICY_VIOLATION

    def _commit(self, group: Group, asked: OffsetToCommit, retention_ms: int, now: Now) -> ErrorCode:
        metadata = asked.metadata or NO_METADATA
        if len(metadata) > self._config.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        expire_ms = NO_EXPIRY if retention_ms == NO_RETENTION else now.wall_ms + retention_ms
        committed = CommittedOffset(asked.offset, asked.leader_epoch, metadata, now.wall_ms, expire_ms)
        self.put(Place(group.group_id, asked.topic, asked.partition), committed, group)
        key = offset_key(group.group_id, asked.topic, asked.partition)
        self._outbox.append(group.group_id, key, offset_value(committed))
        return ErrorCode.NONE

    def _commit_in_transaction(
        self, group: Group, asked: OffsetToCommit, producer: tuple[int, int], now: Now
    ) -> ErrorCode:
        metadata = asked.metadata or NO_METADATA
        if len(metadata) > self._config.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        committed = CommittedOffset(asked.offset, asked.leader_epoch, metadata, now.wall_ms)
        place = Place(group.group_id, asked.topic, asked.partition)
        self._transactional.put(producer[0], place, committed)
        self._outbox.append(group.group_id, offset_key(*place), offset_value(committed), producer)
        return ErrorCode.NONE

    def put(self, place: Place, committed: CommittedOffset, group: Group) -> None:
        """A plain commit stands in the log, or is about to."""
        self._transactional.overtake(place)
        group.offsets.put(place.topic, place.partition, committed)

    def put_in_transaction(self, producer_id: int, place: Place, committed: CommittedOffset) -> None:
        """A commit of a transaction stands in the log."""
        self._transactional.put(producer_id, place, committed)

    def take_back(self, request: CommitRequest, errors: Iterable[ErrorCode]) -> None:
        """The commits of a transaction, those without an error, could not be written: they do not count."""
        assert request.producer is not None
        places = {Place(request.group_id, o.topic, o.partition) for o, e in zip(request.offsets, errors) if not e}
        for place in places:
            self._transactional.take_back(request.producer[0], place)

    def end(self, producer_id: int, commit: bool, is_kept: Callable[[str], bool], wall_ms: int | None) -> None:
        """A transaction ended in the partition that keeps these groups: what counts by it is committed."""
        for place, committed in self._transactional.end(producer_id, commit, is_kept):
            group = self._groups.find(place.group_id)
            if group is None:  # it was deleted meanwhile; its offsets were committed all the same
                group = Group(place.group_id, wall_ms)
                self._groups.put(group)
            group.offsets.put(place.topic, place.partition, committed)

    def is_abandoned(self, group: Group) -> bool:
        return is_abandoned(group) and not self._transactional.has(group.group_id)

    def fetch(self, group_id: str, partitions: Iterable[tuple[str, int]] | None) -> list[FetchedOffset]:
        """The offsets of these (topic, partition), in their order; of all that have one, when None.

        A group nobody knows has none: it is no error, for every new consumer asks before it commits.
        """
        group = self._groups.find(group_id)
        if partitions is None:
            partitions = [] if group is None else [(topic, partition) for topic, partition, _ in group.offsets]
        return [
            FetchedOffset(
                *each, _committed(group, *each), is_open=self._transactional.is_open(Place(group_id, *each))
            )
            for each in partitions
        ]

    def expire(self, now: Now) -> None:
        """Forget the offsets, and then the groups, that nobody has used for `offsets.retention.minutes`."""
        for group in self._groups:
            for topic, partition in expired_offsets(group, now.wall_ms, self._config.offsets_retention_ms):
                if not self._transactional.is_open(Place(group.group_id, topic, partition)):
                    self._remove(group, topic, partition)
            if self.is_abandoned(group):
                self._groups.remove(group, now)

    def bury(self, group: Group, partitions: Iterable[tuple[str, int]]) -> list[ErrorCode]:
        """Have tombstones written for offsets; one error code for each partition. A topic that members still read keeps
        its own. When they are written, `remove` follows."""
        errors = []
        for topic, partition in partitions:
            errors.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if reads(group, topic) else ErrorCode.NONE)
            place = Place(group.group_id, topic, partition)
            there = group.offsets.get(topic, partition) is not None or self._transactional.is_open(place)
            if there and not errors[-1]:
                self._write_tombstone(place)
        return errors

    def bury_all(self, group: Group) -> None:
        """Have tombstones written for all it has committed, in a transaction or not."""
        places = {Place(group.group_id, topic, partition) for topic, partition, _ in group.offsets}
        for place in sorted(places.union(self._transactional.of_group(group.group_id))):
            self._write_tombstone(place)

    def remove(self, group: Group, partitions: Iterable[tuple[str, int]]) -> None:
        """Their tombstones stand in the log."""
        for topic, partition in partitions:
            group.offsets.remove(topic, partition)
            self.overtake(Place(group.group_id, topic, partition))

    def remove_all(self, group: Group) -> None:
        """The tombstones of all it has committed stand in the log."""
        self.remove(group, [(topic, partition) for topic, partition, _ in group.offsets])
        for place in self._transactional.of_group(group.group_id):
            self.overtake(place)

    def forget_topics(self, topics: Container[str]) -> None:
        """The topics were deleted: their offsets mean nothing for others of the same names."""
        for place in self._transactional.of_topics(topics):
            self._bury(place)  # or the end of the transaction, read again after a restart, would commit it
        for group in self._groups:
            for topic, partition in [(t, p) for t, p, _ in group.offsets if t in topics]:
                self._remove(group, topic, partition)

    def _remove(self, group: Group, topic: str, partition: int) -> None:
        group.offsets.remove(topic, partition)
        self._bury(Place(group.group_id, topic, partition))

    def _bury(self, place: Place) -> None:
        """Write a tombstone: nothing committed there before it counts, in a transaction or not."""
        self.overtake(place)
        self._write_tombstone(place)

    def _write_tombstone(self, place: Place) -> None:
        self._outbox.append(place.group_id, offset_key(*place), None)

    def overtake(self, place: Place) -> None:
        """A tombstone stands in the log."""
        self._transactional.overtake(place)


def _may_commit(group: Group, request: CommitRequest) -> ErrorCode:
    """May this commit be taken? Kafka's order of checks decides which of several errors a client sees."""
    if request.generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE  # no group management, or an administrator's reset
    error = group.check_member(request.member_id, request.instance_id)
    if error:
        return error
    if request.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.COMPLETING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _may_commit_in_transaction(group: Group, request: CommitRequest) -> ErrorCode:
    """May this TxnOffsetCommit be taken? Before v3 it does not say who the member is, and the state of the group does
    not matter: fencing is by the producer (KIP-447)."""
    if request.generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if request.generation < 0 and not request.member_id and request.instance_id is None:
        return ErrorCode.NONE
    error = group.check_member(request.member_id, request.instance_id)
    if error:
        return error
    return ErrorCode.NONE if request.generation == group.generation else ErrorCode.ILLEGAL_GENERATION


def _committed(group: Group | None, topic: str, partition: int) -> CommittedOffset:
    found = None if group is None else group.offsets.get(topic, partition)
    return NO_COMMITTED_OFFSET if found is None else found
