"""Streams of server-sent events: they send changes only, are limited in number, and end with their connection."""

import json

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site

from flakelog.console.history import INTERVAL_MS
from flakelog.console.streams import SILENT_TICKS_MAX, STALLED_TICKS_MAX, Streams, Tick


class TopicDeleted(Exception):
    """An error that is expected to end a stream."""


class Transport(StringTransport):
    aborted = False

    def abortConnection(self):
        self.aborted = True


class Visit(Resource):
    """A connection of a browser that asks for a stream of these ticks."""

    isLeaf = True

    def __init__(self, streams, clock, live):
        super().__init__()
        self._streams, self._clock, self._live = streams, clock, live
        self.transport = Transport()
        self.channel = Site(self, reactor=clock).buildProtocol(None)
        self.channel.makeConnection(self.transport)
        self.channel.dataReceived(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")

    def render_GET(self, request):
        self.request = request
        request.notifyFinish().addErrback(lambda _: None)
        ended = self._streams.serve(request, self._live)
        ended.addCallback(lambda last: (request.write(last), request.finish()))
        return NOT_DONE_YET

    def tick(self, times=1):
        """Let time pass; return the new events, as (name, data), and comments."""
        for _ in range(times):
            self._clock.advance(INTERVAL_MS / 1_000)
        return self.events()

    def events(self):
        text = self.transport.value().decode()
        self.transport.clear()
        events = []
        for block in text.replace("\r\n", "\n").split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
            if "event" in lines:
                events.append((lines["event"], json.loads(lines["data"])))
            events += ["comment" for line in block.split("\n") if line.startswith(":")]
        return events


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def streams(clock):
    return Streams(clock, 2, (TopicDeleted,))


def test_a_stream_sends_what_has_changed(streams, clock):
    now = Tick("<p>1")
    visit = Visit(streams, clock, lambda since_ms: now)
    ((name, first),) = visit.events()
    assert (name, first["html"]) == ("figures", "<p>1")
    assert visit.tick() == []
    now = Tick("<p>2")
    ((_, data),) = visit.tick()
    assert data["html"] == "<p>2"
    now = Tick("<p>2", {"chart": [[7.5], [1.0]]})
    ((_, data),) = visit.tick()
    assert "html" not in data and data["points"] == {"chart": [[7.5], [1.0]]}


def test_points_are_asked_for_once(streams, clock):
    polls = []
    visit = Visit(streams, clock, lambda since_ms: polls.append(since_ms) or Tick("", {"chart": [[7.5], [1.0]]}))
    visit.tick()
    assert polls == [0, 7_500]


def test_a_silent_stream_shows_now_and_then_that_it_lives(streams, clock):
    visit = Visit(streams, clock, lambda since_ms: Tick("<p>"))
    visit.events()
    assert visit.tick(SILENT_TICKS_MAX) == ["comment"]


def test_figures_that_take_long_are_asked_for_one_after_the_other(streams, clock):
    reads = []

    def live(since_ms):
        reads.append(Deferred())
        return reads[-1]

    visit = Visit(streams, clock, live)
    visit.tick(5)
    assert len(reads) == 1
    reads[0].callback(Tick("<p>"))
    visit.tick()
    assert len(reads) == 2


def test_a_stream_that_ends_cancels_its_reading(streams, clock):
    cancelled = []
    visit = Visit(streams, clock, lambda since_ms: Deferred(cancelled.append))
    visit.channel.connectionLost(Failure(ConnectionDone()))
    assert len(cancelled) == 1 and not streams._open


def test_a_peer_that_does_not_read_gets_no_more_and_is_closed_after_a_while(streams, clock):
    polls = []
    visit = Visit(streams, clock, lambda since_ms: polls.append(since_ms) or Tick(f"<p>{len(polls)}"))
    visit.request.channel.pauseProducing()
    visit.tick(STALLED_TICKS_MAX)
    assert len(polls) == 1 and not visit.transport.aborted
    visit.request.channel.resumeProducing()
    visit.tick()
    assert len(polls) == 2, "a peer that reads again goes on"
    visit.request.channel.pauseProducing()
    visit.tick(STALLED_TICKS_MAX + 1)
    assert visit.transport.aborted


def test_streams_are_limited_and_end_with_their_connection(streams, clock):
    visits = [Visit(streams, clock, lambda since_ms: Tick("<p>")) for _ in range(2)]
    assert not streams.has_room
    visits[0].channel.connectionLost(Failure(ConnectionDone()))
    assert streams.has_room
    visits[1].channel.connectionLost(Failure(ConnectionDone()))
    assert not [call for call in clock.getDelayedCalls() if call.active() and "LoopingCall" in str(call)]


@pytest.mark.parametrize("error, lines", [(TopicDeleted("the topic was deleted"), 0), (ValueError("a bug"), 1)])
def test_an_error_ends_a_stream_and_an_unexpected_one_is_logged(streams, clock, error, lines):
    def live(since_ms):
        if since_ms == 0:
            return Tick("<p>", {"chart": [[7.5], [1.0]]})
        raise error

    visit = Visit(streams, clock, live)
    visit.events()
    with capturedLogs() as logged:
        assert visit.tick() == [("failed", {})]
    assert len([event for event in logged if event.get("log_failure")]) == lines
    assert not streams._open and visit.tick(3) == []
