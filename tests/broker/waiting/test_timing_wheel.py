"""The hierarchical timing wheel (Kafka's SystemTimer and TimingWheel, KAFKA-1989)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.waiting.timing_wheel import TimingWheel


def test_an_item_is_due_at_its_deadline_and_not_a_millisecond_before():
    wheel = TimingWheel(start_ms=1_000)
    wheel.add(1_005, "fetch")
    assert wheel.advance(now_ms=1_004) == []
    assert wheel.advance(now_ms=1_005) == ["fetch"]
    assert len(wheel) == 0


def test_a_deadline_that_has_passed_is_due_at_the_next_advance():
    wheel = TimingWheel(start_ms=1_000)
    wheel.add(900, "late")
    assert wheel.next_deadline_ms() == 1_000
    assert wheel.advance(now_ms=1_000) == ["late"]


def test_items_come_out_in_the_order_of_their_deadlines_across_wheels():
    """A jump over many buckets of several wheels returns all of their items, sorted."""
    wheel = TimingWheel(start_ms=0)
    for deadline_ms in (9_000, 3, 401, 19, 20, 8_000, 399, 21):
        wheel.add(deadline_ms, deadline_ms)
    assert wheel.advance(now_ms=8_999) == [3, 19, 20, 21, 399, 401, 8_000]
    assert wheel.advance(now_ms=9_000) == [9_000]


def test_a_deadline_past_the_wheel_goes_up_and_comes_down_when_its_bucket_falls_due():
    """With 20 buckets of 1 ms, a deadline of 45 is in the bucket [40, 60) of the second wheel."""
    wheel = TimingWheel(tick_ms=1, wheel_size=20, start_ms=0)
    wheel.add(45, "rebalance")
    assert wheel.next_deadline_ms() == 40
    assert wheel.advance(now_ms=40) == []
    assert wheel.next_deadline_ms() == 45
    assert wheel.advance(now_ms=45) == ["rebalance"]


def test_a_cancelled_timer_is_never_due_and_wakes_nobody():
    wheel = TimingWheel(start_ms=0)
    timer = wheel.add(10, "heartbeat")
    wheel.add(5_000, "later")
    timer.cancel()
    timer.cancel()
    assert not timer.pending
    assert wheel.next_deadline_ms() == 4_800  # the 400 ms bucket that holds 5,000; the bucket of 10 is empty
    assert wheel.advance(now_ms=100) == []
    assert len(wheel) == 1


def test_a_bucket_emptied_by_cancelling_takes_new_timers():
    wheel = TimingWheel(start_ms=0)
    wheel.add(10, "first").cancel()
    wheel.add(10, "second")
    wheel.add(11, "third").cancel()
    assert wheel.next_deadline_ms() == 10
    wheel.add(11, "fourth")
    assert wheel.advance(now_ms=11) == ["second", "fourth"]


def test_cancelling_after_the_item_was_handed_out_is_harmless():
    wheel = TimingWheel(start_ms=0)
    timer = wheel.add(10, "fetch")
    assert wheel.advance(now_ms=10) == ["fetch"]
    assert not timer.pending
    timer.cancel()
    assert len(wheel) == 0


def test_time_never_steps_back():
    wheel = TimingWheel(start_ms=100)
    assert wheel.advance(now_ms=50) == []
    wheel.add(60, "passed")
    assert wheel.advance(now_ms=50) == ["passed"]


def test_nothing_waits_so_nobody_needs_to_wake():
    assert TimingWheel(start_ms=7).next_deadline_ms() is None


def test_a_coarse_tick_makes_a_timer_late_by_less_than_a_tick_but_never_early():
    wheel = TimingWheel(tick_ms=10, wheel_size=4, start_ms=3)
    wheel.add(41, "session")
    assert wheel.advance(now_ms=49) == []
    assert wheel.advance(now_ms=50) == ["session"]


@pytest.mark.parametrize(("tick_ms", "wheel_size"), [(0, 20), (1, 1)])
def test_a_wheel_that_cannot_turn_is_refused(tick_ms, wheel_size):
    with pytest.raises(ValueError, match="2 buckets or more"):
        TimingWheel(tick_ms=tick_ms, wheel_size=wheel_size)


def test_the_heap_holds_buckets_not_timers():
    """Arming a million heartbeats again costs no memory, because insert and cancel leave nothing behind."""
    wheel = TimingWheel(start_ms=0)
    for now_ms in range(3_000):
        wheel.advance(now_ms)
        wheel.add(now_ms + 10_000, "session").cancel()
    assert len(wheel._occupied) <= 20 * len(wheel._levels)
    assert len(wheel) == 0


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 30_000)),
        st.tuples(st.just("cancel"), st.integers(0, 50)),
        st.tuples(st.just("advance"), st.integers(0, 9_000)),
    ),
    max_size=60,
)


@settings(max_examples=150)
@given(
    steps=steps,
    start_ms=st.integers(0, 5_000),
    tick_ms=st.sampled_from([1, 7]),
    size=st.sampled_from([2, 3, 20]),
)
def test_it_does_what_a_sorted_list_does(steps, start_ms, tick_ms, size):
    wheel = TimingWheel(tick_ms=tick_ms, wheel_size=size, start_ms=start_ms)
    now_ms = start_ms
    waiting, timers = {}, []
    for number, (step, value) in enumerate(steps):
        if step == "add":
            timers.append((number, wheel.add(start_ms + value, number)))
            waiting[number] = start_ms + value
        elif step == "cancel" and timers:
            cancelled, timer = timers[value % len(timers)]
            timer.cancel()
            waiting.pop(cancelled, None)
        elif step == "advance":
            now_ms += value
            last_tick_ms = now_ms // tick_ms * tick_ms
            due = {n for n, at in waiting.items() if at <= last_tick_ms}
            out = wheel.advance(now_ms)
            assert set(out) == due
            assert [waiting[n] for n in out] == sorted(waiting[n] for n in out)
            for n in due:
                del waiting[n]
        assert len(wheel) == len(waiting)


@settings(max_examples=100)
@given(delays=st.lists(st.integers(0, 10**6), max_size=30), start_ms=st.integers(0, 10**9))
def test_whoever_wakes_when_told_is_never_late(delays, start_ms):
    """The engine's one timer is armed from `next_deadline_ms` alone."""
    wheel = TimingWheel(start_ms=start_ms)
    for delay in delays:
        wheel.add(start_ms + delay, start_ms + delay)
    fired = []
    while (now_ms := wheel.next_deadline_ms()) is not None:
        out = wheel.advance(now_ms)
        assert all(deadline_ms == now_ms for deadline_ms in out)
        fired += out
    assert fired == sorted(start_ms + delay for delay in delays)
