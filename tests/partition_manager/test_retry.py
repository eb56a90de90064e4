"""Backoff with Storm's formula, and a schedule that keeps every message due at the same time."""

import pytest

from partition_manager.retry import RetryPolicy, RetrySchedule


def test_delays_grow_from_initial_to_maximum():
    policy = RetryPolicy(initial_ms=100, multiplier=2.0, max_ms=1_000)
    assert [policy.delay_ms(n) for n in range(1, 7)] == [100, 200, 400, 800, 1_000, 1_000]


def test_a_message_that_failed_ten_thousand_times_waits_the_maximum():
    assert RetryPolicy(100, 2.0, 5_000).delay_ms(10_000) == 5_000


def test_jitter_shortens_delays_by_at_most_its_share_and_spreads_neighbours():
    policy = RetryPolicy(1_000, 2.0, 10_000, jitter=0.5)
    delays = [policy.delay_ms(1, offset) for offset in range(1_000)]
    assert 500 <= min(delays) < 550 and 950 < max(delays) <= 1_000
    assert len(set(delays)) > 300
    assert delays == [policy.delay_ms(1, offset) for offset in range(1_000)]


@pytest.mark.parametrize(
    "wrong",
    [{"initial_ms": -1}, {"initial_ms": 5, "max_ms": 4}, {"multiplier": 0.5}, {"jitter": 1.0}, {"jitter": -0.1}],
)
def test_a_policy_that_cannot_work_is_refused(wrong):
    with pytest.raises(ValueError):
        RetryPolicy(**wrong)


def test_what_is_due_comes_in_order_of_time_then_offset_and_none_is_lost():
    """Messages due at the same time are all kept.

    KafkaSpoutRetryExponentialBackoff breaks ties by identity hash and loses a message if two hashes collide.
    """
    schedule = RetrySchedule(lambda offset, ticket: True)
    for due_ms, offset in ((20, 1), (10, 7), (10, 3), (10, 5)):
        schedule.add(due_ms, offset, ticket=offset)
    assert schedule.next_due_ms() == 10
    assert [schedule.pop_due(10) for _ in range(4)] == [3, 5, 7, None]
    assert schedule.pop_due(20) == 1 and schedule.next_due_ms() is None


def test_what_was_overtaken_is_passed_over():
    current = {(1, 1), (2, 2)}
    schedule = RetrySchedule(lambda offset, ticket: (offset, ticket) in current)
    schedule.add(5, 1, 1)
    schedule.add(6, 2, 2)
    current.remove((1, 1))
    assert schedule.next_due_ms() == 6 and schedule.current() == {2}
    assert schedule.pop_due(9) == 2
