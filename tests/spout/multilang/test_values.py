"""Values of tuples through Storm: each comes back equal and with its type, and equal values are grouped together."""

import json
from collections import OrderedDict
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spout.grouping import stable_hash
from spout.multilang.values import NoStormValue, grouping_json_of, json_of, value_of, values_of

GOLDEN = [
    (None, "null"),
    (True, "true"),
    (2**70, str(2**70)),
    ("text", '"text"'),
    ("~text", '"~~text"'),
    ("\ud800", '"~u7aCA"'),
    (b"text", '"~btext"'),
    (b"\xff", '"~x/w=="'),
    (1.0, '"~f1.0"'),
    (float("inf"), '"~finf"'),
    ([1, "a"], r'"~j[1,\"a\"]"'),
    ((1, b"a"), r'"~j{\"~\":[\"tuple\",[1,{\"~\":[\"bytes\",\"YQ==\"]}]]}"'),
]

KEYS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
PLAIN = (
    KEYS
    | st.dates()
    | st.times().map(lambda time: time.replace(fold=0))
    | st.datetimes().map(lambda time: time.replace(fold=0))
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids()
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=6,
)
GROUPED = st.recursive(KEYS, lambda inner: st.tuples(inner, inner), max_leaves=4)


def there_and_back(value):
    return value_of(json.loads(json_of(value)))


@pytest.mark.parametrize("value, text", GOLDEN)
def test_the_text_of_a_value_stays_as_it_is(value, text):
    assert json_of(value) == text
    assert there_and_back(value) == value


@given(VALUES)
def test_each_value_comes_back_equal_and_with_its_type(value):
    back = there_and_back(value)
    assert back == value and repr(back) == repr(value)


@given(VALUES)
def test_storm_sees_only_text_integers_booleans_and_null(value):
    assert isinstance(json.loads(json_of(value)), (str, int, bool, type(None)))


@pytest.mark.parametrize(
    "value",
    [
        date(2026, 1, 31),
        time(1, 2, 3, 4),
        datetime(2026, 1, 31, 1, 2, 3, 4, timezone(timedelta(hours=2))),
        timedelta(-1, 2, 3),
        Decimal("-1.50"),
        Decimal("NaN"),
        UUID(int=7),
        {1, 2},
        frozenset({b"a"}),
        {"~": 1},
        {1: "a", (2, 3): [{"~": ["tuple", []]}]},
        float("nan"),
        -0.0,
    ],
)
def test_values_that_json_does_not_have_come_back(value):
    assert repr(there_and_back(value)) == repr(value)


def test_a_row_is_read_in_one_go():
    row = [json.loads(json_of(value)) for value in (7, None, b"key", "value")]
    assert values_of(row) == [7, None, b"key", "value"]


@given(GROUPED, GROUPED)
def test_equal_values_are_grouped_together_and_different_ones_are_told_apart(first, second):
    assert (grouping_json_of(first) == grouping_json_of(second)) == (first == second)


@pytest.mark.parametrize("equal", [(1, 1.0, True), (0, -0.0, False), ((1, 2.0), (1.0, 2)), (2**60, float(2**60))])
def test_numbers_of_all_types_are_grouped_by_their_value_as_embedded(equal):
    assert len({grouping_json_of(value) for value in equal}) == 1
    assert len({stable_hash([value]) for value in equal}) == 1


@pytest.mark.parametrize("value", [[1], {"a": 1}, Decimal(1), ([1],)])
def test_a_value_that_the_embedded_engine_does_not_group_by_is_refused_here_too(value):
    with pytest.raises(NoStormValue, match="cannot group by .*: a field to group by is text, bytes, a number"):
        grouping_json_of(value)
    with pytest.raises(TypeError, match="cannot group by"):
        stable_hash([value])


class Point(NamedTuple):
    x: int


class Colour(IntEnum):
    RED = 1


@pytest.mark.parametrize("value", [object(), Point(1), Colour.RED, OrderedDict(), [Point(1)], {"a": object()}, 1j])
def test_a_value_of_another_class_is_refused_because_it_would_come_back_without_it(value):
    with pytest.raises(NoStormValue, match="of type .*: Storm carries None, bool, int"):
        json_of(value)


def test_a_value_that_is_too_deep_or_too_long_for_json_is_refused():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deep"):
        json_of(deep)
    with pytest.raises(ValueError, match="digits"):
        json_of(10**5000)


def test_text_that_nobody_wrote_as_a_value_is_refused():
    with pytest.raises(ValueError, match="is no value that Flakelog wrote"):
        value_of("~?")
