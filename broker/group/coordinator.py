"""All groups of one broker: the verbs of Kafka's group coordinator, their answers as values.

Whoever runs it (the handlers, the engine's tick) does three things after each verb that takes `now`, in this order:

1. append what `take_appends` gives to partition `partition_of(group_id, n)` of `__consumer_offsets`; when that fails,
   say so by `append_failed` before 2; then `settled`;
2. touch the keys of what `take_answered` gives in the purgatory;
3. mind `next_deadline_ms` for the next `tick`.

Join and sync return a `Pending`, whose `result` is there at once or comes later. Nothing is ever awaited, no clock is
read; a fresh uuid for a new member comes with its request. At start every record of the partitions led here goes
through `load`, in order, each end of a transaction through `transaction_ended`, and `loaded` ends it.
"""

from collections.abc import Callable, Collection, Container, Iterable, Sequence
from typing import Any

from broker.group.alarms import AlarmClock
from broker.group.burials import Burials
from broker.group.commits import Commits
from broker.group.config import GroupConfig
from broker.group.group import Group
from broker.group.groups import Groups
from broker.group.lifetime import restored
from broker.group.membership import Membership, refused
from broker.group.offset_records import OffsetKey, is_too_long, read_group_value, read_key, read_offset_value
from broker.group.offsets import GroupOffsets
from broker.group.outbox import Append, Outbox
from broker.group.rebalance import Rebalance
from broker.group.results import (
    UNKNOWN_MEMBER_ID,
    CommitRequest,
    DescribedGroup,
    FetchedOffset,
    JoinRequest,
    JoinResult,
    LeaveResult,
    ListedGroup,
    MemberIdentity,
    Pending,
    SyncRequest,
    SyncResult,
    member_key,
)
from broker.group.states import GroupState
from broker.group.subscription import CONSUMER_PROTOCOL_TYPE
from broker.group.transactional_offsets import Place
from broker.now import Now
from broker.wire.errors import ErrorCode


class GroupCoordinator:
    """See the module. `now_ms` is the monotonic clock's at start. Not for threads."""

    def __init__(self, config: GroupConfig, now_ms: int = 0) -> None:
        self._config = config
        self._outbox = Outbox()
        self._clock = AlarmClock(now_ms)
        self._groups = Groups(config, self._outbox)
        self._rebalance = Rebalance(config, self._clock, self._outbox)
        self._membership = Membership(config, self._rebalance)
        self._commits = Commits(config, self._groups, self._rebalance, self._outbox)
        self._burials = Burials(config, self._groups, self._commits, self._clock, now_ms)

    def __len__(self) -> int:
        """How many groups there are."""
        return len(self._groups)

    # Members

    def join(self, request: JoinRequest, now: Now) -> Pending[JoinResult]:
        """JoinGroup. A request with a member id joins a group that exists; without one it makes the group."""
        if not request.group_id or is_too_long(request.group_id):
            return refused(ErrorCode.INVALID_GROUP_ID, request.member_id)
        if is_too_long(request.client_id, request.instance_id, request.protocol_type, *dict(request.protocols)):
            return refused(ErrorCode.INVALID_REQUEST, request.member_id)
        shortest_ms, longest_ms = self._config.group_min_session_timeout_ms, self._config.group_max_session_timeout_ms
        if not shortest_ms <= request.session_timeout_ms <= longest_ms:
            return refused(ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id)
        if request.member_id != UNKNOWN_MEMBER_ID:
            group = self._groups.find(request.group_id)
            if group is None:
                return refused(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
        else:
            group = self._groups.find_or_make(request.group_id, now)
            if group is None:
                return refused(ErrorCode.POLICY_VIOLATION, request.member_id)
        return self._membership.join(group, request, now)

    def sync(self, request: SyncRequest, now: Now) -> Pending[SyncResult]:
        """SyncGroup: the leader's ends the rebalance, the others' wait for it."""
        group = self._groups.find(request.group_id)
        error = _check_sync(group, request)
        if error or group is None:
            return Pending(None, SyncResult(error=error))
        member = group.members[request.member_id]
        key = member_key(group.group_id, member.member_id)
        self._rebalance.member_synced(group, member)
        if group.state is GroupState.STABLE:
            return Pending(key, self._rebalance.sync_result(group, member))
        pending = member.syncing = member.syncing or Pending(key)
        if group.is_leader(member):
            self._rebalance.assign(group, dict(request.assignments), now)
        return pending

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int, now: Now) -> ErrorCode:
        """Heartbeat: REBALANCE_IN_PROGRESS tells the member to join again."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.find(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.check_member(member_id, instance_id)
        if error:
            return error
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._rebalance.keep_alive(group, group.members[member_id], now)
        rebalancing = group.state is GroupState.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if rebalancing else ErrorCode.NONE

    def leave(self, group_id: str, members: Sequence[MemberIdentity], now: Now) -> LeaveResult:
        """LeaveGroup, of one member or several."""
        if not group_id:
            return LeaveResult(ErrorCode.INVALID_GROUP_ID)
        group = self._groups.find(group_id)
        if group is None:
            return LeaveResult(ErrorCode.NONE, tuple((m, ErrorCode.UNKNOWN_MEMBER_ID) for m in members))
        return self._membership.leave(group, members, now)

    # Offsets

    def commit(self, request: CommitRequest, now: Now) -> list[ErrorCode]:
        """OffsetCommit: an error code for each offset, in their order."""
        return self._commits.commit(request, now)

    def fetch(self, group_id: str, partitions: Iterable[tuple[str, int]] | None) -> list[FetchedOffset]:
        """OffsetFetch: the offsets of these (topic, partition), or all there are when None."""
        return self._commits.fetch(group_id, partitions)

    def take_back(self, request: CommitRequest, errors: Iterable[ErrorCode]) -> None:
        """The records of a TxnOffsetCommit could not be appended; `errors` were its answer otherwise."""
        self._commits.take_back(request, errors)

    def transaction_ended(
        self, producer_id: int, commit: bool, is_kept: Callable[[str], bool], wall_ms: int | None = None
    ) -> None:
        """The marker of a producer's transaction stands in a partition of __consumer_offsets; `is_kept`: whether a
        group is kept there. `wall_ms` is not known of one that is replayed."""
        self._commits.end(producer_id, commit, is_kept, wall_ms)

    def forget_topics(self, is_gone: Callable[[str], bool], now: Now) -> None:
        """Topics were deleted; so are their offsets."""
        self._burials.forget_topics(is_gone, now)

    # Administration

    def list_groups(self, states: Collection[str] = (), types: Collection[str] = ()) -> list[ListedGroup]:
        """ListGroups; filters, in any case, let through all when empty (KIP-518, KIP-848)."""
        listed = [ListedGroup(g.group_id, g.protocol_type or "", g.state.value) for g in self._groups]
        wanted_states, wanted_types = {s.lower() for s in states}, {t.lower() for t in types}
        return [
            group
            for group in listed
            if (not states or group.state.lower() in wanted_states) and (not types or group.group_type in wanted_types)
        ]

    def describe(self, group_id: str) -> DescribedGroup:
        """DescribeGroups, of one."""
        group = self._groups.find(group_id)
        if group is None:
            return DescribedGroup(ErrorCode.GROUP_ID_NOT_FOUND, group_id, GroupState.DEAD.value)
        protocol_name = group.protocol_name if group.state is GroupState.STABLE else None
        members = tuple(member.describe(protocol_name) for member in group.members.values())
        protocol_type = group.protocol_type or ""
        return DescribedGroup(
            ErrorCode.NONE, group_id, group.state.value, protocol_type, protocol_name or "", members
        )

    def delete(self, group_id: str) -> ErrorCode:
        """DeleteGroups, of one: with its offsets, if it has no members. `deleted` follows, when that is in the log."""
        group = self._groups.find(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        self._commits.bury_all(group)
        self._groups.bury(group)
        return ErrorCode.NONE

    def deleted(self, group_id: str, now: Now) -> None:
        """Its tombstones stand in the log: it is gone."""
        group = self._groups.find(group_id)
        if group is not None:
            self._commits.remove_all(group)
            self._groups.removed(group, now)

    def delete_offsets(self, group_id: str, partitions: Sequence[tuple[str, int]]) -> list[ErrorCode] | ErrorCode:
        """OffsetDelete (KIP-496): one error code for each partition, or why nothing is done. `offsets_deleted` follows
        when that is in the log."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.find(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return ErrorCode.NON_EMPTY_GROUP  # what its members use is not for us to know
        return self._commits.bury(group, partitions)

    def offsets_deleted(self, group_id: str, partitions: Iterable[tuple[str, int]]) -> None:
        """The tombstones of these stand in the log: they are gone."""
        for topic, partition in partitions:
            self._commits.forget(Place(group_id, topic, partition))

    def resign(self) -> None:
        """All records of the groups are gone, and with them the groups: who waits is to look for a coordinator anew."""
        for group in self._groups:
            for member in group.members.values():
                if member.joining is not None:
                    told = JoinResult(error=ErrorCode.NOT_COORDINATOR, member_id=member.member_id)
                    self._outbox.answer(group, member.joining, told)
                if member.syncing is not None:
                    self._outbox.answer(group, member.syncing, SyncResult(error=ErrorCode.NOT_COORDINATOR))

    # Time and storage

    def tick(self, now: Now) -> None:
        """Do what is due: sessions, rebalance timeouts, delays, expired offsets."""
        self._clock.tick(now)

    def next_deadline_ms(self) -> int | None:
        """When `tick` is wanted next, on the monotonic clock."""
        return self._clock.next_deadline_ms()

    def take_appends(self) -> list[Append]:
        """Records to append to __consumer_offsets, in order."""
        return self._outbox.take_appends()

    def take_answered(self) -> list[Pending[Any]]:
        """What has been answered since; each has its `key` for the purgatory."""
        return self._outbox.take_answered()

    def append_failed(self, group_id: str, error: ErrorCode, now: Now) -> None:
        """A record of the group could not be appended: nobody may believe what it said. Answers not taken yet become
        the error, and members share anew. Offsets stay in memory: their consumers were told and will commit again."""
        for pending in self._outbox.unsent(group_id):
            if isinstance(pending.result, SyncResult):
                pending.result = SyncResult(error=error)
            elif isinstance(pending.result, JoinResult):
                pending.result = JoinResult(error=error, member_id=pending.result.member_id)
        group = self._groups.find(group_id)
        if group is not None and group.state is GroupState.STABLE:
            self._rebalance.begin(group, now)

    def settled(self, refused: Container[str], now: Now) -> None:
        """All that was to be appended is, but for the records of these groups."""
        self._burials.settled(refused, now)

    def load(self, key: bytes, value: bytes | None, producer_id: int | None = None) -> None:
        """Replay one record, `producer_id`: of a transaction. Kinds only a newer Kafka writes are passed over.
        BadOffsetsRecord for a damaged one."""
        about = read_key(key)
        if isinstance(about, OffsetKey) and producer_id is not None:
            if value is not None:
                self._commits.put_in_transaction(producer_id, Place(*about), read_offset_value(value))
        elif isinstance(about, OffsetKey):
            self._load_offset(about, value)
        elif about is not None:
            self._load_group(about.group_id, value)

    def _load_offset(self, about: OffsetKey, value: bytes | None) -> None:
        group = self._groups.find(about.group_id)
        if value is None:
            self._commits.overtake(Place(*about))
            if group is not None:
                group.offsets.remove(about.topic, about.partition)
            return
        if group is None:
            group = Group(about.group_id, None)
            self._groups.put(group)
        self._commits.put(Place(*about), read_offset_value(value), group)

    def _load_group(self, group_id: str, value: bytes | None) -> None:
        former = self._groups.find(group_id)
        offsets = GroupOffsets() if former is None else former.offsets
        if value is not None:
            self._groups.put(restored(group_id, read_group_value(value), offsets))
        elif len(offsets):
            group = Group(group_id, None)
            group.offsets = offsets
            self._groups.put(group)
        else:
            self._groups.drop(group_id)

    def loaded(self, now: Now) -> None:
        """All records have been replayed: members have one session timeout to be heard of."""
        for group in self._groups:
            if not group.is_stored and self._commits.is_abandoned(group):
                self._groups.drop(group.group_id)  # its last offset was removed by a tombstone
                continue
            for member in group.members.values():
                self._rebalance.keep_alive(group, member, now)
            if len(group.members) > self._config.group_max_size:
                self._rebalance.begin(group, now)


def _check_sync(group: Group | None, request: SyncRequest) -> ErrorCode:
    """What stands against a SyncGroup, in Kafka's order."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = group.check_member(request.member_id, request.instance_id)
    if error:
        return error
    if request.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    for said, known in (
        (request.protocol_type, group.protocol_type),
        (request.protocol_name, group.protocol_name),
    ):
        if said is not None and known is not None and said != known:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    rebalancing = group.state is GroupState.PREPARING_REBALANCE
    return ErrorCode.REBALANCE_IN_PROGRESS if rebalancing else ErrorCode.NONE
