"""A reset is planned for any group, goes to offsets that the logs have, and is done to groups without members."""

import pytest

from broker.client.group_protocol import encode_assignment
from broker.client.offset_spec import AtOffset, AtTime, Earliest, Last, Latest
from broker.record.records import BatchRecord, encode_batch
from flakelog.operations import groups
from flakelog.operations.errors import NotPossible
from flakelog.operations.group_reset import carry_out, plan_offsets, plan_reset
from flakelog.operations.topics import delete_records
from tests.broker.engine_client import WALL_MS
from tests.broker.handlers.consumer_group import Member
from tests.flakelog.console.world import World

LOG = ("orders", 0)  # with offsets 2 to 5
OTHER = ("orders", 1)  # without messages
LATE_MS = WALL_MS + 1_000_000


@pytest.fixture
def world():
    """A group `billing` that has committed 4 in one partition of two."""
    world = World()
    world.broker.create("orders", 2)
    records = [BatchRecord(n, 0, None, b"x") for n in range(5)]
    world.client.produce(*LOG, encode_batch(records, base_timestamp_ms=WALL_MS))
    delete_records(world.client, {LOG: 2})
    groups.commit(world.client, "billing", {LOG: 4})
    return world


@pytest.mark.parametrize(
    "spec, offset",
    [(Earliest(), 2), (Latest(), 5), (AtOffset(2), 2), (AtOffset(5), 5), (AtTime(WALL_MS), 2), (Last(1), 4)],
)
def test_a_plan_has_the_offsets_before_and_after_and_changes_nothing(world, spec, offset):
    reset = plan_reset(world.client, "billing", spec)
    assert (reset.before, reset.after, reset.at_end) == ({LOG: 4}, {LOG: offset}, [])
    assert groups.committed(world.client, "billing") == {LOG: 4}
    carry_out(world.client, reset)
    assert groups.committed(world.client, "billing") == {LOG: offset}


@pytest.mark.parametrize("offset", [0, 1, 6, 99])
def test_an_offset_that_a_log_does_not_have_is_refused(world, offset):
    with pytest.raises(NotPossible, match=f"orders-0 has offsets 2 to 5, not {offset}"):
        plan_reset(world.client, "billing", AtOffset(offset))
    with pytest.raises(NotPossible, match=f"orders-0 has offsets 2 to 5, not {offset}"):
        plan_offsets(world.client, "billing", {OTHER: 0, LOG: offset})


@pytest.mark.parametrize("offset", [2, 5])
def test_a_plan_may_name_an_offset_for_each_partition(world, offset):
    reset = plan_offsets(world.client, "billing", {LOG: offset, OTHER: 0})
    assert (reset.before, reset.at_end) == ({LOG: 4}, [])
    carry_out(world.client, reset)
    assert groups.committed(world.client, "billing") == {LOG: offset, OTHER: 0}


def test_a_time_after_all_messages_is_the_end_and_the_plan_says_so(world):
    reset = plan_reset(world.client, "billing", AtTime(LATE_MS))
    assert (reset.after, reset.at_end) == ({LOG: 5}, [LOG])


def test_a_named_topic_is_reset_in_all_its_partitions(world):
    reset = plan_reset(world.client, "billing", Latest(), ["orders"])
    assert (reset.before, reset.after) == ({LOG: 4}, {LOG: 5, OTHER: 0})
    assert plan_reset(world.client, "new", Latest(), ["orders"], [1]).after == {OTHER: 0}


@pytest.mark.parametrize(
    "group, topics, numbers, reason",
    [
        ("new", [], [], "group new has committed no offsets; name a topic it is to begin with"),
        ("billing", [], [1], "group billing has committed no offsets in partition 1; name a topic"),
        ("billing", ["orders"], [7, 3], "orders has no partition 3, 7: orders has 2 partitions, from 0 on"),
    ],
)
def test_a_reset_of_no_partition_is_refused(world, group, topics, numbers, reason):
    with pytest.raises(NotPossible, match=reason):
        plan_reset(world.client, group, Earliest(), topics, numbers)


def test_a_group_with_members_is_planned_and_not_moved(world):
    member = Member(world.broker, group="billing")
    member.join()
    world.broker.at(world.broker.now_ms + 3_000)  # group.initial.rebalance.delay.ms
    member.joined()
    member.sync([(member, encode_assignment([LOG]))])
    reset = plan_reset(world.client, "billing", Earliest())
    assert reset.after == {LOG: 2} and len(reset.group.members) == 1
    with pytest.raises(NotPossible, match="group billing is Stable with 1 member; stop them first"):
        carry_out(world.client, reset)
    assert groups.committed(world.client, "billing") == {LOG: 4}


def test_a_member_that_joined_after_the_plan_stops_the_reset(world):
    reset = plan_reset(world.client, "billing", Earliest())
    member = Member(world.broker, group="billing")
    member.join()
    world.broker.at(world.broker.now_ms + 3_000)
    member.joined()
    with pytest.raises(NotPossible, match="stop them first"):
        carry_out(world.client, reset)
