"""Rates of use and throttle times, with the numbers of Kafka (ClientQuotaManager, TokenBucket)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.quota.quota_rates import Rate, TokenBucket, Windows

ELEVEN = Windows(11, 1_000)  # Kafka's defaults: ten whole windows and the current one


def rate_of(*used, windows=ELEVEN):
    rate = Rate(windows)
    for now_ms, value in used:
        rate.add(value, now_ms)
    return rate


def test_who_uses_less_than_the_quota_waits_for_nothing():
    rate = rate_of()
    for second in range(30):
        rate.add(400, second * 1_000)
        assert rate.over_ms(500, second * 1_000) == 0


def test_who_is_over_waits_until_the_average_is_the_quota_again():
    """Ten seconds of 400, and 2,300 half a second later, are 6,300 in 10.5 s: 600 a second. After 2.1 s more they are
    500 a second."""
    rate = rate_of(*((second * 1_000, 400) for second in range(10)))
    rate.add(2_300, 10_500)
    assert rate.over_ms(500, 10_500) == 2_100


def test_who_has_just_begun_is_measured_over_whole_windows():
    """5,000 in one burst are 500 a second over ten windows; one more is too much."""
    assert rate_of((7, 5_000)).over_ms(500, 7) == 0
    assert rate_of((7, 5_500)).over_ms(500, 7) == 1_000


def test_the_quota_itself_is_not_too_much():
    assert rate_of((0, 10_000)).over_ms(1_000, 0) == 0


def test_a_use_expires_with_its_window():
    rate = rate_of((0, 100_000), (1_500, 1))
    assert rate.over_ms(500, 10_999) > 0
    assert rate.over_ms(500, 11_000) == 0
    assert rate.used(11_000) == 1
    assert rate.used(12_500) == 0


def test_a_window_lasts_until_something_comes_after_its_end():
    """A window begins with the first use that it counts, not on the second."""
    rate = rate_of((0, 1), (999, 1), (1_300, 1), (2_299, 1), (2_300, 1))
    assert rate.used(11_998) == 5, "the first was used last at 999"
    assert rate.used(11_999) == 3
    assert rate.used(13_298) == 3, "the second began at 1,300 and was used last at 2,299"
    assert rate.used(13_299) == 1


def test_what_is_taken_back_was_never_used():
    rate = rate_of((0, 300))
    rate.add(10_000, 500)
    rate.add(-10_000, 500)
    assert rate.used(500) == 300


@given(
    st.lists(st.tuples(st.integers(1, 30_000), st.integers(0, 2_000)), min_size=1, max_size=60),
    st.builds(Windows, st.integers(1, 12), st.sampled_from([500, 1_000, 3_000])),
)
def test_a_client_that_obeys_its_throttle_times_uses_at_most_twice_the_quota_and_one_burst(uses, windows):
    """This holds for any sizes and pauses. A client can use twice the quota, as in Kafka, if it always begins again
    just when the windows have expired."""
    rate, now_ms, total = Rate(windows), 0, 0
    for used, pause_ms in uses:
        rate.add(used, now_ms)
        total += used
        now_ms += max(rate.over_ms(500, now_ms), pause_ms)
    assert total <= 2 * 500 * (now_ms + windows.span_ms) / 1_000


def test_one_window_measures_what_is_in_it():
    windows = Windows(1, 2_000)
    assert rate_of((0, 1_000), windows=windows).over_ms(500, 1_000) == 1_000
    assert rate_of((0, 1_000), windows=windows).over_ms(500, 2_000) == 0


def test_a_wait_is_never_longer_than_a_client_can_be_told():
    assert rate_of((0, 2**62)).over_ms(1, 0) == 2**31 - 1


TINY, INFINITE = 5e-324, float("inf")  # a client can be given both, as in Kafka


@pytest.mark.parametrize("quota, wait_ms", [(TINY, 2**31 - 1), (INFINITE, 0)])
def test_the_least_and_the_largest_quota_there_are_hold_like_others(quota, wait_ms):
    assert rate_of((0, 5)).over_ms(quota, 0) == wait_ms
    bucket = TokenBucket(ELEVEN)
    bucket.take(5, quota, now_ms=1_000)
    bucket.take(5, quota, now_ms=1_000)
    assert bucket.over_ms(quota, 1_000) == wait_ms


# --- tokens ------------------------------------------------------------------------------------------------------


def test_a_bucket_is_full_at_first_and_has_the_tokens_of_all_windows():
    bucket = TokenBucket(Windows(10, 1_000))
    bucket.take(50, 5, now_ms=1_000_000)
    assert bucket.over_ms(5, 1_000_000) == 0
    bucket.take(1, 5, now_ms=1_000_000)
    assert bucket.over_ms(5, 1_000_000) == 200


def test_a_debt_is_paid_at_the_rate_of_the_quota():
    """A burst of 560 from a bucket of 500 must wait 12 s (KIP-599's example)."""
    bucket = TokenBucket(Windows(100, 1_000))
    bucket.take(560, 5, now_ms=0)
    assert [bucket.over_ms(5, at) for at in (0, 5_000, 11_999, 12_000)] == [12_000, 7_000, 1, 0]


@pytest.mark.parametrize("quota, wait_ms", [(5, 200), (10, 0)])
def test_another_quota_holds_immediately(quota, wait_ms):
    bucket = TokenBucket(Windows(10, 1_000))
    bucket.take(51, 5, now_ms=0)
    assert bucket.over_ms(5, 0) == 200
    assert bucket.over_ms(quota, 0 if quota == 5 else 100) == wait_ms
