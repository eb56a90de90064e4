"""`flakelog consume --group` ends when the group has read what was there, and not before it could read."""

from broker.client.consumer_figures import ConsumerFigures, FetchFigures, PartitionFigures
from flakelog.commands.consume import _nothing_came
from flakelog.commands.group_end import IDLE_MS, GroupEnd, missing

A, B = ("orders", 0), ("orders", 1)
NEW = PartitionFigures()


def at(position, end=0):
    """Return a partition whose last fetch saw an `end` below the log's, as behind an open transaction."""
    return PartitionFigures(position=position, end=end)


def test_the_wait_for_partitions_is_no_idle_time():
    """A new group waits group.initial.rebalance.delay.ms for more members: three seconds by default."""
    end = GroupEnd({A: 10})
    assert not any(end.is_reached({}, now_ms) for now_ms in range(0, 60_000, 250))
    assert not end.is_reached({A: NEW}, 60_000)
    assert end.missing_ms(60_000) == 60_000


def test_idle_time_begins_when_each_partition_was_fetched_once():
    end = GroupEnd({A: 10, B: 10})
    assert not end.is_reached({A: at(8), B: NEW}, 0)
    assert not end.is_reached({A: at(8), B: at(0, end=None)}, 5_000)
    assert missing({A: at(8), B: at(0, end=None)}) == [B]
    assert not end.is_reached({A: at(8), B: at(0)}, 9_000)
    assert end.missing_ms(9_000) == 0
    assert not end.is_reached({A: at(8), B: at(0)}, 9_000 + IDLE_MS - 1)
    assert end.is_reached({A: at(8), B: at(0)}, 9_000 + IDLE_MS)


def test_messages_begin_the_idle_time_again():
    end = GroupEnd({A: 10})
    assert not end.is_reached({A: at(8)}, 0)
    end.came(1_900)
    assert not end.is_reached({A: at(9)}, 3_000)
    assert end.is_reached({A: at(9)}, 1_900 + IDLE_MS)


def test_a_rebalance_begins_the_idle_time_again():
    end = GroupEnd({A: 10, B: 10})
    assert not end.is_reached({A: at(8)}, 0)
    assert not end.is_reached({}, 1_000)
    assert not end.is_reached({A: at(8), B: NEW}, 2_500)
    assert not end.is_reached({A: at(8), B: at(3)}, 4_000)
    assert end.is_reached({A: at(8), B: at(3)}, 4_000 + IDLE_MS)


def test_a_group_at_the_ends_does_not_wait():
    end = GroupEnd({A: 10, B: None})
    assert end.is_reached({A: at(10, end=None), B: at(0, end=None)}, 0)


def test_a_partition_with_more_to_read_is_not_idle():
    """A busy server may take longer than the idle time for an answer."""
    end = GroupEnd({A: 10})
    assert not end.is_reached({A: at(8, end=10)}, 0)
    assert not end.is_reached({A: at(8, end=10)}, 20_000)
    assert end.missing_ms(20_000) == 20_000
    end.came(20_000)
    assert end.missing_ms(20_000) == 0


def test_a_member_without_partitions_names_other_members_as_one_of_two_reasons():
    """A coordinator whose log takes no writes, as while ids have ended, lets no member in."""
    assert _nothing_came("readers", ConsumerFigures(9.0, FetchFigures())) == (
        "group readers gave no partition: its other members have them, or its coordinator lets no member in. "
        "`flakelog group describe readers` lists its members"
    )
