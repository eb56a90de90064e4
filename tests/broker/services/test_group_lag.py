"""The lag of consumer groups, from the offsets that they committed and the logs that they read."""

import pytest

from broker.services.group_lag import group_positions
from tests.broker.any_api import EngineLine, World
from tests.broker.engine_client import EngineBroker

COMMITTED = 3  # what World.commit commits


def group_of(broker, name, *partitions, topic="flights"):
    """Commit an offset of a group in each partition."""
    world = World(EngineLine(broker))
    world.group = name
    world.coordinated()
    for partition in partitions:
        assert not world.commit(topic=topic, partition=partition).topics[0].partitions[0].error_code


@pytest.fixture
def broker():
    broker = EngineBroker()
    broker.create("flights", 2)
    return broker


def test_a_broker_without_groups_has_no_lag(broker):
    assert group_positions(broker.services) == ([], 0)


def test_lag_counts_from_the_committed_offset_to_the_end_that_consumers_see(broker):
    broker.connect().produce("flights", *[b"%d" % n for n in range(10)])
    group_of(broker, "readers", 0, 1)
    first, second = group_positions(broker.services)[0]
    assert first.labels == ("readers", "flights", 0)
    assert (first.committed, first.lag_messages) == (COMMITTED, 7)
    assert first.lag_bytes == 7 * broker.services.logs.get("flights", 0).segments.size // 10
    assert (second.committed, second.lag_messages, second.lag_bytes) == (COMMITTED, 0, 0)


def test_messages_that_were_deleted_count_as_lag_but_have_no_bytes(broker):
    """Kafka's tools count the same lag: the end less the committed offset."""
    broker.connect().produce("flights", *[b"%d" % n for n in range(10)])
    group_of(broker, "readers", 0)
    log = broker.services.logs.get("flights", 0)
    assert log.advance_start(9)
    (position,), _ = group_positions(broker.services)
    assert position.lag_messages == 7 and position.lag_bytes == log.segments.size // 10


def test_a_group_of_a_deleted_topic_has_no_position(broker):
    group_of(broker, "readers", 0)
    broker.delete("flights")
    assert group_positions(broker.services) == ([], 0)


def test_a_partition_that_is_offline_has_no_position(broker):
    group_of(broker, "readers", 0, 1)
    broker.services.logs.get("flights", 0).offline = "its disk failed"
    assert [position.partition for position in group_positions(broker.services)[0]] == [1]


def test_positions_past_the_limit_are_counted(broker):
    limited = EngineBroker(metrics_group_partitions_max=3)
    limited.create("flights", 2)
    for name in ("a", "b", "c"):
        group_of(limited, name, 0, 1)
    positions, left_out = group_positions(limited.services)
    assert [(position.group, position.partition) for position in positions] == [("a", 0), ("a", 1), ("b", 0)]
    assert left_out == 3
