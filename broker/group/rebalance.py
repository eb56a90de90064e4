"""The two phases of a rebalance and their timers (the classic half of Kafka's GroupMetadataManager).

Each method is named after an event and advances the group until it must wait for the next request or alarm.
"""

from collections.abc import Mapping
from functools import partial

from broker.group.alarms import AlarmClock
from broker.group.group import Group, InitialDelay
from broker.group.member import Member
from broker.group.offset_records import group_key, group_value
from broker.group.outbox import Outbox
from broker.group.results import UNKNOWN_MEMBER_ID, JoinResult, SyncResult
from broker.group.states import Event, GroupState
from broker.now import Now
from broker.settings.group_config import GroupConfig
from broker.wire.errors import ErrorCode


class Rebalance:
    """The rebalances of all groups of one coordinator; each group's state is kept in its `Group`."""

    def __init__(self, config: GroupConfig, clock: AlarmClock, outbox: Outbox) -> None:
        self._config = config
        self._clock = clock
        self._outbox = outbox

    # Sessions

    def keep_alive(self, group: Group, member: Member, now: Now, timeout_ms: int | None = None) -> None:
        """Restart a member's session with its session timeout, or with `timeout_ms` if given."""
        if member.session is None:
            member.session = self._clock.alarm(partial(self._session_expired, group, member))
        member.session.set(now.ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms))

    def _session_expired(self, group: Group, member: Member, now: Now) -> None:
        if not member.need_not_heartbeat:
            self.remove(group, member)
            self.members_gone(group, now)

    def expect_pending(self, group: Group, member_id: str, timeout_ms: int, now: Now) -> None:
        """Expect a client to join within `timeout_ms` with the id it was given (KIP-394)."""
        alarm = self._clock.alarm(partial(self._pending_expired, group, member_id))
        alarm.set(now.ms + timeout_ms)
        group.pending[member_id] = alarm

    def _pending_expired(self, group: Group, member_id: str, now: Now) -> None:
        self.forget_pending(group, member_id)
        self._one_less_to_wait_for(group, now)

    def forget_pending(self, group: Group, member_id: str) -> None:
        alarm = group.pending.pop(member_id, None)
        if alarm is not None:
            alarm.clear()

    # Members that go

    def remove(self, group: Group, member: Member, error: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID) -> None:
        """Remove a member and answer its waiting requests with `error`. The caller calls `members_gone` after the last.
        """
        self.dismiss(group, member, error)
        group.remove(member)

    def dismiss(self, group: Group, member: Member, error: ErrorCode) -> None:
        """End a member's session and answer its waiting requests with `error`, but keep it in the group."""
        if member.session is not None:
            member.session.clear()
        member_id = UNKNOWN_MEMBER_ID if error is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
        self.answer_join(group, member, JoinResult(error=error, member_id=member_id))
        self.answer_sync(group, member, SyncResult(error=error))

    def members_gone(self, group: Group, now: Now) -> None:
        """Rebalance after members were removed, or end a join phase that waited only for them."""
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.begin(group, now)
        else:
            self._one_less_to_wait_for(group, now)

    def _one_less_to_wait_for(self, group: Group, now: Now) -> None:
        if group.state is GroupState.PREPARING_REBALANCE and group.all_joined:
            self._complete_join(group, now)

    # The join phase

    def member_joined(self, group: Group, now: Now) -> None:
        """Begin a rebalance for a member that joined, or end the join phase if it was the last to join."""
        if group.can_rebalance:
            self.begin(group, now)
        else:
            self.complete_join_if_all_are_in(group, now)

    def begin(self, group: Group, now: Now) -> None:
        """Begin a rebalance. Members that wait for their assignment get REBALANCE_IN_PROGRESS and join again."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._call_off_sync(group, ErrorCode.REBALANCE_IN_PROGRESS, now)
        self._stop_waiting_for_sync(group)
        first = group.state is GroupState.EMPTY
        group.happened(Event.MEMBERSHIP_CHANGED, now.wall_ms)
        if first:
            self._wait_for_more(group, now)
        elif group.all_joined:
            self._complete_join(group, now)
        else:
            self._set_join_alarm(group, now.ms + group.rebalance_timeout_ms)

    def complete_join_if_all_are_in(self, group: Group, now: Now) -> None:
        """End the join phase if all members have joined. The initial delay of an empty group ends only by its alarm
        (KIP-134)."""
        if group.state is GroupState.PREPARING_REBALANCE and group.initial_delay is None and group.all_joined:
            self._complete_join(group, now)

    def _wait_for_more(self, group: Group, now: Now) -> None:
        delay_ms = self._config.group_initial_rebalance_delay_ms
        group.initial_delay = InitialDelay(left_ms=max(group.rebalance_timeout_ms - delay_ms, 0))
        self._set_join_alarm(group, now.ms + delay_ms)

    def _set_join_alarm(self, group: Group, deadline_ms: int) -> None:
        if group.join_alarm is None:
            group.join_alarm = self._clock.alarm(partial(self._join_alarm_rang, group))
        group.join_alarm.set(deadline_ms)

    def _join_alarm_rang(self, group: Group, now: Now) -> None:
        delay = group.initial_delay
        if delay is not None and delay.member_added and delay.left_ms:
            longer_ms = min(self._config.group_initial_rebalance_delay_ms, delay.left_ms)
            group.initial_delay = InitialDelay(left_ms=delay.left_ms - longer_ms)
            self._set_join_alarm(group, now.ms + longer_ms)
        else:
            self._complete_join(group, now)

    def _complete_join(self, group: Group, now: Now) -> None:
        if group.join_alarm is not None:
            group.join_alarm.clear()
        for member in [m for m in group.members.values() if m.joining is None and not m.is_static]:
            self.remove(group, member)
        if group.members and not group.elect_joined_leader():
            # Only static members remain and none has joined: wait until one joins or their sessions expire.
            self._set_join_alarm(group, now.ms + group.rebalance_timeout_ms)
            return
        group.next_generation(now.wall_ms)
        if group.members:
            self._answer_joins(group, now)
        else:
            self.store(group)

    def _answer_joins(self, group: Group, now: Now) -> None:
        for member in group.members.values():
            self.answer_join(group, member, self.join_result(group, member))
            self.keep_alive(group, member, now)
            member.is_new = False
            group.unsynced.add(member.member_id)
        if group.sync_alarm is None:
            group.sync_alarm = self._clock.alarm(partial(self._sync_alarm_rang, group))
        group.sync_alarm.set(now.ms + group.rebalance_timeout_ms)

    def join_result(self, group: Group, member: Member, *, skip_assignment: bool = False) -> JoinResult:
        """Return the join answer of a member, with the group's present generation."""
        return JoinResult(
            member_id=member.member_id,
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=group.leader_or_none,
            skip_assignment=skip_assignment,
            members=group.for_leader() if group.is_leader(member) else (),
        )

    def answer_join(self, group: Group, member: Member, result: JoinResult) -> None:
        """Answer a member's join, if the member waits for one."""
        if member.joining is not None:
            self._outbox.answer(group, member.joining, result)
            group.set_joining(member, None)

    # The sync phase

    def member_synced(self, group: Group, member: Member) -> None:
        group.unsynced.discard(member.member_id)
        if not group.unsynced:
            self._stop_waiting_for_sync(group)

    def assign(self, group: Group, assignments: Mapping[str, bytes], now: Now) -> None:
        """Store the leader's assignment and answer each waiting member with its own (empty if the leader sent none)."""
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        group.happened(Event.ASSIGNED, now.wall_ms)
        self.store(group)
        for member in group.members.values():
            if self.answer_sync(group, member, self.sync_result(group, member)):
                self.keep_alive(group, member, now)

    def sync_result(self, group: Group, member: Member) -> SyncResult:
        return SyncResult(
            protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
        )

    def answer_sync(self, group: Group, member: Member, result: SyncResult) -> bool:
        """Answer a member's sync; return False if the member does not wait for one."""
        if member.syncing is None:
            return False
        self._outbox.answer(group, member.syncing, result)
        member.syncing = None
        return True

    def _call_off_sync(self, group: Group, error: ErrorCode, now: Now) -> None:
        for member in group.members.values():
            member.assignment = b""
            if self.answer_sync(group, member, SyncResult(error=error)):
                self.keep_alive(group, member, now)

    def _stop_waiting_for_sync(self, group: Group) -> None:
        group.unsynced.clear()
        if group.sync_alarm is not None:
            group.sync_alarm.clear()

    def _sync_alarm_rang(self, group: Group, now: Now) -> None:
        """Remove members that joined and did not sync within the rebalance timeout: they count as dead (KAFKA-13754).
        """
        late = [group.members[member_id] for member_id in group.unsynced]
        for member in late:
            self.remove(group, member)
        if late:  # empty if the late members were replaced or removed meanwhile
            self.members_gone(group, now)

    # Storage

    def store(self, group: Group) -> None:
        """Write the group to __consumer_offsets, so that a restart finds its members and their assignments."""
        group.is_stored = True
        self._outbox.append(group.group_id, group_key(group.group_id), group_value(group))
