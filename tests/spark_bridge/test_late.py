"""Late binding: tasks that ask for earliest and latest when they run, as in the Kafka connector."""

from spark_bridge.reading import cluster as asking
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.selection.late import LateRange
from spark_bridge.selection.options import parse
from spark_bridge.selection.pinned import find_new, pin
from tests.spark_bridge.memory_cluster import Cluster

READ = {"kafka.bootstrap.servers": "bootstrap:9092", "subscribe": "t", "flakelog.binding": "late"}


def tasks(end=90, **given):
    return pin(parse(READ | given), asking.Cluster(Cluster(end)), None, "0.1.0").tasks


def test_a_task_asks_for_the_sides_that_move():
    assert tasks() == (
        LateRange(OffsetRange("t", 0, 0, 90), from_earliest=True, to_latest=True),
        LateRange(OffsetRange("t", 1, 0, 90), from_earliest=True, to_latest=True),
    )
    assert [task.resolve({0: 7, 1: 8}, {0: 100, 1: 200}) for task in tasks()] == [
        OffsetRange("t", 0, 7, 100),
        OffsetRange("t", 1, 8, 200),
    ]


def test_only_the_last_of_a_partitions_tasks_grows():
    first, last, *_ = tasks(minPartitions="4")
    assert (first.from_earliest, first.to_latest, last.from_earliest, last.to_latest) == (True, False, False, True)
    assert last.resolve({0: 7}, {0: 100}) == OffsetRange("t", 0, 45, 100)


def test_given_offsets_stay_and_marks_move():
    first, second = tasks(startingOffsets='{"t": {"0": 5, "1": -2}}', endingOffsets='{"t": {"0": -1, "1": 30}}')
    assert (first.from_earliest, first.to_latest) == (False, True)
    assert (second.from_earliest, second.to_latest) == (True, False)


def test_times_are_resolved_once():
    assert not any(task.moves for task in tasks(startingTimestamp="5", endingTimestamp="20"))


def test_a_partition_that_is_empty_has_a_task_that_may_grow():
    assert [task.resolve({0: 0, 1: 0}, {0: 3, 1: 0}).offsets for task in tasks(end=0)] == [3, 0]


def test_a_range_never_ends_before_it_starts():
    """Retention may delete all of a task's records between the plan and the task."""
    assert LateRange(OffsetRange("t", 0, 0, 9), from_earliest=True).resolve({0: 50}, {0: 60}).offsets == 0


def found_later(cluster, **given):
    """Return the ranges of a task that runs after two topics and a partition were added."""
    new = pin(parse({k: v for k, v in (READ | given).items() if v}), asking.Cluster(cluster), None, "0.1.0").new
    cluster.leaders |= {2: 0}
    cluster.topics = ("t", "u", "other")
    return None if new is None else [str(within) for within, _ in find_new(new, asking.Cluster(cluster), None)]


def test_one_task_looks_for_partitions_that_are_added_later():
    assert found_later(Cluster(90)) == ["t-2[0, 90)"]
    assert found_later(Cluster(90), endingTimestamp="20") == ["t-2[0, 20)"]
    assert found_later(Cluster(0)) == []


def test_topics_of_a_pattern_that_are_added_later_are_found_with_all_their_partitions():
    later_ranges = found_later(Cluster(90), subscribe=None, subscribePattern="^.$")
    assert later_ranges == ["t-2[0, 90)", "u-0[0, 90)", "u-1[0, 90)", "u-2[0, 90)"]


def test_a_read_that_names_its_partitions_looks_for_no_others():
    assert found_later(Cluster(90), startingOffsets='{"t": {"0": 5, "1": 5}}') is None
    assert found_later(Cluster(90), subscribe=None, assign='{"t": [0]}') is None
    assert found_later(Cluster(90), **{"flakelog.binding": "pinned"}) is None


def test_a_pinned_read_asks_for_nothing():
    assert not any(task.moves for task in tasks(**{"flakelog.binding": "pinned"}))
