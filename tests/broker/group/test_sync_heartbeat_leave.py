"""SyncGroup, Heartbeat, LeaveGroup, and the sessions between them (KIP-62; Kafka's GroupMetadataManager)."""

import pytest

from broker.group.results import MemberIdentity, SyncRequest
from broker.wire.errors import ErrorCode


def joined_pair(house, **more):
    return house.joined(house.join(client="a", **more), house.join(client="b", **more))


def test_the_leaders_assignment_answers_everybody(house):
    leader, follower = joined_pair(house)
    waiting = house.sync(follower)
    assert waiting.result is None and house.state() == "CompletingRebalance"
    own = house.sync(leader, {leader.member_id: b"p0", follower.member_id: b"p1"}).result
    assert (own.error, own.assignment, own.protocol_name, own.protocol_type) == (0, b"p0", "range", "consumer")
    assert waiting.result.assignment == b"p1"
    assert house.state() == "Stable"
    assert house.answered[-2:] == [("member", "g", m.member_id) for m in (leader, follower)]


def test_a_follower_that_is_late_gets_its_share_immediately(house):
    leader, follower = joined_pair(house)
    house.sync(leader, {follower.member_id: b"p1"})
    assert house.sync(follower).result.assignment == b"p1"


def test_a_member_the_leader_forgot_gets_an_empty_share(house):
    leader, follower = joined_pair(house)
    house.sync(leader, {leader.member_id: b"p0"})
    result = house.sync(follower).result
    assert (result.error, result.assignment) == (ErrorCode.NONE, b"")


def test_a_follower_cannot_assign(house):
    leader, follower = joined_pair(house)
    assert house.sync(follower, {leader.member_id: b"mine"}).result is None
    assert house.state() == "CompletingRebalance"


def test_the_generation_is_in_the_log_before_anybody_hears_of_it(house):
    """The record with every member's share is appended before any answer (`take_appends` before `take_answered`)."""
    leader, follower = joined_pair(house)
    assert house.log == []
    house.sync(leader, {leader.member_id: b"p0", follower.member_id: b"p1"})
    (record,) = house.log
    assert b"p0" in record[1] and b"p1" in record[1]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group": "none"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "ghost"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 7}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_sync_that_does_not_fit_is_refused(house, wrong, error):
    (member,) = house.stable("a")
    assert house.sync(member, **wrong).result.error is error


def test_a_sync_of_the_right_protocol_fits(house):
    """The request names the protocol's type and name since v5 (KIP-559)."""
    (member,) = house.stable("a")
    assert house.sync(member, protocol_name="range", protocol_type="consumer").result.error is ErrorCode.NONE


def test_a_sync_while_the_group_joins_is_told_to_join(house):
    (member,) = house.stable("a")
    house.join(client="b")
    assert house.sync(member).result.error is ErrorCode.REBALANCE_IN_PROGRESS


def test_who_waits_for_its_share_is_told_when_another_rebalance_begins(house):
    leader, follower = joined_pair(house)
    waiting = house.sync(follower)
    house.join(client="c")
    assert waiting.result.error is ErrorCode.REBALANCE_IN_PROGRESS


def test_members_that_join_and_never_sync_are_removed(house):
    """Otherwise the other members would wait for the leader for ever (KAFKA-13754, KIP-62)."""
    leader, follower = joined_pair(house, rebalance_ms=20_000, session_ms=60_000)
    waiting = house.sync(follower)
    start_ms = house.now_ms
    house.at(start_ms + 20_000)
    assert waiting.result.error is ErrorCode.REBALANCE_IN_PROGRESS
    again = house.join(follower.member_id, rebalance_ms=20_000, session_ms=60_000).result
    assert (again.generation, again.leader) == (2, follower.member_id)


def test_a_group_that_has_synced_in_time_is_left_alone(house):
    leader, follower = house.stable("a", "b", session_ms=1_000_000, rebalance_ms=20_000)
    house.at(house.now_ms + 100_000)
    assert house.state() == "Stable"


def test_a_members_session_begins_when_its_join_is_answered(house):
    leader, follower = joined_pair(house, session_ms=10_000, rebalance_ms=60_000)
    house.at(house.now_ms + 10_000)
    assert house.state() == "Empty"


def test_heartbeats_keep_a_session(house):
    (member,) = house.stable("a", session_ms=10_000)
    for _ in range(5):
        house.at(house.now_ms + 9_999)
        assert house.heartbeat(member.member_id, 1) is ErrorCode.NONE
    house.at(house.now_ms + 10_000)
    assert house.heartbeat(member.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert house.state() == "Empty"


def test_a_member_that_fails_makes_the_others_share_anew(house):
    failing, other = house.stable("a", "b", session_ms=10_000)
    house.at(house.now_ms + 9_000)
    house.heartbeat(other.member_id, 1)
    house.at(house.now_ms + 1_000)
    assert house.heartbeat(other.member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    again = house.join(other.member_id).result
    assert [m.member_id for m in again.members] == [other.member_id]


def test_while_a_member_waits_for_the_others_its_session_does_not_end(house):
    """A member cannot send heartbeats while it waits for the answer to its join."""
    leader, follower = house.stable("a", "b", session_ms=10_000, rebalance_ms=60_000)
    again = house.join(leader.member_id, rebalance_ms=60_000)
    start_ms = house.now_ms
    for second in range(0, 58, 5):
        house.at(start_ms + second * 1_000)
        assert house.heartbeat(follower.member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert again.result is None
    house.join(follower.member_id)
    assert again.result.generation == 2


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group": "none"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "ghost"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_heartbeat_that_does_not_fit_is_refused(house, wrong, error):
    (member,) = house.stable("a")
    assert house.heartbeat(**{"member_id": member.member_id, "generation": 1} | wrong) is error


def test_a_heartbeat_between_join_and_sync_is_taken(house):
    leader, _ = joined_pair(house)
    assert house.heartbeat(leader.member_id, 1) is ErrorCode.NONE


def test_a_member_that_leaves_is_removed_immediately(house):
    leaving, other = house.stable("a", "b")
    result = house.leave(leaving.member_id)
    assert (result.error, result.members) == (ErrorCode.NONE, ((MemberIdentity(leaving.member_id), ErrorCode.NONE),))
    assert house.heartbeat(leaving.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert house.heartbeat(other.member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_when_the_last_one_leaves_the_group_is_empty_and_the_log_says_so(house):
    (member,) = house.stable("a")
    house.leave(member.member_id)
    assert house.state() == "Empty"
    assert house.restarted().state() == "Empty"
    assert house.restarted().coordinator.describe("g").members == ()


def test_several_members_leave_together_each_with_its_own_error(house):
    """LeaveGroup names several members since v3 (KIP-345)."""
    first, second, third = house.stable("a", "b", "c")
    result = house.leave(first.member_id, "ghost", second.member_id)
    assert [error for _, error in result.members] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE]
    assert len(house.join(third.member_id).result.members) == 1


def test_who_was_given_an_id_may_leave_before_it_joins(house):
    given = house.join(id_required=True).result
    assert house.leave(given.member_id).members[0][1] is ErrorCode.NONE
    assert house.join(given.member_id).result.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_id_given_away_is_waited_for_and_its_end_ends_the_waiting(house):
    """A rebalance waits for a client that was given a member id, at most for its session timeout."""
    (member,) = house.stable("a", session_ms=60_000)
    house.join(client="b", id_required=True, session_ms=10_000)
    again = house.join(member.member_id, session_ms=60_000)
    assert again.result is None
    house.at(house.now_ms + 10_000)
    assert again.result.generation == 2


def test_an_id_that_expires_does_not_disturb_a_stable_group(house):
    (member,) = house.stable("a", session_ms=60_000)
    house.join(client="b", id_required=True, session_ms=10_000)
    house.at(house.now_ms + 10_000)
    assert house.state() == "Stable"


def test_who_leaves_while_it_waits_is_told(house):
    (member,) = house.stable("a")
    house.join(client="b", id_required=True)
    waiting = house.join(member.member_id)
    house.leave(member.member_id)
    assert waiting.result.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_is_taken_off_while_it_syncs_is_told(house):
    leader, follower = joined_pair(house)
    waiting = house.sync(follower)
    house.leave(follower.member_id)
    assert waiting.result.error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(("group", "error"), [("", ErrorCode.INVALID_GROUP_ID), ("none", ErrorCode.NONE)])
def test_leaving_a_group_that_is_not_there(house, group, error):
    result = house.leave("m", group=group)
    assert result.error is error
    assert [e for _, e in result.members] == ([ErrorCode.UNKNOWN_MEMBER_ID] if group else [])


def test_an_assignment_that_could_not_be_stored_is_nobodys(house):
    """All members receive the error, and the group rebalances (Kafka's appendGroupMetadataErrorToResponseError)."""
    leader, follower = joined_pair(house)
    waiting = house.sync(follower)
    before = len(house.answered)
    own = house.coordinator.sync(
        SyncRequest(group_id="g", member_id=leader.member_id, generation=1, assignments=((leader.member_id, b"p0"),)),
        house.now,
    )
    house.coordinator.take_appends()
    house.coordinator.append_failed("g", ErrorCode.COORDINATOR_NOT_AVAILABLE, house.now)
    house.settle()
    assert own.result.error is waiting.result.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert own.result.assignment == b""
    assert len(house.answered) == before + 2
    assert house.state() == "PreparingRebalance"
