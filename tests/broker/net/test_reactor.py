"""Busy polling of the reactor before it sleeps, and its reaction to a second signal to stop."""

import signal

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.selectreactor import SelectReactor

from broker.net.reactor import SHORT_SLEEPS, BusyPoll, when_stopped_again

BUSY_POLL_US = 30
READY = [(7, 1)]


class Clock:
    """A clock in nanoseconds, and an epoll with events ready after the given times; one look takes a microsecond."""

    def __init__(self, *ready_after_us):
        self.now_ns = 0
        self.looks = self.sleeps = 0
        self._ready_ns = [us * 1_000 for us in ready_after_us]
        self._asked_ns = 0

    def __call__(self):
        return self.now_ns

    def poll(self, timeout, maximum):
        ready_ns = self._asked_ns + self._ready_ns[0]
        if timeout:
            self.sleeps += 1
            self.now_ns = max(self.now_ns, ready_ns)
        else:
            self.looks += 1
            self.now_ns += 1_000
        if self.now_ns < ready_ns:
            return []
        self._ready_ns.pop(0)
        self._asked_ns = self.now_ns
        return READY


def looked_at(*ready_after_us, busy_poll_us=BUSY_POLL_US):
    clock = Clock(*ready_after_us)
    looks = BusyPoll(busy_poll_us, clock)
    for _ in ready_after_us:
        assert looks.poll(clock, None) == READY
    return clock


def test_at_first_it_sleeps():
    clock = looked_at(10)
    assert (clock.looks, clock.sleeps) == (1, 1)


def test_after_a_short_sleep_it_looks_and_what_comes_meanwhile_needs_no_sleep():
    clock = looked_at(10, 10, 20)
    assert clock.sleeps == 1 and clock.looks == 1 + 10 + 20


def test_a_sleep_is_short_as_long_as_the_waking_may_be_most_of_it():
    assert looked_at(BUSY_POLL_US * SHORT_SLEEPS, 5).sleeps == 1
    assert looked_at(BUSY_POLL_US * SHORT_SLEEPS + 1, 5).sleeps == 2


def test_who_comes_seldom_is_slept_for_and_not_looked_for_more_than_once():
    clock = looked_at(10, *[700] * 10)
    assert clock.looks == BUSY_POLL_US + 11 and clock.sleeps == 11


def test_events_that_are_ready_immediately_do_not_make_it_poll_again():
    clock = looked_at(700, 0, 0, 0, 700)
    assert (clock.looks, clock.sleeps) == (5, 2)


def test_what_comes_just_too_late_is_looked_for_the_next_time_too():
    clock = looked_at(10, BUSY_POLL_US + 5, 5)
    assert clock.sleeps == 2 and clock.looks == 1 + 1 + BUSY_POLL_US + 5


@pytest.mark.parametrize("after_us", [0, 10, 700])
def test_it_does_not_look_where_it_is_told_not_to(after_us):
    assert looked_at(*[after_us] * 5, busy_poll_us=0).looks == 0


def test_a_look_that_may_not_wait_tells_nothing_of_what_pays():
    clock = Clock(10, 100, 10)
    looks = BusyPoll(BUSY_POLL_US, clock)
    looks.poll(clock, None)
    assert looks.poll(clock, 0) == []
    assert looks.poll(clock, None) == READY and clock.sleeps == 2
    assert looks.poll(clock, None) == READY and clock.sleeps == 2


def test_a_second_signal_is_heard_on_the_stock_reactor_too():
    reactor, grace, heard = SelectReactor(), Deferred(), []
    reactor.addSystemEventTrigger("before", "shutdown", lambda: grace)
    when_stopped_again(reactor, lambda: heard.append("again") or grace.callback(None))
    for _ in range(2):
        reactor.callWhenRunning(reactor.sigTerm, signal.SIGTERM)
    reactor.run(installSignalHandlers=False)
    assert heard == ["again"]
