"""What a measured producer sends: limits, sizes and rates."""

import random

import pytest

from flakelog.bench.load import VALUES_BYTES_MAX, VALUES_MAX, Limit, Sizes, make_values, parse_sizes, wait_seconds


def letters(number):
    return b"A" * number


@pytest.mark.parametrize(
    "limit, ends",
    [
        (Limit(things=10), [(9, 99.0, False), (10, 0.0, True)]),
        (Limit(seconds=5.0), [(10**9, 4.9, False), (0, 5.0, True)]),
        (Limit(10, 5.0), [(9, 4.9, False), (10, 0.0, True), (0, 5.0, True)]),
    ],
)
def test_a_run_ends_at_what_comes_first(limit, ends):
    assert [limit.is_reached(count, seconds) for count, seconds, _ in ends] == [reached for *_, reached in ends]


@pytest.mark.parametrize("text, sizes", [("100", Sizes(100, 100)), ("20..180", Sizes(20, 180)), ("0", Sizes(0, 0))])
def test_a_size_is_a_number_or_a_range(text, sizes):
    assert parse_sizes(text, 1_000) == sizes


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "'' is no size; give bytes such as 100"),
        ("1k", "'1k' is no size"),
        ("-1", "'-1' is no size"),
        ("1..2..3", "is no size"),
        ("9" * 30, "is no size"),
        ("180..20", "ends below its start; give 20..180"),
        ("1001", "1,001 bytes are more than a message may have, 1,000"),
    ],
)
def test_another_size_is_refused_with_what_would_be_right(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse_sizes(text, 1_000)


def test_values_have_all_sizes_of_their_range():
    values = make_values(Sizes(20, 180), random.Random(7).randint, letters)
    assert len(values) == VALUES_MAX
    assert min(map(len, values)) == 20 and max(map(len, values)) == 180


@pytest.mark.parametrize("size", [1 << 20, VALUES_BYTES_MAX * 2])
def test_large_values_are_fewer_so_that_they_take_little_memory(size):
    values = make_values(Sizes(size, size), random.Random(7).randint, letters)
    assert len(values) == max(VALUES_BYTES_MAX // size, 1)


def test_messages_wait_so_that_no_second_has_more_than_the_throughput():
    assert wait_seconds(100, 1.0, None) == 0.0
    assert wait_seconds(100, 1.0, 100.0) == 0.0
    assert wait_seconds(150, 1.0, 100.0) == pytest.approx(0.5)
    assert wait_seconds(10, 1.0, 100.0) == 0.0
