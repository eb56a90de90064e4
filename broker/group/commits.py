"""OffsetCommit, OffsetFetch, and the removal of offsets."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from broker.group.group import Group
from broker.group.groups import Groups
from broker.group.lifetime import is_abandoned, reads
from broker.group.offset_records import OffsetKey, is_too_long, offset_key, offset_value
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
from broker.group.transactional_offsets import OpenOffset, TransactionalOffsets
from broker.now import Now
from broker.settings.group_config import GroupConfig
from broker.wire.errors import ErrorCode


class _Replaced(NamedTuple):
    """What a commit has replaced, to be restored if its record cannot be appended."""

    committed: CommittedOffset | None
    is_lost: bool
    overtaken: Mapping[int, OpenOffset]


class Commits:
    """The offsets of all groups of one coordinator."""

    def __init__(self, config: GroupConfig, groups: Groups, rebalance: Rebalance, outbox: Outbox) -> None:
        self._config = config
        self._groups = groups
        self._rebalance = rebalance
        self._outbox = outbox
        self._transactional = TransactionalOffsets()
        self.lost: dict[OffsetKey, None] = {}
        """Offsets whose topic was deleted and whose tombstones have yet to be written, in order of removal."""
        self._replaced: dict[OffsetKey, _Replaced] = {}
        """What the last request has replaced, unless it was one of a transaction."""

    def commit(self, request: CommitRequest, now: Now) -> list[ErrorCode]:
        """Commit offsets; return one error code for each, in their order. The caller checks that the partitions exist.
        """
        group = self._group(request, now)
        may_commit = _may_commit if request.producer is None else _may_commit_in_transaction
        error = group if isinstance(group, ErrorCode) else may_commit(group, request)
        if error or isinstance(group, ErrorCode):
            return [error] * len(request.offsets)
        if request.producer is not None:
            return [self._commit_in_transaction(group, offset, request.producer, now) for offset in request.offsets]
        if group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            self._rebalance.keep_alive(group, group.members[request.member_id], now)
        self._replaced = {}
        return [self._commit(group, offset, request.retention_ms, now) for offset in request.offsets]

    def _group(self, request: CommitRequest, now: Now) -> Group | ErrorCode:
        """Return the group of a commit, or an error code. A commit without a generation creates a missing group."""
        if is_too_long(request.group_id):
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.find(request.group_id)
        if group is None and request.generation >= 0:
            return request.unknown_group
        return group or self._groups.find_or_make(request.group_id, now) or ErrorCode.POLICY_VIOLATION

    def _commit(self, group: Group, requested: OffsetToCommit, retention_ms: int, now: Now) -> ErrorCode:
        metadata = requested.metadata or NO_METADATA
        if len(metadata) > self._config.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        expire_ms = NO_EXPIRY if retention_ms == NO_RETENTION else now.wall_ms + retention_ms
        committed = CommittedOffset(requested.offset, requested.leader_epoch, metadata, now.wall_ms, expire_ms)
        key = OffsetKey(group.group_id, requested.topic, requested.partition)
        if key not in self._replaced:
            before = group.offsets.get(key.topic, key.partition)
            self._replaced[key] = _Replaced(before, key in self.lost, self._transactional.open_of(key))
        self.put(key, committed, group)
        self._outbox.append(group.group_id, offset_key(*key), offset_value(committed))
        return ErrorCode.NONE

    def _commit_in_transaction(
        self, group: Group, requested: OffsetToCommit, producer: tuple[int, int], now: Now
    ) -> ErrorCode:
        metadata = requested.metadata or NO_METADATA
        if len(metadata) > self._config.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        committed = CommittedOffset(requested.offset, requested.leader_epoch, metadata, now.wall_ms)
        key = OffsetKey(group.group_id, requested.topic, requested.partition)
        if key in self.lost:  # a tombstone written later would delete this offset too
            self.write_tombstone(key)
            self.forget(key)
        self._transactional.put(producer[0], key, committed)
        self._outbox.append(group.group_id, offset_key(*key), offset_value(committed), producer)
        return ErrorCode.NONE

    def put(self, key: OffsetKey, committed: CommittedOffset, group: Group) -> None:
        """Store a non-transactional commit, whose record is in the log or is about to be appended."""
        self._transactional.overtake(key)
        self.lost.pop(key, None)
        group.offsets.put(key.topic, key.partition, committed)

    def put_in_transaction(self, producer_id: int, key: OffsetKey, committed: CommittedOffset) -> None:
        """Keep a commit until its transaction ends; its record is in the log."""
        self._transactional.put(producer_id, key, committed)

    def take_back(self, request: CommitRequest, errors: Iterable[ErrorCode]) -> None:
        """Undo the commits of the last request, whose records could not be appended: those without an error in
        `errors`. Otherwise a consumer would be told an offset that the next coordinator does not know."""
        keys = {
            OffsetKey(request.group_id, o.topic, o.partition) for o, e in zip(request.offsets, errors) if not e
        }
        for key in keys:
            if request.producer is None:
                self._restore(key, self._replaced[key])
            else:
                self._transactional.take_back(request.producer[0], key)

    def _restore(self, key: OffsetKey, replaced: _Replaced) -> None:
        group = self._groups.find(key.group_id)
        if group is not None and replaced.committed is not None:
            group.offsets.put(key.topic, key.partition, replaced.committed)
        elif group is not None:
            group.offsets.remove(key.topic, key.partition)
        if replaced.is_lost:
            self.lost[key] = None
        self._transactional.restore(key, replaced.overtaken)

    def end(self, producer_id: int, commit: bool, wall_ms: int | None) -> None:
        """End a producer's transaction; commit its offsets if `commit`."""
        for key, committed in self._transactional.end(producer_id, commit):
            group = self._groups.find(key.group_id)
            if group is None:  # the group was deleted meanwhile; the offsets are committed all the same
                group = Group(key.group_id, wall_ms)
                self._groups.put(group)
            group.offsets.put(key.topic, key.partition, committed)

    def is_abandoned(self, group: Group) -> bool:
        return is_abandoned(group) and not self.is_open_in(group)

    def fetch(self, group_id: str, partitions: Iterable[tuple[str, int]] | None) -> list[FetchedOffset]:
        """Return the offsets of these (topic, partition), in their order; all offsets of the group if None.

        An unknown group has no offsets. This is no error, because every new consumer fetches before it commits.
        """
        group = self._groups.find(group_id)
        wanted = self.committed(group_id) if partitions is None else partitions
        return [self._fetched(group, OffsetKey(group_id, *partition)) for partition in wanted]

    def committed(self, group_id: str) -> list[tuple[str, int]]:
        """Return (topic, partition) of all offsets of a group, those of one topic together."""
        group = self._groups.find(group_id)
        keys = () if group is None else group.offsets.keys()
        return [
            key
            for key in keys
            if not self.lost or OffsetKey(group_id, *key) not in self.lost
        ]

    def _fetched(self, group: Group | None, key: OffsetKey) -> FetchedOffset:
        committed = (
            None
            if group is None or key in self.lost
            else group.offsets.get(key.topic, key.partition)
        )
        is_open = self.is_open(key) and key not in self.lost
        return FetchedOffset(
            key.topic, key.partition, NO_COMMITTED_OFFSET if committed is None else committed, is_open
        )

    def is_open(self, key: OffsetKey) -> bool:
        """Return True if the end of an open transaction may change this offset."""
        return self._transactional.is_open(key)

    def is_open_in(self, group: Group) -> bool:
        """Return True if the end of an open transaction may commit an offset of the group."""
        return self._transactional.has(group.group_id)

    def write_tombstones(self, group: Group, partitions: Iterable[tuple[str, int]]) -> list[ErrorCode]:
        """Write tombstones for offsets; return one error code for each partition.

        Offsets of a topic that members still read are refused. The caller calls `forget` once the tombstones are
        in the log.
        """
        errors = []
        for topic, partition in partitions:
            errors.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if reads(group, topic) else ErrorCode.NONE)
            key = OffsetKey(group.group_id, topic, partition)
            has_offset = group.offsets.get(topic, partition) is not None or self.is_open(key)
            if has_offset and not errors[-1]:
                self.write_tombstone(key)
        return errors

    def write_all_tombstones(self, group: Group) -> None:
        """Write tombstones for all offsets of a group, including those of open transactions."""
        keys = {OffsetKey(group.group_id, topic, partition) for topic, partition, _ in group.offsets}
        for key in sorted(keys.union(self._transactional.of_group(group.group_id))):
            self.write_tombstone(key)

    def forget(self, key: OffsetKey) -> None:
        """Remove an offset whose tombstone is in the log."""
        group = self._groups.find(key.group_id)
        if group is not None:
            group.offsets.remove(key.topic, key.partition)
        self.overtake(key)

    def remove_all(self, group: Group) -> None:
        """Remove all offsets of a group, whose tombstones are in the log."""
        for topic, partition, _ in list(group.offsets):
            self.forget(OffsetKey(group.group_id, topic, partition))
        for key in self._transactional.of_group(group.group_id):
            self.forget(key)

    def lose(self, is_gone: Callable[[str], bool]) -> None:
        """Mark the offsets of deleted topics as lost, including those of open transactions."""
        self.lost.update(dict.fromkeys(self._transactional.of_topics(is_gone)))
        for group in self._groups:
            partitions = group.offsets.of_topics(is_gone)
            self.lost.update((OffsetKey(group.group_id, topic, partition), None) for topic, partition in partitions)

    def put_off(self, key: OffsetKey) -> bool:
        """Move a lost offset whose tombstone could not be written to the end of `lost`. Return False if it is not lost.
        """
        if key not in self.lost:
            return False
        del self.lost[key]
        self.lost[key] = None
        return True

    def write_tombstone(self, key: OffsetKey) -> None:
        """Write a tombstone, which voids all earlier commits of this key.

        The caller calls `forget` once it is in the log.
        """
        self._outbox.append(key.group_id, offset_key(*key), None)

    def overtake(self, key: OffsetKey) -> None:
        """Drop the commits of open transactions of an offset key, because a tombstone for it is in the log."""
        self.lost.pop(key, None)
        self._transactional.overtake(key)


def _may_commit(group: Group, request: CommitRequest) -> ErrorCode:
    """Validate a commit. The checks run in Kafka's order, which decides which of several errors a client sees."""
    if request.generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE  # a commit without group management, or a reset by an administrator
    error = group.check_member(request.member_id, request.instance_id)
    if error:
        return error
    if request.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.COMPLETING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _may_commit_in_transaction(group: Group, request: CommitRequest) -> ErrorCode:
    """Validate a TxnOffsetCommit. Before v3 the request does not name the member, so the group's state is not checked:
    the producer epoch fences instead (KIP-447)."""
    if request.generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if request.generation < 0 and not request.member_id and request.instance_id is None:
        return ErrorCode.NONE
    error = group.check_member(request.member_id, request.instance_id)
    if error:
        return error
    return ErrorCode.NONE if request.generation == group.generation else ErrorCode.ILLEGAL_GENERATION
