"""SHELL (the reactor): Twisted's epoll reactor with a shorter way from an event to its transport.

The stock `doPoll` wraps every event in a logging context and reads flags that are nearly always the same; for a broker
of small requests that is a third of its time. This one calls `doRead` for the plain readable event and leaves all else
to the stock path. Only the command line installs it; everything works on the stock reactor.

Where one thing comes soon after another it looks again for a while before it sleeps: to be woken costs more than that,
and whoever asks one thing after another has each answer the sooner.

Private names of Twisted relied on: `_poller`, `_selectables`, `_doReadOrWrite`, `_disconnectSelectable`
(tests/broker/test_transport.py holds them to be there).
"""

import errno
import os
import time
from collections.abc import Callable
from typing import Any

from twisted.internet.error import ReactorNotRunning
from twisted.internet.main import installReactor
from twisted.logger import Logger

EVENTS_MAX = 1024
SHORT_SLEEPS = 3  # times as long as it looks: most of a short sleep is the waking, which it would have been spared


class BusyPoll:
    """What is ready, by epoll. It looks again for so long where that has paid lately: looking again found something, or
    the last sleep was so short that a little more looking would have been no worse. What is ready at once tells
    nothing: a bulk producer keeps us busy for a while, and then needs the processor to make more."""

    def __init__(self, busy_poll_us: int, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._busy_poll_ns = busy_poll_us * 1_000
        self._short_sleep_ns = SHORT_SLEEPS * self._busy_poll_ns
        self._clock_ns = clock_ns
        self._pays = False

    def look(self, poller: Any, timeout: float | None) -> list[tuple[int, int]]:
        """(descriptor, events) of what is ready within `timeout` seconds, for as long as it takes where that is None.
        Errors as of `epoll.poll`."""
        events: list[tuple[int, int]]
        if timeout == 0 or self._busy_poll_ns:
            events = poller.poll(0, EVENTS_MAX)
            if events or timeout == 0:
                return events
        clock_ns = self._clock_ns
        began_ns = clock_ns()
        if self._pays:
            until_ns = began_ns + self._busy_poll_ns
            while began_ns < until_ns:
                events = poller.poll(0, EVENTS_MAX)
                if events:
                    return events
                began_ns = clock_ns()
        events = poller.poll(-1 if timeout is None else timeout, EVENTS_MAX)
        self._pays = bool(events) and clock_ns() - began_ns < self._short_sleep_ns
        return events


def when_stopped_again(reactor: Any, call: Callable[[], None]) -> None:
    """`call` at each signal to stop that comes while a reactor, whichever it is, stops: the operator is impatient, and
    nothing is wrong."""
    stop = reactor.stop

    def stop_or_call() -> None:
        try:
            stop()
        except ReactorNotRunning:
            call()

    reactor.stop = stop_or_call


def install(busy_poll_us: int = 0) -> None:
    """Install the fast reactor where there is epoll, the default one elsewhere. Call before anything imports one.

    `busy_poll_us`: how long it looks again before it sleeps. Not at all where there is one processor only, which who
    is to send something may be waiting for.
    """
    try:
        from select import EPOLLIN

        from twisted.internet.epollreactor import EPollReactor
    except ImportError:
        return

    log = Logger("broker")

    class FastEPollReactor(EPollReactor):
        # Twisted's is the wall clock: stepped back by an hour, it would keep every timer waiting for an hour.
        seconds = staticmethod(time.monotonic)

        def __init__(self) -> None:
            self._after_events: list[Callable[[], None]] = []
            self._polls_again = False
            self._looks = BusyPoll(busy_poll_us if len(os.sched_getaffinity(0)) > 1 else 0)
            super().__init__()

        def after_events(self, call: Callable[[], None]) -> None:
            """`call` when the events of a turn have all been seen to, before anything else happens."""
            self._after_events.append(call)

        def poll_again(self) -> None:
            """Do not sleep before the next turn: there is work left for it."""
            self._polls_again = True

        def doPoll(self, timeout: float | None) -> None:
            if self._polls_again:
                self._polls_again, timeout = False, 0
            try:
                events = self._looks.look(self._poller, timeout)
            except OSError as error:
                if error.errno == errno.EINTR:
                    return
                raise
            selectables = self._selectables
            for fd, event in events:
                selectable = selectables.get(fd)
                if selectable is None:
                    continue
                if event != EPOLLIN:
                    self._doReadOrWrite(selectable, fd, event)
                    continue
                try:
                    why = selectable.doRead()
                except Exception as error:
                    log.failure("a fault while reading from {selectable}", selectable=selectable)
                    why = error
                if why:
                    self._disconnectSelectable(selectable, why, True)
            for call in self._after_events:
                try:
                    call()
                except Exception:
                    log.failure("a fault after the events of a turn")

        doIteration = doPoll

    installReactor(FastEPollReactor())
