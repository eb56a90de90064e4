"""Kafka's primitive types (https://kafka.apache.org/protocol#protocol_types), checked against kio and bad bytes."""

import struct
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import writers

from broker.wire.errors import WireError
from broker.wire.primitives import (
    length,
    read_count,
    read_length,
    read_string,
    read_tags,
    read_uvarint,
    skip_tags,
    string,
    tags,
    uvarint,
)

ENDS_EARLY = (WireError, IndexError, struct.error)  # the codecs make the last two WireErrors


def written(writer, value):
    out = BytesIO()
    writer(out, value)
    return out.getvalue()


@given(st.integers(0, 2**31 - 1))
def test_a_varint_is_written_as_kafka_writes_it_and_read_back(value):
    data = uvarint(value)
    assert data == written(writers.write_unsigned_varint, value)
    assert read_uvarint(b"xx" + data + b"rest", 2) == (value, 2 + len(data))


def test_a_varint_longer_than_five_bytes_is_refused():
    assert read_uvarint(b"\xff\xff\xff\xff\x0f", 0)[0] == 2**32 - 1
    with pytest.raises(WireError, match="longer than five bytes"):
        read_uvarint(b"\xff" * 5 + b"\x01", 0)


@pytest.mark.parametrize("flexible", [False, True])
@given(st.none() | st.text())
def test_strings_come_back_and_are_kafkas(flexible, text):
    data = string(text, flexible)
    writer = writers.write_nullable_compact_string if flexible else writers.write_nullable_legacy_string
    assert data == written(writer, text)
    assert read_string(memoryview(data + b"rest"), 0, flexible) == (text, len(data))


@pytest.mark.parametrize("flexible", [False, True])
def test_a_string_cut_at_any_byte_is_refused(flexible):
    data = string("flights-ü", flexible)
    for size in range(len(data)):
        with pytest.raises(ENDS_EARLY):
            read_string(data[:size], 0, flexible)


@pytest.mark.parametrize("flexible", [False, True])
def test_a_string_that_is_not_utf8_is_read_as_by_kafka(flexible):
    data = string("abc", flexible)[:-2] + b"\xff\xfe"
    assert read_string(memoryview(data + b"rest"), 0, flexible) == ("a\ufffd\ufffd", len(data))


@pytest.mark.parametrize("flexible", [False, True])
def test_one_that_could_not_be_said_again_is_refused(flexible):
    data = string("abc" * 10_000, flexible)[:-20_000] + b"\xff" * 20_000
    with pytest.raises(WireError, match="not UTF-8"):
        read_string(data, 0, flexible)


@pytest.mark.parametrize("flexible", [False, True])
@given(st.integers(-1, 2**31 - 2))
def test_lengths_come_back_and_minus_one_is_null(flexible, value):
    data = length(value, flexible)
    assert read_length(data, 0, flexible) == (value, len(data))


@pytest.mark.parametrize("flexible", [False, True])
def test_a_count_is_held_against_the_bytes_that_are_left(flexible):
    data = length(10, flexible) + bytes(40)
    assert read_count(data, 0, flexible, 4)[0] == 10
    with pytest.raises(WireError, match="10 items"):
        read_count(data, 0, flexible, 5)
    assert read_count(length(-1, flexible), 0, flexible, 4)[0] == 0


@given(st.dictionaries(st.integers(0, 2**31 - 1), st.binary(max_size=200), max_size=5))
def test_tags_come_back_in_rising_order(fields):
    """A tag section is sorted by tag (KIP-482)."""
    data = tags(fields)
    read, end = read_tags(memoryview(data + b"rest"), 0)
    assert {tag: bytes(payload) for tag, payload in read.items()} == fields
    assert end == skip_tags(data + b"rest", 0) == len(data)
    assert list(read) == sorted(fields)


def test_tags_cut_at_any_byte_are_refused():
    data = tags({1: b"abc", 300: b"x" * 200})
    for size in range(len(data)):
        for read in (read_tags, skip_tags):
            with pytest.raises(ENDS_EARLY):
                read(data[:size], 0)


def test_a_billion_tags_end_with_the_bytes():
    with pytest.raises(ENDS_EARLY):
        skip_tags(uvarint(10**9) + bytes(100), 0)
