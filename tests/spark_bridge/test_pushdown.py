"""Filters narrow ranges, and never below what fulfils them: Spark applies them again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_bridge.offset_range import OffsetRange
from spark_bridge.pushdown import COMPARISONS, Condition, narrow

RANGES = (OffsetRange("a", 0, 10, 20), OffsetRange("a", 1, 0, 5), OffsetRange("b", 0, 0, 9))
HOLDS = {
    "=": lambda x, v: x == v,
    "<": lambda x, v: x < v,
    "<=": lambda x, v: x <= v,
    ">": lambda x, v: x > v,
    ">=": lambda x, v: x >= v,
    "in": lambda x, v: x in v,
}


def id_of(partition, offset):
    """Ids rise by three with the offset, the partitions between each other."""
    return 100 + 3 * offset + partition


def first_at_id(topic, id):
    ends = {one.partition: one.end for one in RANGES if one.topic == topic}
    found = {}
    for partition, end in ends.items():
        found[partition] = next((n for n in range(end) if id_of(partition, n) >= id), None)
    return found


def rows(ranges):
    return {(one.topic, one.partition, offset) for one in ranges for offset in range(one.start, one.end)}


def fulfils(row, condition):
    topic, partition, offset = row
    values = {"offset": offset, "id": id_of(partition, offset), "partition": partition}
    return HOLDS[condition.comparison](values[condition.column], condition.value)


def test_without_filters_nothing_changes():
    assert narrow(RANGES, []) == RANGES


comparisons = st.sampled_from(sorted(COMPARISONS))
columns = st.sampled_from(["offset", "id", "partition"])


@settings(deadline=None)
@given(st.lists(st.tuples(columns, comparisons, st.integers(-5, 170)), max_size=3))
def test_no_row_that_fulfils_all_filters_is_left_out(asked):
    """The one promise a pruned read must keep."""
    conditions = [Condition(*each) for each in asked]
    wanted = {row for row in rows(RANGES) if all(fulfils(row, condition) for condition in conditions)}
    left = narrow(RANGES, conditions, first_at_id)
    assert wanted <= rows(left) <= rows(RANGES)
    assert all(one.offsets for one in left)


@pytest.mark.parametrize("comparison", sorted(COMPARISONS))
@pytest.mark.parametrize("column", ["offset", "id"])
@pytest.mark.parametrize("value", [0, 3, 12, 19, 109, 110, 160])
def test_offsets_and_ids_are_cut_exactly(column, comparison, value):
    """Ids rise strictly with the offset, so a bound on one is a bound on the other (DESIGN section 4)."""
    left = narrow(RANGES, [Condition(column, comparison, value)], first_at_id)
    assert rows(left) == {row for row in rows(RANGES) if fulfils(row, Condition(column, comparison, value))}


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        (Condition("topic", "=", "b"), RANGES[2:]),
        (Condition("TOPIC", "in", ["b", "c"]), RANGES[2:]),
        (Condition("partition", "in", [1]), RANGES[1:2]),
        (Condition("offset", "in", [6, 11]), (OffsetRange("a", 0, 10, 12), OffsetRange("b", 0, 6, 9))),
        (Condition("offset", "=", None), RANGES),
        (Condition("value", "=", b"x"), RANGES),
        (Condition("partition", ">", 0), RANGES),
        (Condition("id", "<", 1 << 70), RANGES),
    ],
)
def test_what_else_can_be_used_and_what_is_left_to_spark(condition, left):
    assert narrow(RANGES, [condition], first_at_id) == left


def test_ids_are_no_bound_where_the_broker_keeps_none():
    assert narrow(RANGES, [Condition("id", "=", 5)]) == RANGES
