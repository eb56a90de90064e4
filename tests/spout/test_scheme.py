"""Conversion of records to tuples, and the stable hash behind fields grouping."""

import pytest

from spout.grouping import stable_hash
from spout.scheme import (
    JsonScheme,
    KeyValueScheme,
    MetadataScheme,
    RawScheme,
    SchemeError,
    StringScheme,
    TopicScheme,
    decode_json,
    decode_text,
    tuples_of,
)
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
    "scheme, value, reason",
    [
        (StringScheme(), b"\xff", "the value is not UTF-8: byte 0xff at position 0"),
        (JsonScheme(), b"{", "the value is not JSON: Expecting property name"),
        (JsonScheme(), b"", "the value is not JSON: Expecting value"),
        (JsonScheme(), b"\xff", "the value is not UTF-8"),
        (JsonScheme(), '{"a": 1}'.encode("utf-16"), "the value is not UTF-8"),
        (JsonScheme(), b"[" * 100_000, "the value is nested too deep"),
        (JsonScheme(), b'{"a":' * 100_000, "the value is nested too deep"),
        (JsonScheme(), b"[NaN]", "the value is not JSON: NaN is no number in JSON"),
        (JsonScheme(), b"-Infinity", "the value is not JSON: -Infinity is no number in JSON"),
        (JsonScheme(), b"[1e999]", "the value is not readable: 1e999 is too large for a float"),
        (JsonScheme(), b"1" * 5_000, "the value is not readable: it has an integer of more than 4300 digits"),
        (JsonScheme("a"), b"[1]", "the value must be a JSON object with a; the message has an array"),
        (JsonScheme("a", "b"), b"null", "the value must be a JSON object with a, b; the message has null"),
        (JsonScheme("a"), b"1.5", "the message has a number"),
        (JsonScheme("a"), None, "the message has no value"),
        (KeyValueScheme(value=int), b"x", "the value cannot be decoded: ValueError: invalid literal for int"),
    ],
)
def test_what_cannot_be_read_says_why(scheme, value, reason):
    with pytest.raises(SchemeError, match=reason):
        list(scheme.tuples(record(0, value), 0))


@pytest.mark.parametrize("scheme", [StringScheme(), JsonScheme(), KeyValueScheme(key=decode_text)])
def test_a_key_that_cannot_be_read_is_told_from_a_value(scheme):
    with pytest.raises(SchemeError, match="the key is not UTF-8: byte 0xfe at position 1"):
        list(scheme.tuples(record(0, b"1", key=b"a\xfe"), 0))


def test_json_keeps_large_integers_exact_takes_the_last_of_two_values_and_skips_a_byte_order_mark():
    large = 2**80 + 1
    assert decode_json(b"%d" % large) == large
    assert decode_json(b'{"a": 1, "a": 2}') == {"a": 2}
    assert decode_json(b"\xef\xbb\xbf[1]") == [1]


def test_key_and_value_have_a_function_each():
    flight = record(7, b'{"delay": 3}', key=b"42")
    assert tuples(KeyValueScheme(key=int, value=decode_json), flight) == [(1007, 42, {"delay": 3})]
    assert tuples(KeyValueScheme(), flight) == [(1007, b"42", b'{"delay": 3}')]
    assert tuples(KeyValueScheme(key=int, value=decode_json), record(0, None)) == [(1000, None, None)]


def test_a_topic_precedes_the_tuple_also_inside_another_scheme():
    scheme = MetadataScheme(TopicScheme(JsonScheme("carrier")))
    assert scheme.fields == ("topic", "id", "carrier", "partition", "offset", "timestamp_ms")
    assert list(tuples_of(scheme, "flights", FLIGHT, 3)) == [("flights", 1007, "UA", 3, 7, 70)]
    assert list(tuples_of(JsonScheme("carrier"), "flights", FLIGHT, 3)) == [(1007, "UA")]


def test_a_topic_scheme_asked_without_a_topic_says_what_to_call():
    with pytest.raises(TypeError, match="call topic_tuples"):
        TopicScheme(RawScheme()).tuples(FLIGHT, 3)


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda: JsonScheme("id"), "the field 'id' is the message's own id"),
        (lambda: JsonScheme("a", "a"), "'a' is given twice"),
        (lambda: JsonScheme(["a"]), r"names of members of the JSON object, got \['a'\]"),
        (lambda: KeyValueScheme(key="text"), "key='text' must be a function from bytes"),
    ],
)
def test_a_scheme_that_cannot_work_is_refused_when_it_is_made(make, reason):
    with pytest.raises((TypeError, ValueError), match=reason):
        make()


def test_equal_values_share_a_hash_and_text_is_not_bytes():
    assert stable_hash([1]) == stable_hash([1.0]) == stable_hash([True])
    assert len({stable_hash([value]) for value in ("a", b"a", None, 1, ("a",), "")}) == 6
    assert stable_hash(["ab", "c"]) != stable_hash(["a", "bc"])


def test_every_process_gets_the_same_hash():
    """The stable hash is the same in every process, unlike Python's hash of text.

    With a varying hash, a carrier would meet another task's state after a restart.
    """
    assert stable_hash(["UA", 7, None, 1.5, ("x", b"y")]) == 1548581196
