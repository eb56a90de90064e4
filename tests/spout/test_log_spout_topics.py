"""A spout over several topics, or over all topics whose names match a pattern."""

import json
import re

import pytest

from flakelog.testing import TopologyDriver
from flakelog.testing.memory import MemoryWorld
from partition_manager.assignment import partitions_of
from spout.config import SpoutConfig
from spout.log_spout import LogSpout
from spout.topology import Topology
from tests.spout.worlds import Collect

NAMES = ["orders-a", "orders-b", "returns"]


def world_of(*names, partitions=1):
    world = MemoryWorld()
    for name in names:
        log = world.topic(name, partitions=partitions)
        for partition in range(partitions):
            log.append(f"{name} {partition}", partition)
    return world


def driver_of(world, topics, *, bolt=None, parallelism=1, run_id="test", **config):
    topology = Topology("t")
    config.setdefault("spout_retry_jitter", 0.0)
    topology.spout("log", LogSpout(topics, config=SpoutConfig(**config)), parallelism=parallelism)
    topology.bolt("collect", bolt or Collect()).global_("log")
    return TopologyDriver(topology, world, run_id=run_id).run()


def values_of(driver):
    return sorted(values[-1].decode() for values in driver.tasks("collect")[0].seen)


def nodes_of(world):
    return sorted(path for path in world.ensemble.nodes if "partition_" in path)


def reports_of(driver):
    return [report[1] for report in driver.reports]


def test_all_topics_of_a_list_are_read_and_no_other():
    driver = driver_of(world_of(*NAMES, partitions=2), ["orders-a", "returns"])
    assert values_of(driver) == ["orders-a 0", "orders-a 1", "returns 0", "returns 1"]


def test_progress_has_0_9_3s_path_for_one_topic_and_a_node_of_its_topic_for_several():
    world = world_of(*NAMES)
    driver_of(world, "orders-a").stop()
    assert nodes_of(world) == ["/flakelog-spouts/t.log/partition_0"]
    world = world_of(*NAMES)
    driver_of(world, ["orders-a", "returns"]).stop()
    root = "/flakelog-spouts/t.log"
    assert nodes_of(world) == [f"{root}/orders-a/partition_0", f"{root}/returns/partition_0"]
    assert json.loads(world.ensemble.nodes[f"{root}/returns/partition_0"].data)["offset"] == 1
    assert values_of(driver_of(world, ["returns", "orders-a"], run_id="second")) == [], "their order changes nothing"


def test_a_pattern_matches_whole_names_and_no_internal_nor_dead_letter_topic():
    world = world_of(*NAMES, "old-orders-a", "__orders", "orders-a.dead-letters")
    assert values_of(driver_of(world, re.compile("orders-.*"))) == ["orders-a 0", "orders-b 0"]
    assert values_of(driver_of(world, re.compile("__.*"))) == []


def test_a_topic_that_begins_to_match_joins_at_the_next_refresh_and_one_that_is_gone_leaves():
    world = world_of(*NAMES)
    driver = driver_of(world, re.compile("orders-.*"))
    world.topic("orders-c").append("late")
    assert "late" in values_of(driver.advance(60_000))
    assert [status.topic for status in driver.tasks("log")[0].status()] == ["orders-a", "orders-b", "orders-c"]
    del world.topics["orders-a"]
    driver.advance(60_000)
    assert [status.topic for status in driver.tasks("log")[0].status()] == ["orders-b", "orders-c"]
    assert any("/orders-.*/ matches: orders-b, orders-c" in text for text in reports_of(driver))


def test_a_pattern_without_a_match_says_so_and_waits():
    driver = driver_of(world_of(*NAMES), re.compile("flights"))
    assert any("/flights/ matches: no topic yet" in text for text in reports_of(driver))


def test_a_pattern_that_matches_too_many_topics_reads_the_first_by_name_and_says_so():
    driver = driver_of(world_of(*NAMES), re.compile(".*"), spout_max_topics=2)
    assert values_of(driver) == ["orders-a 0", "orders-b 0"]
    assert any("/.*/ matches 3 topics: only the first 2" in text for text in reports_of(driver))


def test_a_topic_of_the_list_that_does_not_exist_holds_up_no_other():
    driver = driver_of(world_of(*NAMES), ["flights", "returns"])
    assert values_of(driver) == ["returns 0"]
    assert any("flights ListPartitions failed: there is no topic 'flights'" in text for text in reports_of(driver))


def test_each_message_given_up_goes_to_the_dead_letters_of_its_own_topic():
    world = world_of(*NAMES)
    driver_of(world, ["orders-a", "returns"], bolt=Collect(lambda tup, seen: True), spout_max_attempts=1).advance(100)
    assert [letter.topic for letter in world.sinks["orders-a.dead-letters"].letters] == ["orders-a"]
    assert [letter.topic for letter in world.sinks["returns.dead-letters"].letters] == ["returns"]


def test_tasks_divide_all_partitions_of_all_topics():
    world = world_of(*NAMES, partitions=5)
    driver = driver_of(world, NAMES, parallelism=4)
    shares = [[(s.topic, s.partition) for s in spout.status()] for spout in driver.tasks("log")]
    partitions = sorted(partition for share in shares for partition in share)
    assert partitions == [(name, n) for name in NAMES for n in range(5)]
    assert {len(share) for share in shares} <= {3, 4, 5}
    assert len(values_of(driver)) == 15


def test_a_partitions_task_depends_on_its_own_topic_only():
    assert [partitions_of(task, 3, range(5)) for task in range(3)] == [(0, 3), (1, 4), (2,)]
    for topic in NAMES:
        shares = [partitions_of(task, 3, range(5), topic) for task in range(3)]
        assert sorted(number for share in shares for number in share) == [0, 1, 2, 3, 4]
        assert all(set(partitions_of(task, 3, range(9), topic)) >= set(shares[task]) for task in range(3))
    first = [next(task for task in range(3) if partitions_of(task, 3, (0,), f"topic-{n}")) for n in range(50)]
    assert set(first) == {0, 1, 2}, "topics of one partition are spread over the tasks"


@pytest.mark.parametrize(
    "topics, reason",
    [
        ([], "give at least one topic"),
        (["a", "a"], "one topic is named twice"),
        (["a", ""], "topic='': a topic's name"),
        (["a", 5], "topic=5: a topic's name"),
        (re.compile(b"a"), "a pattern of topics is of text"),
        ([str(n) for n in range(1_001)], "1001 topics, flakelog.spout.max.topics allows 1000"),
        (b"flights", "topic=b'flights': give a topic's name, a list of names, or a pattern"),
    ],
)
def test_topics_that_cannot_be_read_are_refused(topics, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        LogSpout(topics)
