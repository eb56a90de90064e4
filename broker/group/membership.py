"""JoinGroup and LeaveGroup: which clients join a group, under which member id, and which members leave it.

A join falls into one of these cases:

    no member id, no instance id     a new dynamic member: it gets an id and must join again with it (KIP-394)
    no member id, instance id        a static member: new, or restarted and put back in its old key (KIP-345)
    an id given out before           the new dynamic member joins with its id
    a member's id                    the member rejoins: the group rebalances, or its subscription changed
"""

from collections.abc import Sequence

from broker.group.group import Group
from broker.group.member import Member
from broker.group.rebalance import Rebalance
from broker.group.results import (
    UNKNOWN_MEMBER_ID,
    JoinRequest,
    JoinResult,
    LeaveResult,
    MemberIdentity,
    Pending,
    member_key,
)
from broker.group.states import GroupState
from broker.now import Now
from broker.settings.group_config import GroupConfig
from broker.wire.errors import ErrorCode


class Membership:
    """Joins and leaves of all groups of one coordinator."""

    def __init__(self, config: GroupConfig, rebalance: Rebalance) -> None:
        self._config = config
        self._rebalance = rebalance

    def join(self, group: Group, request: JoinRequest, now: Now) -> Pending[JoinResult]:
        """Answer a JoinGroup. The caller has created the group if the request had no member id."""
        member_id = request.member_id
        if not self._has_room(group, member_id):
            if member_id in group.members:
                self._rebalance.remove(group, group.members[member_id])
            return refused(ErrorCode.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID)
        if not group.supports(request.protocol_type, request.protocols):
            return refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)
        if member_id == UNKNOWN_MEMBER_ID:
            return self._join_newcomer(group, request, now)
        if member_id in group.pending and request.instance_id is None:
            self._rebalance.forget_pending(group, member_id)
            return self._add(group, request, member_id, now)
        error = group.check_member(member_id, request.instance_id)
        if error:
            return refused(error, member_id)
        return self._rejoin(group, group.members[member_id], request, now)

    def _has_room(self, group: Group, member_id: str) -> bool:
        """Return True if the member fits into `group.max.size`.

        While the group rebalances, only members that have rejoined count, so the last ones to rejoin are refused. The
        same limit applies to ids that were given out and have not been used.
        """
        most = self._config.group_max_size
        member = group.members.get(member_id)
        if member_id == UNKNOWN_MEMBER_ID and len(group.pending) >= most:
            return False
        if group.state is GroupState.EMPTY:
            return True
        if group.state is GroupState.PREPARING_REBALANCE:
            return (member is not None and member.joining is not None) or group.awaiting_join < most
        return member is not None or len(group.members) < most

    # Newcomers

    def _join_newcomer(self, group: Group, request: JoinRequest, now: Now) -> Pending[JoinResult]:
        new_id = f"{request.instance_id or request.client_id}-{request.member_id_suffix}"
        former = group.static_member(request.instance_id)
        if former is not None:
            return self._replace(group, former, new_id, request, now)
        if request.instance_id is None and request.member_id_required:
            self._rebalance.expect_pending(group, new_id, request.session_timeout_ms, now)
            return refused(ErrorCode.MEMBER_ID_REQUIRED, new_id)
        return self._add(group, request, new_id, now)

    def _add(self, group: Group, request: JoinRequest, member_id: str, now: Now) -> Pending[JoinResult]:
        client = (request.client_id, request.client_host)
        member = Member(member_id, request.instance_id, client, _timeouts(request), request.protocols)
        member.is_new = True
        group.add(member, request.protocol_type)
        if group.initial_delay is not None:
            group.initial_delay.member_added = True
        pending = self._wait(group, member)
        self._rebalance.keep_alive(group, member, now, self._config.group_new_member_join_timeout_ms)
        self._rebalance.member_joined(group, now)
        return pending

    def _replace(
        self, group: Group, former: Member, new_id: str, request: JoinRequest, now: Now
    ) -> Pending[JoinResult]:
        """Replace a static member that came back. A stable group rebalances only if it would choose another protocol.
        """
        leader_before = group.leader_or_none
        self._rebalance.dismiss(group, former, ErrorCode.FENCED_INSTANCE_ID)
        member = group.replace_static(former, new_id)
        self._rebalance.keep_alive(group, member, now)
        group.update(member, request.protocols, _timeouts(request))
        pending = self._wait(group, member)
        if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
            self._rebalance.store(group)
            self._rebalance.answer_join(group, member, self._reinstated(group, member, leader_before, request))
        elif group.can_rebalance:
            # This includes the sync phase, because the leader computes an assignment that names the old id.
            self._rebalance.begin(group, now)
        else:
            self._rebalance.complete_join_if_all_are_in(group, now)
        return pending

    def _reinstated(self, group: Group, member: Member, leader_before: str, request: JoinRequest) -> JoinResult:
        """Return the join answer of a static member that came back to a stable group.

        A leader must not assign again. Since v9 the answer says so (KIP-814). An older client must not learn that it
        leads, so its answer names the leader before the replacement: for a leader its own former id.
        """
        if request.may_skip_assignment:
            return self._rebalance.join_result(group, member, skip_assignment=group.is_leader(member))
        return JoinResult(
            member_id=member.member_id,
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=leader_before,
        )

    # Members that join again

    def _rejoin(self, group: Group, member: Member, request: JoinRequest, now: Now) -> Pending[JoinResult]:
        if group.state is GroupState.EMPTY:
            return refused(ErrorCode.UNKNOWN_MEMBER_ID, member.member_id)
        if self._knows_its_generation(group, member, request):
            # The member missed the answer to its join, so repeat it.
            key = member_key(group.group_id, member.member_id)
            return Pending(key, self._rebalance.join_result(group, member))
        group.update(member, request.protocols, _timeouts(request))
        pending = self._wait(group, member)
        self._rebalance.member_joined(group, now)
        return pending

    @staticmethod
    def _knows_its_generation(group: Group, member: Member, request: JoinRequest) -> bool:
        """Return False if the join must start a rebalance, True if it only needs the current generation again.

        In a stable group the leader's join always starts one, because its topics may have new partitions, which no
        subscription shows.
        """
        if group.state is GroupState.PREPARING_REBALANCE or member.protocols != request.protocols:
            return False
        return group.state is GroupState.COMPLETING_REBALANCE or not group.is_leader(member)

    @staticmethod
    def _wait(group: Group, member: Member) -> Pending[JoinResult]:
        """Return the member's pending join answer. A repeated join before the answer gets the same one."""
        if member.joining is None:
            group.set_joining(member, Pending(member_key(group.group_id, member.member_id)))
        assert member.joining is not None
        return member.joining

    # Leaving

    def leave(self, group: Group, members: Sequence[MemberIdentity], now: Now) -> LeaveResult:
        """Answer a LeaveGroup of one or, since v3, several members, with an error code for each."""
        results = tuple((identity, self._leave(group, identity)) for identity in members)
        if any(error is ErrorCode.NONE for _, error in results):
            if group.can_rebalance and group.state is not GroupState.EMPTY:
                self._rebalance.begin(group, now)
            else:
                self._rebalance.complete_join_if_all_are_in(group, now)
        return LeaveResult(ErrorCode.NONE, results)

    def _leave(self, group: Group, identity: MemberIdentity) -> ErrorCode:
        member_id, instance_id = identity
        if member_id == UNKNOWN_MEMBER_ID:  # an administrator removes a static member
            static = group.static_member(instance_id)
            if static is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = static.member_id
        elif member_id in group.pending:
            self._rebalance.forget_pending(group, member_id)
            return ErrorCode.NONE
        error = group.check_member(member_id, instance_id)
        if not error:
            self._rebalance.remove(group, group.members[member_id])
        return error


def refused(error: ErrorCode, member_id: str) -> Pending[JoinResult]:
    """Return the answer to a join that is refused at once."""
    return Pending(None, JoinResult(error=error, member_id=member_id))


def _timeouts(request: JoinRequest) -> tuple[int, int]:
    return request.session_timeout_ms, request.rebalance_timeout_ms
