"""The records of a batch are checked as bytes (https://kafka.apache.org/documentation/#record)."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.log.validation.record_check import (
    Budget,
    OverBudget,
    check_fields,
    check_lengths,
    check_prefix,
    end_of_usual_record,
)
from broker.record.batch import CorruptBatch
from broker.record.compression import Codec, TooLarge
from broker.record.records import BatchRecord, encode_record, read_records
from broker.record.varint import varint

HEADERS_MAX = 5
UNLIMITED = Budget(None)


def records_of(*sizes, **fields):
    return b"".join([encode_record(BatchRecord(n, 0, None, bytes(size), **fields)) for n, size in enumerate(sizes)])


def passes(data, count, check=check_lengths):
    try:
        if check is check_fields:
            check_fields(memoryview(data), count, HEADERS_MAX, UNLIMITED)
        else:
            check_lengths(memoryview(data), count, UNLIMITED)
    except CorruptBatch:
        return False
    return True


def walked(data, count):
    """Return True if the lengths fill the data, found out in the plain way."""
    position = 0
    for _ in range(count):
        length = shift = 0
        while True:
            if position >= len(data) or shift > 28:
                return False
            byte = data[position]
            position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if length & 1 or length >> 32:
            return False
        position += length >> 1
    return position == len(data)


# --- lengths -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [
    [100] * 20, [0] * 9_000, [10, 20] * 400, [3] * 50 + [300] * 50 + [20_000] * 3, range(500), [60_000],
])  # fmt: skip
def test_records_that_fill_their_batch_pass_and_another_count_or_another_byte_is_refused(sizes):
    data = records_of(*sizes)
    number = len(sizes)
    assert passes(data, number)
    assert not passes(data, number + 1) and not passes(data, number - 1)
    assert not passes(data + b"\0", number) and not passes(data[:-1], number)


def test_five_records_that_claim_a_thousand_are_refused():
    with pytest.raises(CorruptBatch, match="the header counts 1000 records, and the bytes have 5"):
        check_lengths(records_of(*[2_000] * 5), 1_000, UNLIMITED)


@given(st.lists(st.integers(-70, 400), max_size=80), st.integers(0, 2), st.binary(max_size=3), st.data())
@example([20] * 40 + [-1], 0, b"", None)
def test_a_run_is_judged_as_each_of_its_records_is(lengths, more, tail, data):
    """Runs of one length are compared at once, for speed only."""
    if data is not None and lengths and data.draw(st.booleans()):
        lengths = [lengths[0]] * 40 + lengths
    made = b"".join([varint(length) + b"\x05" * max(length, 0) for length in lengths]) + tail
    count = len(lengths) + more
    assert passes(made, count) == walked(made, count)


def test_a_seeded_flood_of_bytes_is_judged_as_by_the_plain_way():
    chance = random.Random(15)
    for _ in range(3_000):
        unit = chance.randbytes(chance.randrange(1, 12))
        data = bytearray(unit * chance.randrange(1, 60))
        for _ in range(chance.randrange(3)):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        count = chance.randrange(1, 200)
        assert passes(data, count) == walked(data, count), (bytes(data), count)


@pytest.mark.parametrize("length, why", [
    (b"\x80\x80\x80\x80\x80\0", "more than 32 bits"), (b"\x80\x80\x80\x80\x10", "more than 32 bits"),
    (b"\x80\x80", "cut off"), (b"\x01", "negative length"), (b"\xff\xff\xff\xff\x0f", "negative length"),
])  # fmt: skip
def test_a_length_that_is_none_is_refused(length, why):
    for before in (b"", records_of(*[5] * 20)):
        with pytest.raises(CorruptBatch, match=why):
            check_lengths(before + length, 20 + 1, UNLIMITED)


def test_a_length_with_a_byte_too_many_is_read_as_by_kafka():
    """Java's ByteUtils.readVarint takes any encoding of at most five bytes."""
    record = records_of(5)
    assert passes(b"\x80\x80\0".replace(b"\x80", bytes([record[0] | 0x80]), 1) + record[1:], 1)


def test_runs_cost_a_fraction_of_the_plain_walk():
    uniform, mixed = Budget(10_000), Budget(10_000)
    check_lengths(records_of(*[100] * 5_000), 5_000, uniform)
    check_lengths(records_of(*[n * 37 % 200 for n in range(5_000)]), 5_000, mixed)
    assert 10_000 - uniform.units < 500 and 5_000 <= 10_000 - mixed.units < 5_200


@pytest.mark.parametrize("check", [
    lambda data, count: check_lengths(data, count, Budget(1_000)),
    lambda data, count: check_fields(data, count, HEADERS_MAX, Budget(1_000)),
])  # fmt: skip
def test_past_the_budget_the_check_stops(check):
    data = records_of(*[n % 50 for n in range(2_000)])
    with pytest.raises(OverBudget):
        check(data, 2_000)


# --- the beginning of a decompression ---------------------------------------------------------------------------


def test_zeros_are_more_than_the_records_they_claim_to_be():
    with pytest.raises(CorruptBatch, match="zstd records unpack to more bytes than the 1000 records have"):
        check_prefix(bytes(65_536), 1_000, 1 << 20, Codec.ZSTD, UNLIMITED)


def test_a_record_that_goes_past_the_limit_is_too_large():
    with pytest.raises(TooLarge, match="unpack to more than 1048576 bytes"):
        check_prefix(varint(1 << 30) + bytes(65_536), 1, 1 << 20, Codec.ZSTD, UNLIMITED)


def test_a_beginning_of_records_may_go_on():
    data = records_of(*[100] * 500)
    for end in (1_000, 1_001, 1_002, 20_000):
        check_prefix(data[:end], 500, 1 << 20, Codec.GZIP, UNLIMITED)


@pytest.mark.parametrize("size", [20, 60, 61, 200, 9_000])
@pytest.mark.parametrize("apart", [0, 1])
def test_a_beginning_may_end_at_any_byte(size, apart):
    """A buffer of decompressed records can be full between two bytes of a record's length."""
    data = records_of(*(size + apart * (number % 7) for number in range(40)))
    for end in range(len(data) - len(records_of(size)), len(data)):
        check_prefix(data[:end], 40, 1 << 20, Codec.ZSTD, UNLIMITED)
    for end in range(1, 3 * size):
        check_prefix(data[:end], 40, 1 << 20, Codec.ZSTD, UNLIMITED)


# --- fields ------------------------------------------------------------------------------------------------------


def record(*fields, size=None):
    body = b"".join(fields)
    return varint(len(body) if size is None else size) + body


ZERO, NULL = b"\0", b"\x01"
GOOD = (ZERO, ZERO, ZERO, NULL, varint(3) + b"abc", ZERO)


def with_field(number, value, **more):
    return record(*GOOD[:number], value, *GOOD[number + 1 :], **more)


def headers(*pairs):
    return varint(len(pairs)) + b"".join(name + value for name, value in pairs)


@pytest.mark.parametrize("data", [
    record(*GOOD), with_field(0, b"\x7f"), with_field(1, varint(1 << 50)), with_field(1, varint(-(1 << 63))),
    with_field(2, b"\x80\0"), with_field(3, varint(2) + b"kk"), with_field(3, b"\x81\0"), with_field(4, NULL),
    with_field(4, varint(20_000) + bytes(20_000)), with_field(3, varint(100) + bytes(100)),
    with_field(5, headers((varint(1) + b"h", NULL), (ZERO, varint(2) + b"vv"))),
    with_field(5, headers((varint(2) + b"\xff\xfe", NULL))),
])  # fmt: skip
def test_a_record_of_any_valid_form_passes(data):
    assert passes(data, 1, check_fields)
    assert len(read_records(data, 1)) == 1


BAD = {
    "longer than the batch": record(*GOOD, size=50),
    "shorter than its fields": record(*GOOD, size=8),
    "longer than its fields": record(*GOOD, ZERO),
    "no fields": b"\0",
    "a negative length": b"\x01" + record(*GOOD)[1:],
    "a time of eleven bytes": with_field(1, b"\x80" * 10 + b"\0"),
    "a time of more than 64 bits": with_field(1, b"\xff" * 9 + b"\x02"),
    "another offset": with_field(2, varint(1)),
    "a negative offset": with_field(2, varint(-1)),
    "an offset of more than 32 bits": with_field(2, b"\x80\x80\x80\x80\x10"),
    "a key past the end": with_field(3, varint(100) + b"k"),
    "a key over the value": with_field(3, varint(6) + b"k"),
    "a key of length -2": with_field(3, varint(-2)),
    "a value past the end": with_field(4, varint(4) + b"abc"),
    "a value of length -5": with_field(4, varint(-5)),
    "a value of six length bytes": with_field(4, b"\x80\x80\x80\x80\x80\0"),
    "a negative count of headers": with_field(5, varint(-1)),
    "headers that are not there": with_field(5, varint(2)),
    "many headers that are not there": with_field(5, varint(1 << 30)),
    "a header without a name": with_field(5, headers((NULL, NULL))),
    "a header's name past the end": with_field(5, headers((varint(9) + b"h", NULL))),
    "a header's value past the end": with_field(5, headers((ZERO, varint(9) + b"v"))),
    "a header's value of length -3": with_field(5, headers((ZERO, varint(-3)))),
    "more headers than may be": with_field(5, headers(*[(ZERO, NULL)] * (HEADERS_MAX + 1))),
    "cut in its length": b"\x80",
    "nothing": b"",
}


def is_usual(data, position=0):
    """Return True if the bytes from `position` on are one record of the usual form."""
    return end_of_usual_record(memoryview(data), position, 0) == len(data) > position


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_a_record_with_a_wrong_field_is_refused(data):
    assert not passes(data, 1, check_fields)
    assert not is_usual(data)
    good = records_of(3, 3)
    assert not passes(good + data, 3, check_fields), "wherever it stands"


def test_one_record_of_the_usual_form_is_told_by_its_bytes_alone():
    assert is_usual(b"head" + record(*GOOD), 4)
    assert is_usual(with_field(4, varint(8_000) + bytes(8_000)))
    assert not is_usual(records_of(3, 3)), "two records"


def test_a_limit_on_headers_names_its_setting():
    with pytest.raises(CorruptBatch, match="6 headers, flakelog.max.record.headers is 5"):
        check_fields(BAD["more headers than may be"], 1, HEADERS_MAX, UNLIMITED)


def test_bytes_after_the_last_record_are_refused():
    assert not passes(records_of(1, 2) + b"\0", 2, check_fields)


def test_offset_deltas_of_any_length_are_read():
    data = records_of(*[1] * 9_000)
    assert passes(data, 9_000, check_fields)
    assert not passes(data, 8_999, check_fields)


@given(st.data())
def test_what_passes_is_decoded_and_what_is_decoded_in_order_passes(data):
    """The check and the decoder agree, save for the stricter rules on lengths and integers."""
    number = data.draw(st.integers(1, 4))
    made = [
        BatchRecord(
            n, data.draw(st.integers(-5, 500)), data.draw(st.none() | st.binary(max_size=90)),
            data.draw(st.none() | st.binary(max_size=200)),
            tuple(data.draw(st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3))),
        )
        for n in range(number)
    ]  # fmt: skip
    good = b"".join(map(encode_record, made))
    assert passes(good, number, check_fields)
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    if is_usual(bad):
        assert passes(bad, 1, check_fields)
    if passes(bad, number, check_fields):
        assert [record.offset_delta for record in read_records(bytes(bad), number)] == list(range(number))
