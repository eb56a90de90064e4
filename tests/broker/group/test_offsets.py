"""OffsetCommit, OffsetFetch, and expiry (https://kafka.apache.org/protocol; KIP-211)."""

import pytest

from broker.group.offsets import NO_COMMITTED_OFFSET, CommittedOffset
from broker.group.shared import EXPIRATIONS_PER_STEP, STEP_EVERY_MS
from broker.wire.errors import ErrorCode

WALL_MS = 1_700_000_000_000  # the wall clock when `house.now_ms` is 0


def offsets(house, group="g"):
    return {(f.topic, f.partition): f.committed for f in house.coordinator.fetch(group, None)}


def test_a_consumer_that_assigns_itself_its_partitions_may_commit(house):
    """A commit with generation -1 and no member id creates a group that only keeps offsets."""
    assert house.commit(("t", 0, 42, 3, "note"), ("t", 1, 7)) == [ErrorCode.NONE] * 2
    assert house.coordinator.fetch("g", [("t", 1), ("t", 0), ("t", 2)]) == [
        ("t", 1, CommittedOffset(7, -1, "", WALL_MS), False),
        ("t", 0, CommittedOffset(42, 3, "note", WALL_MS), False),
        ("t", 2, NO_COMMITTED_OFFSET, False),
    ]


def test_all_offsets_of_a_group_can_be_asked_for(house):
    house.commit(("t", 0, 1), ("u", 5, 2))
    assert {key: committed.offset for key, committed in offsets(house).items()} == {("t", 0): 1, ("u", 5): 2}


def test_a_group_nobody_has_used_has_no_offsets_and_that_is_no_error(house):
    assert house.coordinator.fetch("none", [("t", 0)]) == [("t", 0, NO_COMMITTED_OFFSET, False)]
    assert house.coordinator.fetch("none", None) == []


def test_a_member_commits_in_its_generation(house):
    (member,) = house.stable("a")
    assert house.commit(("t", 0, 5), member_id=member.member_id, generation=1) == [ErrorCode.NONE]


@pytest.mark.parametrize(
    ("identity", "error"),
    [
        ({}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "ghost", "generation": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "c-1", "generation": 9}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "c-1", "generation": 1, "instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group": "g" * 20_000}, ErrorCode.INVALID_GROUP_ID),
    ],
)
def test_nobody_else_commits_while_a_group_has_members(house, identity, error):
    (member,) = house.stable("c")
    assert member.member_id == "c-1"
    assert house.commit(("t", 0, 5), **identity) == [error]
    assert offsets(house) == {}


@pytest.mark.parametrize("error", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.GROUP_ID_NOT_FOUND])
def test_a_member_of_a_group_that_is_gone_is_told_as_its_version_understands(house, error):
    """The error is GROUP_ID_NOT_FOUND since OffsetCommit v9 (KIP-848), ILLEGAL_GENERATION before."""
    assert house.commit(("t", 0, 5), member_id="m", generation=3, unknown_group=error) == [error]
    assert len(house.coordinator) == 0


def test_a_member_commits_while_others_join_but_not_before_it_has_synced(house):
    leader, follower = house.stable("a", "b")
    identity = {"member_id": follower.member_id, "generation": 1}
    house.join(client="c")
    assert house.commit(("t", 0, 5), **identity) == [ErrorCode.NONE]
    house.join(leader.member_id)
    house.join(follower.member_id)
    assert house.state() == "CompletingRebalance"
    assert house.commit(("t", 0, 6), **identity | {"generation": 2}) == [ErrorCode.REBALANCE_IN_PROGRESS]


def test_a_commit_is_a_sign_of_life(house):
    (member,) = house.stable("a", session_ms=10_000)
    house.at(house.now_ms + 9_000)
    house.commit(("t", 0, 5), member_id=member.member_id, generation=1)
    house.at(house.now_ms + 9_000)
    assert house.state() == "Stable"


def test_metadata_that_is_too_long_is_refused_for_its_partition_alone(house):
    """offset.metadata.max.bytes counts characters, as in Kafka."""
    errors = house.commit(("t", 0, 5, -1, "ä" * 4_096), ("t", 1, 5, -1, "x" * 4_097))
    assert errors == [ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert list(offsets(house)) == [("t", 0)]


def test_offsets_of_a_group_without_members_expire_after_the_retention(make_house):
    """offsets.retention.minutes is counted from the moment when the group became empty."""
    house = make_house(offsets_retention_minutes=60)
    (member,) = house.stable("a", session_ms=1_800_000)
    house.commit(("t", 0, 5), member_id=member.member_id, generation=1)
    house.at(1_000_000)
    house.leave(member.member_id)
    house.at(1_000_000 + 3_600_000 - 1)
    assert len(offsets(house)) == 1
    house.at(1_000_000 + 3_600_000 + 600_000)
    assert offsets(house) == {} and house.state() == "Dead"
    assert len(house.restarted().coordinator) == 0


def test_offsets_of_a_simple_consumer_expire_after_their_last_commit(make_house):
    house = make_house(offsets_retention_minutes=60)
    house.commit(("t", 0, 5), ("t", 1, 5))
    house.at(3_000_000)
    house.commit(("t", 1, 6))
    house.at(3_600_000)
    assert list(offsets(house)) == [("t", 1)]


def test_a_group_with_members_keeps_the_offsets_of_what_it_reads_and_no_other(make_house):
    """Offsets of a topic that was dropped from the subscription expire (KIP-211, KAFKA-8730)."""
    house = make_house(offsets_retention_minutes=60)
    subscription = b"\0\3" + b"\0\0\0\1" + b"\0\4read" + b"more of a later version"
    (member,) = house.stable("a", session_ms=1_800_000, metadata=subscription)
    house.commit(("read", 0, 5), ("dropped", 0, 5), member_id=member.member_id, generation=1)
    for ms in range(0, 5_000_000, 1_000_000):
        house.at(house.now_ms + 1_000_000)
        house.heartbeat(member.member_id, 1)
    assert list(offsets(house)) == [("read", 0)]


def test_nothing_expires_where_the_subscription_cannot_be_read(make_house):
    house = make_house(offsets_retention_minutes=60)
    (member,) = house.stable("a", session_ms=1_800_000, metadata=b"\0")
    house.commit(("t", 0, 5), member_id=member.member_id, generation=1)
    for _ in range(5):
        house.at(house.now_ms + 1_000_000)
        house.heartbeat(member.member_id, 1)
    assert list(offsets(house)) == [("t", 0)]


def test_an_old_clients_own_retention_goes_before(house):
    """retention_time_ms of OffsetCommit v2 to v4 takes precedence over the broker's retention."""
    house.commit(("t", 0, 5), retention_ms=1_000_000)
    assert offsets(house)["t", 0].expire_ms == WALL_MS + 1_000_000
    assert offsets(house.restarted())["t", 0].expire_ms == WALL_MS + 1_000_000
    house.at(1_200_000)
    assert offsets(house) == {}


def test_a_deleted_topics_offsets_go_with_it(house):
    house.commit(("t", 0, 5), ("t", 1, 5), ("u", 0, 5))
    house.forget("t")
    assert list(offsets(house)) == list(offsets(house.restarted())) == [("u", 0)]


# --- removal in slices, after the tombstones are written -------------------------------------------------------------


def test_many_offsets_expire_in_steps(make_house):
    house = make_house(offsets_retention_minutes=1)
    for group in ("g", "h"):
        house.commit(*[("t", n, 5) for n in range(EXPIRATIONS_PER_STEP)], group=group)
    remaining = [2 * EXPIRATIONS_PER_STEP]
    while len(house.coordinator):
        house.at(house.coordinator.next_deadline_ms())
        remaining.append(len(offsets(house)) + len(offsets(house, "h")))
    taken = [before - after for before, after in zip(remaining, remaining[1:]) if before > after]
    assert taken == [EXPIRATIONS_PER_STEP - 1, EXPIRATIONS_PER_STEP - 1, 2], "to look at a group counts too"
    assert len(house.restarted().coordinator) == 0


def test_many_offsets_that_do_not_expire_are_checked_in_steps_too(make_house):
    house = make_house(offsets_retention_minutes=60)
    house.commit(*[("t", n, 5) for n in range(2 * EXPIRATIONS_PER_STEP)])
    house.commit(("old", 0, 5), retention_ms=1)
    for slices in range(2):
        house.at(600_000 + slices * STEP_EVERY_MS)
        assert ("old", 0) in offsets(house), "it is the last that is looked at"
    house.commit(("u", 0, 5))
    house.at(600_000 + 2 * STEP_EVERY_MS)
    assert ("old", 0) not in offsets(house) and len(offsets(house.restarted())) == 2 * EXPIRATIONS_PER_STEP + 1


@pytest.mark.parametrize("stored", [False, True])
def test_an_expired_offset_stays_and_is_retried_if_its_tombstone_cannot_be_written(make_house, stored):
    """An offset removed without a tombstone in the log would return at the next start."""
    house = make_house(offsets_retention_minutes=1)
    if stored:
        (member,) = house.stable("a")
        house.leave(member.member_id)
    house.commit(("t", 0, 5))
    house.refused = {"g"}
    house.at(700_000)
    assert len(offsets(house)) == 1 and house.state() == "Empty"
    house.refused = set()
    house.at(701_000)
    assert house.state() == "Dead" and len(house.restarted().coordinator) == 0


def test_an_offset_that_is_used_again_before_its_turn_stays(make_house):
    house = make_house(offsets_retention_minutes=1)
    house.commit(("t", 0, 5), ("t", 1, 5))
    house.refused = {"g"}
    house.at(600_000)
    house.refused = set()
    house.commit(("t", 1, 6))
    house.at(602_000)
    assert list(offsets(house)) == list(offsets(house.restarted())) == [("t", 1)]


def test_members_do_not_share_anew_because_an_old_offset_cannot_be_taken_away(make_house):
    house = make_house(offsets_retention_minutes=1)
    subscription = b"\0\3" + b"\0\0\0\1" + b"\0\4read"
    (member,) = house.stable("a", session_ms=1_800_000, metadata=subscription)
    house.commit(("dropped", 0, 5), member_id=member.member_id, generation=1)
    house.refused = {"g"}
    house.at(700_000)
    assert house.state() == "Stable" and len(offsets(house)) == 1


def test_many_offsets_of_a_deleted_topic_vanish_immediately_and_expire_in_steps(house):
    house.commit(*[("t", n, 5) for n in range(2 * EXPIRATIONS_PER_STEP)], ("u", 0, 5))
    house.forget("t")
    assert list(offsets(house)) == [("u", 0)] and len(offsets(house.restarted())) == EXPIRATIONS_PER_STEP + 1
    house.at(10)
    assert list(offsets(house.restarted())) == [("u", 0)]


def test_offsets_of_a_deleted_topic_whose_tombstones_cannot_be_written_do_not_come_back(house):
    """A new topic of the same name does not get them either, and keeps its own commits."""
    house.commit(("t", 0, 5), ("t", 1, 5))
    house.refused = {"g"}
    house.forget("t")
    assert offsets(house) == {}
    house.refused = set()
    house.commit(("t", 1, 6))
    assert list(offsets(house)) == [("t", 1)]
    house.at(1_000)
    assert list(offsets(house)) == list(offsets(house.restarted())) == [("t", 1)]


def test_one_groups_tombstones_that_cannot_be_written_keep_nobody_elses(house):
    for group in ("g", "h"):
        house.commit(*[("t", n, 5) for n in range(EXPIRATIONS_PER_STEP)], group=group)
    house.refused = {"g"}
    house.forget("t")
    house.at(1_000)
    assert (len(offsets(house.restarted())), offsets(house.restarted(), "h")) == (EXPIRATIONS_PER_STEP, {})


def test_an_offset_in_use_outlives_one_that_has_expired_and_whose_topic_is_gone(make_house):
    """The deleted topic's offset is subtracted once. Subtracted twice, the group would seem to have no offsets left."""
    house = make_house(offsets_retention_minutes=1)
    house.commit(("deleted", 0, 5))
    house.at(599_500)
    house.refused = {"g"}
    house.forget("deleted")
    house.refused = set()
    house.commit(("new", 0, 5))
    house.at(602_000)
    assert list(offsets(house)) == list(offsets(house.restarted())) == [("new", 0)]
