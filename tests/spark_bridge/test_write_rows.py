"""The columns of a write, as the connector checks them, and the messages of rows."""

import pyarrow as pa
import pytest

from spark_bridge.source.write_rows import ANY_PARTITION, WriteError, choose_columns, messages

HEADERS = "array<struct<key:string,value:binary>>"
HEADER = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def written(fields, columns, topic=None):
    return list(messages(pa.RecordBatch.from_pydict(columns), choose_columns(fields, topic)))


def test_a_value_is_enough_if_the_option_names_the_topic():
    assert written([("value", "string")], {"value": ["a", None, "ä"]}, "t") == [
        ("t", b"a", None, ANY_PARTITION, None),
        ("t", None, None, ANY_PARTITION, None),
        ("t", "ä".encode(), None, ANY_PARTITION, None),
    ]


def test_all_columns_of_a_message():
    fields = [("key", "binary"), ("value", "binary"), ("headers", HEADERS), ("topic", "string"), ("partition", "int")]
    columns = {
        "key": pa.array([b"k", None]),
        "value": pa.array([b"v", b""], pa.large_binary()),
        "headers": pa.array([[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None], HEADER),
        "topic": ["t", "u"],
        "partition": pa.array([3, None], pa.int32()),
    }
    assert written(fields, columns) == [
        ("t", b"v", b"k", 3, [("h", b"1"), ("h", None)]),
        ("u", b"", None, ANY_PARTITION, None),
    ]


def test_the_option_topic_overrides_the_column_and_other_columns_are_ignored():
    fields = [("value", "string"), ("topic", "int"), ("offset", "bigint")]
    columns = {"value": ["a"], "topic": [7], "offset": [5]}
    assert written(fields, columns, "t") == [("t", b"a", None, ANY_PARTITION, None)]


@pytest.mark.parametrize(
    ("fields", "topic", "says"),
    [
        ([("key", "string")], "t", "required attribute 'value' not found; the rows have key"),
        ([("value", "string")], None, "topic option required when no 'topic' attribute is present"),
        ([("value", "int")], "t", "value attribute unsupported type int; value must be a string or binary"),
        ([("value", "string"), ("key", "date")], "t", "key attribute unsupported type date"),
        ([("value", "string"), ("topic", "binary")], None, "topic attribute unsupported type binary"),
        ([("value", "string"), ("partition", "bigint")], "t", "partition attribute unsupported type bigint"),
        ([("value", "string"), ("headers", "map<string,binary>")], "t", "headers attribute unsupported type map"),
    ],
)
def test_columns_that_cannot_be_written_are_named(fields, topic, says):
    with pytest.raises(WriteError, match=says):
        choose_columns(fields, topic)


@pytest.mark.parametrize(
    ("fields", "columns", "says"),
    [
        ([("topic", "string")], {"topic": ["t", None]}, "null topic present in the data; set the option `topic`"),
        (
            [("partition", "int"), ("topic", "string")],
            {"topic": ["t", "t"], "partition": [0, -1]},
            "partition -1 present",
        ),
        (
            [("headers", HEADERS), ("topic", "string")],
            {"topic": ["t", "t"], "headers": pa.array([[{"key": None, "value": b""}], None], HEADER)},
            "a header without a key is present",
        ),
    ],
)
def test_rows_that_cannot_be_written_are_refused(fields, columns, says):
    with pytest.raises(WriteError, match=says):
        written([("value", "string"), *fields], {"value": ["a", "b"]} | columns)
