"""SHELL (Twisted): streams of live figures as server-sent events (WHATWG HTML, section 9.2).

A stream sends an event when its page has changed. A peer that does not read gets no more, and is closed after a while.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from flakelog.console.history import INTERVAL_MS

STALLED_TICKS_MAX = 30  # a minute
SILENT_TICKS_MAX = 8  # then a comment shows proxies, and us, that the connection lives

log = Logger()


class Tick(NamedTuple):
    """The state of a page now: the HTML of its live part, and the newest points of its charts by name.

    `rows` is HTML that is put before the rows that are there, at a live tail. `at` is where the tail is, which the
    browser sends when it connects again (Last-Event-ID).
    """

    html: str = ""
    points: Mapping[str, Any] = {}
    rows: str = ""
    at: str = ""
    left_out: int = 0


Expected = tuple[type[Exception], ...]
Live = Callable[[int], Any]
"""Takes the time in ms up to which the page has points; returns a Tick, or a Deferred of one."""


class Streams:
    """The streams of all open pages, at most `streams_max`."""

    def __init__(self, reactor: Any, streams_max: int, expected: Expected) -> None:
        """Errors of the `expected` classes end a stream without a line in the log."""
        self._reactor = reactor
        self._expected = expected
        self._max = streams_max
        self._open: set[_Stream] = set()

    @property
    def has_room(self) -> bool:
        return len(self._open) < self._max

    def serve(self, request: Any, live: Live) -> "Deferred[bytes]":
        """Answer a request with a stream; the Deferred fires when it has ended."""
        stream = _Stream(request, live, self._open.discard, self._expected)
        self._open.add(stream)
        stream.begin(self._reactor)
        return stream.ended


class _Stream:
    """The events of one page. It is the producer of its connection, which pauses it while the peer does not read."""

    def __init__(
        self, request: Any, live: Live, ended: Callable[["_Stream"], None], expected: Expected
    ) -> None:
        self._request = request
        self._expected = expected
        self._live = live
        self.ended: Deferred[bytes] = Deferred()
        self._forget = ended
        self._paused = self._busy = self._done = False
        self._stalled = self._silent = 0
        self._since_ms = 0
        self._html = ""
        self._timer = LoopingCall(self._tick)
        self._reading: Deferred[Any] | None = None

    def begin(self, reactor: Any) -> None:
        request = self._request
        request.setHeader(b"Content-Type", b"text/event-stream; charset=utf-8")
        request.setHeader(b"X-Accel-Buffering", b"no")
        request.notifyFinish().addBoth(lambda _: self._stop())
        request.registerProducer(self, True)
        request.write(b"retry: 5000\n\n")
        self._timer.clock = reactor
        self._timer.start(INTERVAL_MS / 1_000, now=True)

    def pauseProducing(self) -> None:
        self._paused = True

    def resumeProducing(self) -> None:
        self._paused = False
        self._stalled = 0

    def stopProducing(self) -> None:
        self._stop()

    def _stop(self) -> None:
        if not self._done:
            self._done = True
            if self._timer.running:
                self._timer.stop()
            self._forget(self)
            if self._reading is not None and self._busy:
                self._reading.cancel()

    def _tick(self) -> None:
        if self._paused or self._busy:
            self._stalled += 1
            if self._stalled > STALLED_TICKS_MAX:
                self._request.channel.forceAbortClient()
            return
        self._busy = True
        self._reading = maybeDeferred(self._live, self._since_ms)
        self._reading.addCallbacks(self._send, self._failed)

    def _failed(self, failure: Any) -> None:
        """End the stream. The browser connects again, and gets the reason."""
        self._busy = False
        if not self._done:
            if not failure.check(*self._expected):
                log.failure("console: live figures failed", failure)
            self._stop()
            self._request.unregisterProducer()
            self.ended.callback(b"event: failed\ndata: {}\n\n")

    def _send(self, tick: Tick) -> None:
        self._busy = False
        if self._done:
            return
        newest = [column[-1] for columns in tick.points.values() if (column := columns[0])]
        if tick.html != self._html or newest or tick.rows:
            event = {"points": tick.points, "rows": tick.rows, "left_out": tick.left_out}
            self._write("figures", event | ({"html": tick.html} if tick.html != self._html else {}), tick.at)
            self._html, self._silent = tick.html, 0
            self._since_ms = max([self._since_ms, *(round(time_s * 1_000) for time_s in newest)])
        else:
            self._silent += 1
            if self._silent >= SILENT_TICKS_MAX:
                self._silent = 0
                self._request.write(b": still here\n\n")

    def _write(self, event: str, data: Mapping[str, Any], at: str) -> None:
        id_line = f"id: {at}\n" if at else ""
        self._request.write(f"event: {event}\n{id_line}data: {json.dumps(data)}\n\n".encode())
