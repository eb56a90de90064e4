"""Conversion of records to tuples, and the stable hash behind fields grouping."""

import pytest

from spout.grouping import stable_hash
from spout.scheme import JsonScheme, MetadataScheme, RawScheme, SchemeError, StringScheme
from tests.partition_manager.world import record

FLIGHT = record(7, b'{"carrier": "UA", "delay": null}', key=b"UA")


def tuples(scheme, given=FLIGHT):
    made = list(scheme.tuples(given, 3))
    assert all(len(values) == len(scheme.fields) for values in made)
    return made


def test_each_scheme_begins_with_the_snowflake_id():
    value = '{"carrier": "UA", "delay": null}'
    assert tuples(RawScheme()) == [(1007, b"UA", value.encode())]
    assert tuples(StringScheme()) == [(1007, "UA", value)]
    assert tuples(JsonScheme()) == [(1007, "UA", {"carrier": "UA", "delay": None})]
    assert tuples(JsonScheme("carrier", "tail")) == [(1007, "UA", None)]
    assert tuples(MetadataScheme(JsonScheme("carrier"))) == [(1007, "UA", 3, 7, 70)]


def test_a_message_without_a_value_is_none():
    assert tuples(StringScheme(), record(0, None)) == [(1000, None, None)]
    assert tuples(JsonScheme(), record(0, None)) == [(1000, None, None)]


@pytest.mark.parametrize(
    "scheme, value, said",
    [
        (StringScheme(), b"\xff", "not UTF-8"),
        (JsonScheme(), b"{", "not JSON"),
        (JsonScheme(), b"\xff", "not JSON"),
        (JsonScheme("a"), b"[1]", "expected a JSON object, got list"),
        (JsonScheme("a"), None, "expected a JSON object, got NoneType"),
    ],
)
def test_what_cannot_be_read_says_why(scheme, value, said):
    with pytest.raises(SchemeError, match=said):
        list(scheme.tuples(record(0, value), 0))


def test_equal_values_share_a_hash_and_text_is_not_bytes():
    assert stable_hash([1]) == stable_hash([1.0]) == stable_hash([True])
    assert len({stable_hash([value]) for value in ("a", b"a", None, 1, ("a",), "")}) == 6
    assert stable_hash(["ab", "c"]) != stable_hash(["a", "bc"])


def test_every_process_gets_the_same_hash():
    """The stable hash is the same in every process, unlike Python's hash of text.

    With a varying hash, a carrier would meet another task's state after a restart.
    """
    assert stable_hash(["UA", 7, None, 1.5, ("x", b"y")]) == 1548581196
