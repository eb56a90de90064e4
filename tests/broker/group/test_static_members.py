"""Static members (KIP-345), and leaders that come back (KIP-814)."""

from broker.group.results import MemberIdentity
from broker.wire.errors import ErrorCode


def static_pair(house, **more):
    joins = [house.join(client=name, instance=f"i-{name}", **more) for name in "ab"]
    leader, follower = house.joined(*joins)
    house.sync(follower)
    house.sync(leader, {leader.member_id: b"p0", follower.member_id: b"p1"})
    return leader, follower


def test_a_static_member_needs_no_id_first(house):
    pending = house.join(instance="i", id_required=True)
    house.at(3_000)
    assert pending.result.error is ErrorCode.NONE
    assert pending.result.member_id == "i-1"


def test_a_static_member_that_comes_back_keeps_its_share_and_nobody_rebalances(house):
    leader, follower = static_pair(house, session_ms=1_000_000)
    back = house.join(client="b", instance="i-b", session_ms=1_000_000).result
    assert back.member_id not in (leader.member_id, follower.member_id)
    assert (back.generation, back.leader, house.state()) == (1, leader.member_id, "Stable")
    assert house.sync(back).result.assignment == b"p1"


def test_its_former_self_is_fenced(house):
    _, follower = static_pair(house, session_ms=1_000_000)
    house.join(client="b", instance="i-b")
    former = follower.member_id
    assert house.heartbeat(former, 1, instance="i-b") is ErrorCode.FENCED_INSTANCE_ID
    assert house.join(former, instance="i-b").result.error is ErrorCode.FENCED_INSTANCE_ID
    assert house.sync(follower, instance_id="i-b").result.error is ErrorCode.FENCED_INSTANCE_ID
    assert house.commit(("t", 0, 1), member_id=former, instance_id="i-b", generation=1) == [
        ErrorCode.FENCED_INSTANCE_ID
    ]
    assert house.leave(MemberIdentity(former, "i-b")).members[0][1] is ErrorCode.FENCED_INSTANCE_ID


def test_the_former_member_of_an_instance_gets_its_error_immediately_where_it_waits(house):
    first = house.join(instance="i")
    second = house.join(instance="i")
    assert first.result.error is ErrorCode.FENCED_INSTANCE_ID
    house.at(30_000)
    assert second.result.error is ErrorCode.NONE


def test_a_leader_that_comes_back_is_told_not_to_assign(house):
    """It gets skip_assignment and also the members, because it watches their topics (KIP-814)."""
    static_pair(house, session_ms=1_000_000)
    back = house.join(client="a", instance="i-a", may_skip=True).result
    assert back.skip_assignment and back.leader == back.member_id
    assert len(back.members) == 2


def test_an_older_leader_that_comes_back_is_not_told_that_it_leads(house):
    """Before JoinGroup v9 it would assign again, and the broker would ignore its SyncGroup."""
    leader, _ = static_pair(house, session_ms=1_000_000)
    back = house.join(client="a", instance="i-a").result
    assert back.leader == leader.member_id != back.member_id
    assert back.members == () and not back.skip_assignment


def test_its_new_id_is_stored(house):
    static_pair(house, session_ms=1_000_000)
    back = house.join(client="b", instance="i-b").result
    assert house.restarted().heartbeat(back.member_id, 1, instance="i-b") is ErrorCode.NONE


def test_who_leads_is_stored(house):
    _, follower = static_pair(house, session_ms=1_000_000)
    leader = house.join(client="a", instance="i-a", may_skip=True).result
    again = house.restarted().join(follower.member_id, instance="i-b").result
    assert again.leader == leader.member_id


def test_coming_back_before_the_first_share_was_fetched_is_not_held_against_it(house):
    """Members that have not synced are removed after the rebalance timeout; the member's former id was one of them."""
    joins = [house.join(instance=i, session_ms=1_000_000, rebalance_ms=20_000) for i in ("i-a", "i-b")]
    leader, follower = house.joined(*joins)
    house.sync(leader, {follower.member_id: b"p1"})
    back = house.join(instance="i-b", session_ms=1_000_000, rebalance_ms=20_000).result
    house.at(house.now_ms + 20_000)
    assert house.state() == "Stable"
    assert house.sync(back).result.assignment == b"p1"


def test_a_change_that_would_choose_another_protocol_rebalances(house):
    joins = [house.join(instance=i, names=("range", "sticky"), session_ms=1_000_000) for i in ("i-a", "i-b")]
    leader, follower = house.joined(*joins)
    house.sync(leader)
    house.sync(follower)
    back = house.join(instance="i-b", names=("sticky",))
    assert back.result is None and house.state() == "PreparingRebalance"


def test_coming_back_while_the_leader_assigns_rebalances(house):
    """The leader is about to name the old id in its assignment."""
    joins = [house.join(instance=i, session_ms=1_000_000) for i in ("i-a", "i-b")]
    leader, follower = house.joined(*joins)
    waiting = house.sync(follower)
    assert house.join(instance="i-b").result is None
    assert waiting.result.error is ErrorCode.FENCED_INSTANCE_ID
    assert house.state() == "PreparingRebalance"
    assert house.sync(leader).result.error is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_static_member_that_does_not_rejoin_stays_until_its_session_ends(house):
    leader, follower = static_pair(house, session_ms=1_000_000, rebalance_ms=20_000)
    again = house.join(leader.member_id, instance="i-a", rebalance_ms=20_000)
    house.at(house.now_ms + 20_000)
    assert again.result.generation == 2
    assert len(again.result.members) == 2


def test_when_only_absent_static_members_are_left_the_join_phase_goes_on(house):
    _, follower = static_pair(house, session_ms=100_000, rebalance_ms=20_000)
    house.leave(MemberIdentity("", "i-a"))
    start_ms = house.now_ms
    house.at(start_ms + 90_000)
    assert house.state() == "PreparingRebalance"
    again = house.join(follower.member_id, instance="i-b").result
    assert again.generation == 2 and again.leader == follower.member_id


def test_an_administrator_takes_a_static_member_off_by_its_instance_id(house):
    static_pair(house, session_ms=1_000_000)
    result = house.leave(MemberIdentity("", "i-b"), MemberIdentity("", "i-none"))
    assert [error for _, error in result.members] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert house.state() == "PreparingRebalance"
