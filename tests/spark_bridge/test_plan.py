"""Ranges to tasks, with the Kafka connector's minPartitions and maxRecordsPerPartition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.selection.plan import GROUP_OFFSETS_MAX, TASKS_ENOUGH, TASKS_MAX, groups, plan


def test_without_options_each_range_is_a_task():
    ranges = [OffsetRange("t", 1, 0, 5), OffsetRange("t", 0, 3, 9)]
    assert plan(ranges) == (OffsetRange("t", 0, 3, 9), OffsetRange("t", 1, 0, 5))


def test_an_empty_range_is_no_task():
    assert plan([OffsetRange("t", 0, 7, 7)]) == ()


def test_min_partitions_are_shared_out_by_size():
    """Tasks are in proportion to the number of offsets (connector documentation)."""
    tasks = plan([OffsetRange("t", 0, 0, 900), OffsetRange("t", 1, 0, 100)], min_partitions=10)
    assert [task.partition for task in tasks] == [0] * 9 + [1]
    assert {task.offsets for task in tasks} == {100}


def test_no_task_has_more_offsets_than_the_maximum():
    tasks = plan([OffsetRange("t", 0, 10, 35)], max_records_per_partition=10)
    assert [(task.start, task.end) for task in tasks] == [(10, 18), (18, 26), (26, 35)]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1000)), max_size=6), st.integers(0, 40), st.integers(0, 300)
)
def test_tasks_cover_every_offset_once_and_none_is_empty(spans, least, most):
    ranges = [OffsetRange("t", p, start, start + size) for p, (start, size) in enumerate(spans)]
    tasks = plan(ranges, min_partitions=least, max_records_per_partition=most)
    assert all(task.offsets for task in tasks)
    assert not most or all(task.offsets <= most for task in tasks)
    for offset_range in ranges:
        covered = [offset for task in tasks if task.name == offset_range.name for offset in range(task.start, task.end)]
        assert covered == list(range(offset_range.start, offset_range.end))


def test_ranges_that_overlap_are_refused():
    with pytest.raises(ValueError, match=r"t-0\[0, 5\) and t-0\[4, 9\) overlap"):
        plan([OffsetRange("t", 0, 0, 5), OffsetRange("t", 0, 4, 9)])


def test_more_tasks_than_a_driver_can_keep_are_refused():
    with pytest.raises(ValueError, match=f"at most {TASKS_MAX}"):
        plan([OffsetRange("t", 0, 0, TASKS_MAX + 1)], max_records_per_partition=1)


def test_a_negative_option_is_refused():
    with pytest.raises(ValueError, match="minPartitions"):
        plan([], min_partitions=-1)


# --- ranges that a task reads together --------------------------------------------------------------------------------


def test_up_to_enough_tasks_each_range_has_its_own():
    assert list(groups([1] * TASKS_ENOUGH)) == [range(n, n + 1) for n in range(TASKS_ENOUGH)]
    assert list(groups([])) == []


def test_many_small_ranges_are_read_together_by_about_enough_tasks():
    assert list(groups([10] * 1_000)) == [range(n, n + 10) for n in range(0, 1_000, 10)]


def test_a_large_range_is_read_alone():
    offsets = [10] * 500 + [GROUP_OFFSETS_MAX] + [10] * 499
    assert range(500, 501) in list(groups(offsets))


@given(st.lists(st.integers(0, 2 * GROUP_OFFSETS_MAX), max_size=1_000))
def test_groups_have_every_range_once_in_order_and_few_offsets(offsets):
    grouped = list(groups(offsets))
    assert [index for group in grouped for index in group] == list(range(len(offsets)))
    assert all(len(group) == 1 or sum(offsets[index] for index in group) <= GROUP_OFFSETS_MAX for group in grouped)
    assert len(grouped) >= min(len(offsets), TASKS_ENOUGH)
