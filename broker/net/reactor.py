"""SHELL (the reactor): Twisted's epoll reactor with a faster dispatch of read events.

The stock `doPoll` wraps every event in a logging context and reads flags that are nearly always the same; for a broker
of small requests that is a third of its time. This reactor calls `doRead` for a plain read event, and leaves all other
events to the stock path. Only the command line installs it; the broker works on the stock reactor too.

If events follow each other closely, the reactor polls again for a while before it sleeps, because waking up costs more
than polling. So a client with sequential requests gets its answers sooner.

The private names of Twisted used here are `_poller`, `_selectables`, `_doReadOrWrite` and `_disconnectSelectable`;
tests/broker/net/test_transport.py checks that they exist.
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
SHORT_SLEEPS = 3  # in busy-poll times: a sleep shorter than this was mostly the cost of waking up


class BusyPoll:
    """A poll that repeats for `busy_poll_us` before it sleeps, if that has paid lately.

    It has paid if polling again found an event, or if the last sleep was so short that polling a little longer would
    have cost no more. Events that are ready at once do not count, because a bulk producer keeps the broker busy for a
    while, and then needs the processor to produce more.
    """

    def __init__(self, busy_poll_us: int, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._busy_poll_ns = busy_poll_us * 1_000
        self._short_sleep_ns = SHORT_SLEEPS * self._busy_poll_ns
        self._clock_ns = clock_ns
        self._pays = False

    def poll(self, poller: Any, timeout: float | None) -> list[tuple[int, int]]:
        """Return (descriptor, events) of the events within `timeout` seconds; with None, wait until one comes.

        Raise the errors of `epoll.poll`.
        """
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
    """Run `call`, in place of an error, at each further request to stop while the reactor is stopping.

    An impatient operator sends a second signal.
    """
    stop = reactor.stop

    def stop_or_call() -> None:
        try:
            stop()
        except ReactorNotRunning:
            call()

    reactor.stop = stop_or_call


def install(busy_poll_us: int = 0) -> None:
    """Install the fast reactor if the system has epoll, else leave the default one. Call before any import of one.

    `busy_poll_us`: time of polling before it sleeps; 0 if the process has one processor only, because the peer may
    need that processor to send.
    """
    try:
        from select import EPOLLIN

        from twisted.internet.epollreactor import EPollReactor
    except ImportError:
        return

    log = Logger("broker")

    class FastEPollReactor(EPollReactor):
        # Twisted uses the wall clock, which would delay every timer by an hour if it were set back by an hour.
        seconds = staticmethod(time.monotonic)

        def __init__(self) -> None:
            self._after_events: list[Callable[[], None]] = []
            self._polls_again = False
            self.handles_events = False  # True from the first event of a poll until the calls of `after_events`
            self._looks = BusyPoll(busy_poll_us if len(os.sched_getaffinity(0)) > 1 else 0)
            super().__init__()

        def after_events(self, call: Callable[[], None]) -> None:
            """Run `call` each time all events of a poll have been handled."""
            self._after_events.append(call)

        def poll_again(self) -> None:
            """Do not sleep before the next poll, because requests are left for another turn."""
            self._polls_again = True

        def doPoll(self, timeout: float | None) -> None:
            if self._polls_again:
                self._polls_again, timeout = False, 0
            try:
                events = self._looks.poll(self._poller, timeout)
            except OSError as error:
                if error.errno == errno.EINTR:
                    return
                raise
            selectables = self._selectables
            self.handles_events = True
            try:
                for fd, event in events:
                    if (selectable := selectables.get(fd)) is None:
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
            finally:  # after a fault in the end of a connection, too
                self.handles_events = False
                for call in self._after_events:
                    try:
                        call()
                    except Exception:
                        log.failure("a fault after the events of a turn")

        doIteration = doPoll

    installReactor(FastEPollReactor())
