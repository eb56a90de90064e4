"""SHELL (the reactor): Twisted's epoll reactor with a shorter way from an event to its transport.

The stock `doPoll` wraps every event in a logging context and reads flags that are nearly always the same; for a broker
of small requests that is a third of its time. This one calls `doRead` for the plain readable event and leaves all else
to the stock path. Only the command line installs it; everything works on the stock reactor.

Private names of Twisted relied on: `_poller`, `_selectables`, `_doReadOrWrite`, `_disconnectSelectable`
(tests/broker/test_transport.py holds them to be there).
"""

import errno
import time
from collections.abc import Callable

from twisted.internet.error import ReactorNotRunning
from twisted.internet.main import installReactor
from twisted.logger import Logger


def install() -> None:
    """Install the fast reactor where there is epoll, the default one elsewhere. Call before anything imports one."""
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
            super().__init__()

        def after_events(self, call: Callable[[], None]) -> None:
            """`call` when the events of a turn have all been seen to, before anything else happens."""
            self._after_events.append(call)

        def stop(self) -> None:
            try:
                super().stop()
            except ReactorNotRunning:
                pass  # a second signal while it stops: the operator is impatient, nothing is wrong

        def doPoll(self, timeout: float | None) -> None:
            try:
                events = self._poller.poll(-1 if timeout is None else timeout, 1024)
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
