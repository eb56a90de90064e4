"""The arguments of a read, made into the options of the Data Source, which are the connector's by their names."""

import json
from datetime import UTC, datetime

import pytest

from spark_bridge.selection.arguments import merge, selection_options
from spark_bridge.selection.option_table import OptionError
from spark_bridge.selection.options import parse

SERVERS = {"kafka.bootstrap.servers": "bootstrap:9092"}


def test_topics_and_a_range_become_options():
    assert selection_options(["a", "b"], ids=(5, None)) == {"subscribe": "a,b", "startingId": "5"}
    start = datetime(2013, 1, 1, tzinfo=UTC)
    assert selection_options(["a"], times=(start, 1356998460000)) == {
        "subscribe": "a", "startingTimestamp": "1356998400000", "endingTimestamp": "1356998460000",
    }  # fmt: skip
    options = selection_options(["a"], offsets={1: (5, None), 0: (None, 9)})
    assert {name: json.loads(value) for name, value in options.items()} == {
        "assign": {"a": [0, 1]},
        "startingOffsets": {"a": {"1": 5, "0": -2}},
        "endingOffsets": {"a": {"1": -1, "0": 9}},
    }


def test_partitions_limit_the_read_of_each_topic():
    options = selection_options(["a", "b"], partitions=[3, 1, 3], times=(7, None))
    assert options == {"assign": '{"a": [1, 3], "b": [1, 3]}', "startingTimestamp": "7"}


@pytest.mark.parametrize("option", [{"subscribePattern": "fl.*"}, {"assign": '{"t": [1]}'}, {"Subscribe": "t"}])
def test_an_option_may_name_the_topics(option):
    """docs/without-spark.md: `options` takes any other option of the Data Source by its name."""
    assert selection_options([], ids=(5, None), options=option) == option | {"startingId": "5"}
    assert parse(SERVERS | selection_options([], options=option)).topics == parse(SERVERS | option).topics


def test_offsets_by_topic_name_the_topics_too():
    assert selection_options([], offsets={"a": {0: (1, 2)}}) == selection_options(["a"], offsets={0: (1, 2)})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"topics": []}, "a read needs topics, or one of the options subscribe, assign, subscribePattern"),
        (
            {"topics": ["t"], "options": {"subscribepattern": "x"}},
            "the topics are given twice: t, and by the option subscribePattern",
        ),
        ({"topics": [], "offsets": {"t": {0: (1, 2)}}, "options": {"assign": "{}"}}, "topics are given twice"),
        (
            {"topics": ["t"], "times": (5, None), "options": {"startingTimestamp": "6"}},
            "the start of the range is given twice: as an argument, which is startingTimestamp, and by the option",
        ),
        (
            {"topics": ["t"], "offsets": {0: (5, None)}, "options": {"endingtimestamp": "6"}},
            "the end of the range is given twice: .*endingOffsets, and by the option endingTimestamp",
        ),
        ({"topics": ["t"], "ids": 5}, r"ids are a pair \(first, end\), half-open"),
        ({"topics": ["t", "u"], "offsets": {0: (1, 2)}}, "offsets are"),
        ({"topics": [], "offsets": {0: (1, 2)}}, "offsets are"),
    ],
)
def test_what_is_missing_or_given_twice_is_refused(arguments, says):
    """An option that an argument replaced in silence would read other data than the caller meant."""
    with pytest.raises(OptionError, match=says):
        selection_options(**arguments)


def test_one_side_may_be_an_argument_and_the_other_an_option():
    options = selection_options(["t"], ids=(5, None), options={"endingTimestamp": "6"})
    assert options == {"subscribe": "t", "startingId": "5", "endingTimestamp": "6"}


def test_options_of_one_name_are_refused_in_whatever_case():
    assert merge({"columns": "key"}, {"minPartitions": "4"}) == {"columns": "key", "minPartitions": "4"}
    for more in ({"Columns": "value"}, {"minPartitions": "4", "minpartitions": "5"}):
        with pytest.raises(OptionError, match="is given twice"):
            merge({"columns": "key"}, more)
