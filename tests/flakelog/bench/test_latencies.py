"""Latencies in buckets give percentiles as a sorted list would, to within a bucket."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flakelog.bench.latencies import BUCKET_BITS, Latencies

TIMES_US = st.lists(st.integers(0, 10**9), min_size=1, max_size=200)


def latencies(values):
    made = Latencies()
    for latency_us in values:
        made.add(latency_us)
    return made


def test_without_latencies_every_figure_is_zero():
    assert (Latencies().average_us, Latencies().percentile_us(500), Latencies().max_us) == (0, 0, 0)


def test_percentiles_of_a_hundred_small_latencies_are_exact():
    recorded = latencies(range(1, 101))
    assert [recorded.percentile_us(per_mille) for per_mille in (500, 950, 990, 999, 1000)] == [50, 95, 99, 100, 100]
    assert (recorded.average_us, recorded.max_us) == (50.5, 100)


@given(TIMES_US, st.integers(1, 1000))
def test_a_percentile_is_the_sorted_one_or_at_most_a_bucket_above(values, per_mille):
    exact = sorted(values)[max(math.ceil(len(values) * per_mille / 1000), 1) - 1]
    percentile_us = latencies(values).percentile_us(per_mille)
    assert exact <= percentile_us <= exact + exact / (1 << BUCKET_BITS - 1)
    assert percentile_us <= max(values)


@given(TIMES_US, TIMES_US)
def test_merged_latencies_are_those_of_both(first, second):
    merged = latencies(first)
    merged.merge(latencies(second))
    both = latencies(first + second)
    assert merged.average_us == pytest.approx(both.average_us) and merged.max_us == both.max_us
    assert [merged.percentile_us(per_mille) for per_mille in (500, 999)] == [
        both.percentile_us(per_mille) for per_mille in (500, 999)
    ]
