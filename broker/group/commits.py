"""OffsetCommit, OffsetFetch, and how offsets are taken away."""

from collections.abc import Callable, Iterable

from broker.group.config import GroupConfig
from broker.group.group import Group
from broker.group.groups import Groups
from broker.group.lifetime import is_abandoned, reads
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
        self.lost: dict[Place, None] = {}
        """Where the topic is gone: what was committed there is nobody's, and its tombstone is still to be written."""

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
        if place in self.lost:  # its tombstone would take this one too
            self.write_tombstone(place)
            self.forget(place)
        self._transactional.put(producer[0], place, committed)
        self._outbox.append(group.group_id, offset_key(*place), offset_value(committed), producer)
        return ErrorCode.NONE

    def put(self, place: Place, committed: CommittedOffset, group: Group) -> None:
        """A plain commit stands in the log, or is about to."""
        self._transactional.overtake(place)
        self.lost.pop(place, None)
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
        return is_abandoned(group) and not self.is_open_in(group)

    def fetch(self, group_id: str, partitions: Iterable[tuple[str, int]] | None) -> list[FetchedOffset]:
        """The offsets of these (topic, partition), in their order; of all that have one, when None.

        A group nobody knows has none: it is no error, for every new consumer asks before it commits.
        """
        group = self._groups.find(group_id)
        if partitions is None:
            partitions = [] if group is None else [(topic, partition) for topic, partition, _ in group.offsets]
            partitions = [each for each in partitions if Place(group_id, *each) not in self.lost]
        return [self._fetched(group, Place(group_id, *each)) for each in partitions]

    def _fetched(self, group: Group | None, place: Place) -> FetchedOffset:
        found = None if group is None or place in self.lost else group.offsets.get(place.topic, place.partition)
        is_open = self.is_open(place) and place not in self.lost
        return FetchedOffset(place.topic, place.partition, NO_COMMITTED_OFFSET if found is None else found, is_open)

    def is_open(self, place: Place) -> bool:
        """Whether the end of a transaction may change the offset there."""
        return self._transactional.is_open(place)

    def is_open_in(self, group: Group) -> bool:
        """Whether the end of a transaction may commit an offset of the group."""
        return self._transactional.has(group.group_id)

    def bury(self, group: Group, partitions: Iterable[tuple[str, int]]) -> list[ErrorCode]:
        """Have tombstones written for offsets; one error code for each partition. A topic that members still read keeps
        its own. When they are written, `forget` follows."""
        errors = []
        for topic, partition in partitions:
            errors.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if reads(group, topic) else ErrorCode.NONE)
            place = Place(group.group_id, topic, partition)
            there = group.offsets.get(topic, partition) is not None or self.is_open(place)
            if there and not errors[-1]:
                self.write_tombstone(place)
        return errors

    def bury_all(self, group: Group) -> None:
        """Have tombstones written for all it has committed, in a transaction or not."""
        places = {Place(group.group_id, topic, partition) for topic, partition, _ in group.offsets}
        for place in sorted(places.union(self._transactional.of_group(group.group_id))):
            self.write_tombstone(place)

    def forget(self, place: Place) -> None:
        """Its tombstone stands in the log."""
        group = self._groups.find(place.group_id)
        if group is not None:
            group.offsets.remove(place.topic, place.partition)
        self.overtake(place)

    def remove_all(self, group: Group) -> None:
        """The tombstones of all it has committed stand in the log."""
        for topic, partition, _ in list(group.offsets):
            self.forget(Place(group.group_id, topic, partition))
        for place in self._transactional.of_group(group.group_id):
            self.forget(place)

    def lose(self, is_gone: Callable[[str], bool]) -> None:
        """Topics are gone, and their offsets count no more, also those that the end of a transaction would commit."""
        self.lost.update(dict.fromkeys(self._transactional.of_topics(is_gone)))
        for group in self._groups:
            found = group.offsets.of_topics(is_gone)
            self.lost.update((Place(group.group_id, topic, partition), None) for topic, partition in found)

    def put_off(self, place: Place) -> bool:
        """Where the tombstone of one that is lost could not be written, others come first; False where it is not lost.
        """
        if place not in self.lost:
            return False
        del self.lost[place]
        self.lost[place] = None
        return True

    def write_tombstone(self, place: Place) -> None:
        """What was committed there before it counts no more, in a transaction or not; `forget` follows."""
        self._outbox.append(place.group_id, offset_key(*place), None)

    def overtake(self, place: Place) -> None:
        """A tombstone stands in the log."""
        self.lost.pop(place, None)
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
