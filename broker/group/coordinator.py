"""The groups of one partition of `__consumer_offsets`: the operations of Kafka's group coordinator, with their answers
as values.

After each operation that takes `now`, the caller (a handler or the engine's tick) does three things in this order:

1. Append the records from `take_appends` to the partition. Report each failure by `append_failed`. Then call
   `settled`.
2. Touch the keys of the answers from `take_answered` in the purgatory.
3. Ring the timers that are due, at the next deadline of the wheel. Coordinators of one broker share the wheel, and
   `broker.group.alarms.ring_due` rings for all of them; `tick` rings for a coordinator that is alone.

Join and sync return a `Pending`, whose `result` is set at once or later. The coordinator never waits and never reads a
clock. A request brings the fresh uuid for a new member. Before it serves, the caller replays the partition in order:
each record through `load`, each end of a transaction through `transaction_ended`. Then it calls `loaded`. When another
broker leads the partition, `unload` is the last call.
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from typing import Any

from broker.group.alarms import AlarmClock
from broker.group.commits import Commits
from broker.group.group import Group
from broker.group.groups import Groups
from broker.group.lifetime import restored
from broker.group.membership import Membership, refused
from broker.group.offset_expiration import OffsetExpiration
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
from broker.group.shared import Shared
from broker.group.states import GroupState
from broker.group.subscription import CONSUMER_PROTOCOL_TYPE
from broker.now import Now
from broker.settings.group_config import GroupConfig
from broker.steps import Pace, Steps, at_once
from broker.wire.errors import ErrorCode


class GroupCoordinator:
    """The group coordinator; see the module. `now_ms` is the monotonic clock when it is made. Not thread-safe."""

    def __init__(
        self, config: GroupConfig, now_ms: int = 0, partition: int = 0, shared: Shared | None = None
    ) -> None:
        self._config = config
        self._shared = shared or Shared(now_ms)
        self._outbox = Outbox()
        self._clock = AlarmClock(now_ms, self._shared.wheel, partition)
        self._groups = Groups(config, self._outbox, self._shared)
        self._rebalance = Rebalance(config, self._clock, self._outbox)
        self._membership = Membership(config, self._rebalance)
        self._commits = Commits(config, self._groups, self._rebalance, self._outbox)
        self._offset_expiration = OffsetExpiration(
            config, self._groups, self._commits, self._clock, self._shared.expirations
        )

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self._groups)

    # Members

    def join(self, request: JoinRequest, now: Now) -> Pending[JoinResult]:
        """Answer JoinGroup. A request without a member id creates a missing group; one with a member id does not."""
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
        """Answer SyncGroup. The leader's request ends the rebalance; the requests of the other members wait for it."""
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
        """Answer Heartbeat. REBALANCE_IN_PROGRESS tells the member to join again."""
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
        """Answer LeaveGroup, for one or several members."""
        if not group_id:
            return LeaveResult(ErrorCode.INVALID_GROUP_ID)
        group = self._groups.find(group_id)
        if group is None:
            return LeaveResult(ErrorCode.NONE, tuple((m, ErrorCode.UNKNOWN_MEMBER_ID) for m in members))
        return self._membership.leave(group, members, now)

    # Offsets

    def commit(self, request: CommitRequest, now: Now) -> list[ErrorCode]:
        """Answer OffsetCommit: return one error code for each offset, in their order."""
        return self._commits.commit(request, now)

    def fetch(self, group_id: str, partitions: Iterable[tuple[str, int]] | None) -> list[FetchedOffset]:
        """Answer OffsetFetch: return the offsets of these (topic, partition), or all offsets of the group if None."""
        return self._commits.fetch(group_id, partitions)

    def committed(self, group_id: str) -> list[tuple[str, int]]:
        """Return (topic, partition) of all offsets of a group, those of one topic together."""
        return self._commits.committed(group_id)

    def offsets(self) -> Iterator[tuple[int, str, list[FetchedOffset]]]:
        """Yield (group's number, group id, offsets) of all groups, those known longest first."""
        for group in self._groups:
            yield group.number, group.group_id, self._commits.fetch(group.group_id, None)

    @property
    def offsets_number(self) -> int:
        """The number of committed offsets of all groups."""
        return sum(len(group.offsets) for group in self._groups)

    def take_back(self, request: CommitRequest, errors: Iterable[ErrorCode]) -> None:
        """Undo the last `commit`, whose records could not be appended. `errors` is what it returned."""
        self._commits.take_back(request, errors)

    def transaction_ended(self, producer_id: int, commit: bool, wall_ms: int | None = None) -> None:
        """Apply a transaction marker that is in the partition. `wall_ms` is None when the marker is replayed."""
        self._commits.end(producer_id, commit, wall_ms)

    def forget_topics(self, is_gone: Callable[[str], bool], now: Now) -> None:
        """Remove the offsets of deleted topics."""
        self._offset_expiration.forget_topics(is_gone, now)

    # Administration

    def list_groups(self, states: Collection[str] = (), types: Collection[str] = ()) -> list[ListedGroup]:
        """Answer ListGroups. Filters ignore case; an empty filter accepts all groups (KIP-518, KIP-848)."""
        listed = [ListedGroup(g.group_id, g.protocol_type or "", g.state.value) for g in self._groups]
        wanted_states, wanted_types = {s.lower() for s in states}, {t.lower() for t in types}
        return [
            group
            for group in listed
            if (not states or group.state.lower() in wanted_states) and (not types or group.group_type in wanted_types)
        ]

    def readers(self, topic: str) -> list[str]:
        """Return the ids of the groups that have committed offsets of a topic, sorted."""
        return sorted(group.group_id for group in self._groups if group.offsets.has_topic(topic))

    def describe(self, group_id: str) -> DescribedGroup:
        """Answer DescribeGroups for one group."""
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
        """Answer DeleteGroups for one group: write tombstones for it and its offsets if it has no members.

        The caller calls `deleted` once the tombstones are in the log.
        """
        group = self._groups.find(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        self._commits.write_all_tombstones(group)
        self._groups.write_tombstone(group)
        return ErrorCode.NONE

    def deleted(self, group_id: str, now: Now) -> None:
        """Remove a group and its offsets, whose tombstones are in the log."""
        group = self._groups.find(group_id)
        if group is not None:
            self._commits.remove_all(group)
            self._groups.removed(group, now)

    def delete_offsets(self, group_id: str, partitions: Sequence[tuple[str, int]]) -> list[ErrorCode] | ErrorCode:
        """Answer OffsetDelete (KIP-496): return one error code for each partition, or one for the whole request.

        The caller calls `offsets_deleted` once the tombstones are in the log.
        """
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.find(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return ErrorCode.NON_EMPTY_GROUP  # the broker cannot know which offsets its members use
        return self._commits.write_tombstones(group, partitions)

    def offsets_deleted(self, group_id: str, partitions: Iterable[tuple[str, int]]) -> None:
        """Remove offsets whose tombstones are in the log."""
        for topic, partition in partitions:
            self._commits.forget(OffsetKey(group_id, topic, partition))

    def unload(self, pace: Pace) -> Iterator[None]:
        """Stop all timers, and answer the waiting joins and syncs with NOT_COORDINATOR. Yield after each slice.

        Another broker leads the partition from now on, or its records were deleted.
        """
        self.stop_timers()
        self._shared.groups -= len(self._groups)
        for group in self._groups:
            for alarm in (group.join_alarm, group.sync_alarm, *group.pending.values()):
                if alarm is not None:
                    alarm.clear()
            for member in group.members.values():
                self._rebalance.dismiss(group, member, ErrorCode.NOT_COORDINATOR)
                if pace.is_over():
                    yield
            if pace.is_over():
                yield
        self._offset_expiration.stop()

    def stop_timers(self) -> None:
        """Let no timer ring any more."""
        self._clock.is_stopped = True

    # Time and storage

    def tick(self, now: Now) -> None:
        """Run the timers that are due: sessions, rebalance timeouts, delays, expired offsets."""
        self._clock.tick(now)

    def next_deadline_ms(self) -> int | None:
        """Return when the next `tick` is due, in ms of the monotonic clock; None if no timer is set."""
        return self._clock.next_deadline_ms()

    def take_appends(self) -> list[Append]:
        """Return the records to append to __consumer_offsets, in order."""
        return self._outbox.take_appends()

    def take_answered(self) -> list[Pending[Any]]:
        """Return the joins and syncs answered since the last call; each has its `key` for the purgatory."""
        return self._outbox.take_answered()

    def append_failed(self, group_id: str, error: ErrorCode, now: Now) -> None:
        """Handle a failed append of a group's record: answer with `error` and rebalance, so no member relies on it.

        Answers that were not taken yet become the error, and a stable group rebalances. The caller takes the offsets
        back.
        """
        for pending in self._outbox.unsent(group_id):
            if isinstance(pending.result, SyncResult):
                pending.result = SyncResult(error=error)
            elif isinstance(pending.result, JoinResult):
                pending.result = JoinResult(error=error, member_id=pending.result.member_id)
        group = self._groups.find(group_id)
        if group is not None and group.state is GroupState.STABLE:
            self._rebalance.begin(group, now)

    def settled(self, refused: Container[str], now: Now) -> None:
        """Finish the removals whose tombstones were appended. `refused` are the groups whose records failed."""
        self._offset_expiration.settled(refused, now)

    def load(self, key: bytes, value: bytes | None, producer_id: int | None = None) -> None:
        """Replay one record; `producer_id` is set if it was written in a transaction.

        Skip kinds of record that only a newer Kafka writes. Raise BadOffsetsRecord for a damaged record.
        """
        about = read_key(key)
        if isinstance(about, OffsetKey) and producer_id is not None:
            if value is not None:
                self._commits.put_in_transaction(producer_id, OffsetKey(*about), read_offset_value(value))
        elif isinstance(about, OffsetKey):
            self._load_offset(about, value)
        elif about is not None:
            self._load_group(about.group_id, value)

    def _load_offset(self, about: OffsetKey, value: bytes | None) -> None:
        group = self._groups.find(about.group_id)
        if value is None:
            self._commits.overtake(OffsetKey(*about))
            if group is not None:
                group.offsets.remove(about.topic, about.partition)
            return
        if group is None:
            group = Group(about.group_id, None)
            self._groups.put(group)
        self._commits.put(OffsetKey(*about), read_offset_value(value), group)

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
        """End the replay at once; see `finish_load`."""
        at_once(self.finish_load(Pace(), now), now)

    def finish_load(self, pace: Pace, now: Now) -> Steps[Now]:
        """End the replay, in slices: start a session for each member, so that it has one session timeout to send a
        request. Return the time."""
        for group in self._groups:
            if not group.is_stored and self._commits.is_abandoned(group):
                self._groups.drop(group.group_id)  # a tombstone removed its last offset
                continue
            for member_id, member in list(group.members.items()):
                if member_id in group.members:  # between two slices the session of an earlier one may have ended
                    self._rebalance.keep_alive(group, member, now)
                if pace.is_over():
                    now = yield
            if len(group.members) > self._config.group_max_size:
                self._rebalance.begin(group, now)
            if pace.is_over():
                now = yield
        self._offset_expiration.begin(now)
        return now


def _check_sync(group: Group | None, request: SyncRequest) -> ErrorCode:
    """Validate a SyncGroup, in Kafka's order of checks."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = group.check_member(request.member_id, request.instance_id)
    if error:
        return error
    if request.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    for given, current in (
        (request.protocol_type, group.protocol_type),
        (request.protocol_name, group.protocol_name),
    ):
        if given is not None and current is not None and given != current:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    rebalancing = group.state is GroupState.PREPARING_REBALANCE
    return ErrorCode.REBALANCE_IN_PROGRESS if rebalancing else ErrorCode.NONE
