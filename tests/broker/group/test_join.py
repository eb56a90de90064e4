"""JoinGroup (https://kafka.apache.org/protocol#The_Messages_JoinGroup; GroupMetadataManager.classicGroupJoin)."""

import pytest

from broker.wire.errors import ErrorCode


def test_a_new_dynamic_member_is_given_an_id_first(house):
    """A client that misses the answer leaves no member behind (KIP-394)."""
    first = house.join(client="app", id_required=True).result
    assert first.error is ErrorCode.MEMBER_ID_REQUIRED
    assert first.member_id == "app-1"
    assert house.coordinator.describe("g").members == ()
    assert house.state() == "Empty"

    pending = house.join(first.member_id, client="app", id_required=True)
    house.at(3_000)
    assert pending.result.error is ErrorCode.NONE
    assert pending.result.member_id == pending.result.leader == "app-1"


def test_a_member_id_that_is_not_used_expires_after_the_session_timeout(house):
    given = house.join(id_required=True, session_ms=10_000).result
    house.at(10_000)
    assert house.join(given.member_id).result.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_empty_group_waits_for_more_members_before_its_first_generation(house):
    """The first generation waits for group.initial.rebalance.delay.ms (KIP-134)."""
    pending = house.join()
    house.at(2_999)
    assert pending.result is None and house.state() == "PreparingRebalance"
    house.at(3_000)
    assert pending.result.generation == 1 and house.state() == "CompletingRebalance"


def test_each_newcomer_makes_the_first_wait_longer_up_to_the_rebalance_timeout(house):
    """Each newcomer restarts the delay, up to the largest rebalance timeout (KIP-134)."""
    joins = [house.join(rebalance_ms=7_000)]
    house.at(2_000)
    joins.append(house.join(rebalance_ms=7_000))
    house.at(5_999)
    joins.append(house.join(rebalance_ms=7_000))
    assert [pending.result for pending in joins] == [None] * 3
    house.at(6_999)
    assert [pending.result for pending in joins] == [None] * 3
    house.at(7_000)
    assert {pending.result.generation for pending in joins} == {1}


def test_without_a_delay_the_first_generation_begins_immediately(make_house):
    house = make_house(group_initial_rebalance_delay_ms=0)
    pending = house.join()
    house.at(0)
    assert pending.result.generation == 1


def test_only_the_leader_is_told_of_all_members(house):
    leader, follower = house.stable("a", "b")
    assert leader.leader == follower.leader == leader.member_id
    assert [m.member_id for m in leader.members] == [leader.member_id, follower.member_id]
    assert leader.members[1].metadata == b"topics"
    assert follower.members == ()


def test_the_protocol_most_members_put_first_is_chosen_of_those_all_support(house):
    joins = [
        house.join(names=("sticky", "range")),
        house.join(names=("range", "sticky")),
        house.join(names=("range", "cooperative", "sticky")),
    ]
    house.at(10_000)
    assert {pending.result.protocol_name for pending in joins} == {"range"}
    assert {pending.result.protocol_type for pending in joins} == {"consumer"}


@pytest.mark.parametrize(
    "other", [{"names": ("sticky",)}, {"kind": "connect"}, {"names": ()}], ids=["assignor", "type", "none"]
)
def test_a_member_that_shares_no_protocol_is_refused(house, other):
    house.stable("a")
    assert house.join(client="b", **other).result.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert house.state() == "Stable"


@pytest.mark.parametrize("other", [{"names": ()}, {"kind": ""}], ids=["no protocols", "no type"])
def test_the_first_member_must_name_a_type_and_a_protocol(house, other):
    assert house.join(**other).result.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_a_session_timeout_outside_the_limits_is_refused(house, session_ms):
    """The limits are group.min.session.timeout.ms and group.max.session.timeout.ms."""
    assert house.join(session_ms=session_ms).result.error is ErrorCode.INVALID_SESSION_TIMEOUT


@pytest.mark.parametrize("group", ["", "g" * 20_000], ids=["empty", "longer than a record can hold"])
def test_an_impossible_group_id_is_refused(house, group):
    assert house.join(group=group).result.error is ErrorCode.INVALID_GROUP_ID


def test_a_name_longer_than_a_record_can_hold_is_refused(house):
    assert house.join(instance="i" * 20_000).result.error is ErrorCode.INVALID_REQUEST


def test_a_member_id_that_was_never_given_is_unknown(house):
    assert house.join("ghost").result.error is ErrorCode.UNKNOWN_MEMBER_ID
    house.stable("a")
    assert house.join("ghost").result.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert house.state() == "Stable"


def test_a_newcomer_makes_the_others_join_again(house):
    (first,) = house.stable("a")
    newcomer = house.join(client="b")
    assert newcomer.result is None
    assert house.heartbeat(first.member_id, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    again = house.join(first.member_id)
    assert again.result.generation == newcomer.result.generation == 2
    assert len(again.result.members) == 2


def test_members_that_do_not_join_in_the_rebalance_timeout_are_removed(house):
    slow, ready = house.stable("slow", "ready", rebalance_ms=20_000, session_ms=30_000)
    newcomer = house.join(client="new", rebalance_ms=20_000)
    again = house.join(ready.member_id, rebalance_ms=20_000)
    start_ms = house.now_ms
    house.at(start_ms + 19_999)
    assert newcomer.result is None and again.result is None
    house.at(start_ms + 20_000)
    assert again.result.generation == newcomer.result.generation == 2
    assert house.heartbeat(slow.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert again.result.leader in (again.result.member_id, newcomer.result.member_id)


def test_a_leader_that_does_not_come_back_is_replaced_by_one_that_has(house):
    leader, follower = house.stable("a", "b", session_ms=600_000)
    again = house.join(follower.member_id, metadata=b"other topics", session_ms=600_000)
    house.at(house.now_ms + 60_000)
    assert again.result.leader == follower.member_id
    assert [m.metadata for m in again.result.members] == [b"other topics"]


def test_a_leader_that_joins_again_rebalances_a_stable_group(house):
    """The leader's topics may have more partitions now, which no subscription shows."""
    leader, follower = house.stable("a", "b")
    assert house.join(leader.member_id).result is None
    assert house.state() == "PreparingRebalance"


def test_a_follower_that_missed_its_answer_is_told_again_and_disturbs_nobody(house):
    leader, follower = house.stable("a", "b")
    again = house.join(follower.member_id).result
    assert (again.generation, again.leader, again.members) == (1, leader.member_id, ())
    assert house.state() == "Stable"


def test_a_follower_that_changed_its_mind_rebalances_the_group(house):
    leader, follower = house.stable("a", "b")
    assert house.join(follower.member_id, metadata=b"other topics").result is None
    assert house.state() == "PreparingRebalance"


def test_a_join_asked_again_while_it_waits_gets_the_one_answer(house):
    """After a client reconnects, whichever of its connections still exists receives the generation."""
    given = house.join(id_required=True).result
    once = house.join(given.member_id)
    assert house.join(given.member_id) is once
    house.at(3_000)
    assert once.result.generation == 1
    assert house.answered == [("member", "g", given.member_id)]


def test_a_full_group_takes_nobody_in(make_house):
    """A group has at most group.max.size members."""
    house = make_house(group_max_size=1)
    (member,) = house.stable("a")
    assert house.join(client="b").result.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert house.heartbeat(member.member_id, 1) is ErrorCode.NONE
    assert house.join(member.member_id).result.generation == 2


def test_ids_given_away_are_limited_too(make_house):
    """A client that never joins with its ids cannot fill the memory."""
    house = make_house(group_max_size=2)
    errors = [house.join(id_required=True).result.error for _ in range(3)]
    assert errors == [ErrorCode.MEMBER_ID_REQUIRED] * 2 + [ErrorCode.GROUP_MAX_SIZE_REACHED]


def test_groups_are_limited(make_house):
    house = make_house(groups_max=1)
    house.join(group="one")
    assert house.join(group="two").result.error is ErrorCode.POLICY_VIOLATION
    assert house.commit(("t", 0, 1), group="two") == [ErrorCode.POLICY_VIOLATION]


def test_a_new_member_whose_client_is_gone_is_given_up_after_five_minutes(make_house):
    """A member sends no heartbeat while its join waits, and a rebalance may last longer than five minutes."""
    house = make_house()
    house.stable("a", session_ms=1_800_000, rebalance_ms=1_000_000)
    newcomer = house.join(client="b")
    house.at(house.now_ms + 300_000)
    assert newcomer.result.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert newcomer.result.member_id == ""


def test_a_thousand_members_come_together(house):
    """The work of one join must not grow with the group's size."""
    joins = [house.join(client=f"c{n}", session_ms=60_000) for n in range(1_000)]
    house.at(60_000)
    assert {pending.result.generation for pending in joins} == {1}
    assert len(joins[0].result.members) == 1_000


def test_a_thousand_members_share_anew_when_one_comes(house):
    joined = house.joined(*[house.join(client=f"c{n}", session_ms=60_000) for n in range(1_000)])
    followers = [house.sync(member) for member in joined[1:]]
    house.sync(joined[0], {member.member_id: b"share" for member in joined})
    assert {pending.result.assignment for pending in followers} == {b"share"}
    newcomer = house.join(client="new", session_ms=60_000)
    assert {house.heartbeat(member.member_id, 1) for member in joined} == {ErrorCode.REBALANCE_IN_PROGRESS}
    again = house.joined(newcomer, *[house.join(member.member_id, session_ms=60_000) for member in joined])
    assert {member.generation for member in again} == {2}
    assert sorted(len(member.members) for member in again) == [0] * 1_000 + [1_001]
