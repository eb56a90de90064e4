"""Loading after a restart: groups and offsets are replayed from __consumer_offsets."""

import pytest

from broker.group.offset_records import BadOffsetsRecord
from broker.steps import Pace
from broker.wire.errors import ErrorCode
from tests.broker.group.conftest import House


def test_a_restart_disturbs_no_member(house):
    leader, follower = house.stable("a", "b")
    again = house.restarted()
    assert again.coordinator.describe("g") == house.coordinator.describe("g")
    assert again.heartbeat(follower.member_id, 1) is ErrorCode.NONE
    assert again.sync(follower).result.assignment == b"share of " + follower.member_id.encode()
    assert again.commit(("t", 0, 5), member_id=leader.member_id, generation=1) == [ErrorCode.NONE]


def test_members_have_one_session_timeout_to_be_heard_of(house):
    house.stable("a", session_ms=10_000)
    again = house.restarted()
    again.at(9_999)
    assert again.state() == "Stable"
    again.at(10_000)
    assert again.state() == "Empty"


def test_who_joined_and_was_not_stored_is_unknown(house):
    """A generation is stored when its leader syncs; until then no member has an assignment to act on."""
    pending = house.join()
    house.at(3_000)
    again = house.restarted()
    assert again.heartbeat(pending.result.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_generations_go_on_where_they_were(house):
    (member,) = house.stable("a")
    house.leave(member.member_id)
    again = house.restarted()
    (newcomer,) = again.stable("b")
    assert newcomer.generation == 3  # the generation without members counts too


def test_offsets_come_back(house):
    house.commit(("t", 0, 42, 3, "note"), ("t", 1, 7))
    house.commit(("t", 1, 8))
    assert house.restarted().coordinator.fetch("g", None) == house.coordinator.fetch("g", None)


def test_a_group_read_without_its_first_records_is_whole(house):
    """__consumer_offsets is compacted, so only the last record of each key is certain to exist."""
    (member,) = house.stable("a")
    house.commit(("t", 0, 1), member_id=member.member_id, generation=1)
    house.commit(("t", 0, 2), member_id=member.member_id, generation=1)
    whole = house.restarted().coordinator
    house.log = list(dict(house.log).items())
    compacted = house.restarted().coordinator
    assert compacted.describe("g") == whole.describe("g")
    assert compacted.fetch("g", None) == whole.fetch("g", None)


def test_a_group_larger_than_the_limit_shares_anew(make_house):
    """After group.max.size was lowered, the last members to rejoin are refused."""
    house = make_house()
    members = house.stable("a", "b")
    again = make_house(group_max_size=1)
    for key, value in house.log:
        again.coordinator.load(key, value)
    again.coordinator.loaded(again.now)
    assert again.state() == "PreparingRebalance"
    assert again.join(members[0].member_id).result is None
    assert again.join(members[1].member_id).result.error is ErrorCode.GROUP_MAX_SIZE_REACHED


class SliceOfOne(Pace):
    """A pace whose slices end after each item."""

    def is_over(self, items=1):
        return True


def test_a_member_whose_session_ends_while_the_group_is_loaded_is_removed(house):
    """The slices of a large load may be a session timeout apart."""
    house.stable("a", "b", "c", session_ms=10_000)
    again = House()
    for key, value in house.log:
        again.coordinator.load(key, value)
    slices = again.coordinator.finish_load(SliceOfOne(), again.now)
    next(slices)
    for _ in range(2):
        again.at(again.now_ms + 9_999)
        slices.send(again.now)
    assert len(again.coordinator.describe("g").members) == 2
    with pytest.raises(StopIteration):
        while True:
            slices.send(again.now)


def test_records_only_a_newer_kafka_writes_are_passed_over(house):
    house.coordinator.load(b"\0\3\0\1g", b"\0\0\0\0\0\1")
    house.coordinator.loaded(house.now)
    assert len(house.coordinator) == 0


def test_a_tombstone_for_what_is_not_there_is_nothing(house):
    house.commit(("t", 0, 1))
    house.delete("g")
    house.settle()
    tombstones = [(key, value) for key, value in house.log if value is None]
    assert tombstones
    house.log = tombstones
    assert len(house.restarted().coordinator) == 0


def test_a_damaged_record_is_named(house):
    with pytest.raises(BadOffsetsRecord, match="a group .version 3. of __consumer_offsets is damaged"):
        house.coordinator.load(b"\0\2\0\1g", b"\0\3\0\1")
