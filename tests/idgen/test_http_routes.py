"""idgen.http: its routes under klein, on connections in memory; `House.iterate` is one reactor iteration."""

import json

import pytest
from klein import Klein
from twisted.internet.error import ConnectionDone
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure

from coordination.memory import Ensemble, MemoryCoordinator
from idgen.clock import IdClock
from idgen.config import IdgenConfig
from idgen.fair_queue import IDS_OF_A_CALL
from idgen.http import REQUEST_CALLS, SmallSite, add_id_routes
from idgen.http_hosts import OwnHosts
from idgen.http_port import HttpFactory
from idgen.server import IdQueue, ThriftFactory
from idgen.service import IdService
from idgen.wire import Call, FrameDecoder, decode_reply, encode_call
from tests.idgen.driving import NOW, LookingClock, claim, settle
from tests.idgen.test_thrift_protocol import Transport

HOSTS = OwnHosts(["ids"], bound="127.0.0.1")
CALLS_PER_ITERATION = 4 * REQUEST_CALLS
IDS_PER_ITERATION = CALLS_PER_ITERATION * IDS_OF_A_CALL


class House:
    def __init__(self, **settings):
        self.reactor = LookingClock()
        clock = IdClock(self.wall_ns, self.wall_ns)
        held = settle(claim(), MemoryCoordinator(Ensemble()), NOW)
        self.service = IdService(held, IdgenConfig(ids_look_calls=CALLS_PER_ITERATION, **settings))
        self.line = IdQueue(self.service, clock, self.reactor)
        app = add_id_routes(Klein(), self.service, self.line)
        self.http = HttpFactory(
            self.service,
            self.line,
            self.reactor,
            lambda: SmallSite(app.resource(), HOSTS, idle_ms=60_000, request_ms=10_000, reactor=self.reactor),
            connections_max=10,
            idle_ms=60_000,
            request_ms=10_000,
            hosts=HOSTS,
        )
        self.thrift = ThriftFactory(self.service, self.line)

    def wall_ns(self):
        return NOW * 10**6 + int(self.reactor.seconds() * 1e9)

    def connect(self, factory=None):
        protocol = (factory or self.http).buildProtocol(None)
        protocol.makeConnection(Transport())
        return protocol

    def timers(self):
        """Return the number of timers of connections; one more is the site's clock for its log."""
        sites = self.http.site._logDateTimeCall
        return len([timer for timer in self.reactor.getDelayedCalls() if timer is not sites])

    def iterate(self):
        """Run one reactor iteration; return how many ids were issued in it."""
        before = self.service.counters.ids
        self.reactor.iterate()
        return self.service.counters.ids - before


@pytest.fixture
def house():
    return House()


def answers(peer):
    """Return (status, body) of each answer so far, which all have a Content-Length."""
    data, responses = peer.transport.value(), []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        [length] = [int(line[16:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length: ")]
        responses.append((int(head.split()[1]), json.loads(data[:length])))
        data = data[length:]
    peer.transport.clear()
    return responses


def post_ids(count):
    return b"POST /ids?count=%d HTTP/1.1\r\nHost: ids\r\n\r\n" % count


def test_many_ids_are_written_in_as_many_looks_as_they_need_and_none_is_long(house):
    """A batch of 100,000 ids written in one piece held the reactor for 60 ms."""
    peer = house.connect()
    peer.dataReceived(post_ids(100_000))
    taken = [house.service.counters.ids]
    while house.service.counters.ids < 100_000:
        assert answers(peer) == []
        taken.append(house.iterate())
    assert max(taken) <= IDS_PER_ITERATION and len(taken) == 4
    [(status, body)] = answers(peer)
    assert status == 200 and len(set(body["ids"])) == 100_000 and body["ids"] == sorted(body["ids"])
    assert body["id_strs"] == [str(id) for id in body["ids"]]


def test_others_have_their_ids_while_a_large_answer_is_written(house):
    peer, other = house.connect(), house.connect(house.thrift)
    peer.dataReceived(post_ids(100_000))
    other.dataReceived(encode_call(Call("get_id", 7, "agent")))
    house.iterate()
    house.iterate()
    [answer] = FrameDecoder().frames(other.transport.value())
    assert decode_reply(answer).seqid == 7
    assert answers(peer) == []


def test_requests_sent_together_are_answered_in_their_order_some_in_each_look(house):
    peer = house.connect()
    requests = [b"GET /ids/%d HTTP/1.1\r\nHost: ids\r\n\r\n" % id for id in range(30)]
    peer.dataReceived(b"".join(requests))
    seen = answers(peer)
    assert 0 < len(seen) <= 5
    while len(seen) < 30:
        house.iterate()
        more = answers(peer)
        assert 0 < len(more) <= 5
        seen += more
    assert [(status, body["id"]) for status, body in seen] == [(200, id) for id in range(30)]


def test_what_is_wrong_is_refused_whatever_comes_first(house):
    peer = house.connect()
    peer.dataReceived(post_ids(0) + post_ids(10**18) + b"GET /ids/x HTTP/1.1\r\nHost: ids\r\n\r\n")
    assert [(status, body["error"]) for status, body in answers(peer)] == [
        (400, "InvalidCount"), (400, "InvalidCount"), (400, "InvalidId")
    ]  # fmt: skip


def test_a_request_that_had_some_of_its_ids_is_refused_when_there_are_no_more(house):
    peer = house.connect()
    peer.dataReceived(post_ids(100_000))
    house.service.claim.close(NOW)
    house.iterate()
    [(status, body)] = answers(peer)
    assert (status, body["error"]) == (503, "Fenced")


def test_ids_of_the_first_millisecond_of_a_layout_are_written_without_zeros_in_front():
    house = House()
    house.service.claim.worker._next, house.service.claim.worker._end = 990, 4_096
    house.service.claim.worker._ms = NOW
    peer = house.connect()
    peer.dataReceived(post_ids(3_000))
    [(_, body)] = answers(peer)
    assert body["ids"] == list(range(990, 3_990)) and body["id_strs"] == [str(id) for id in body["ids"]]


@pytest.mark.parametrize("line", [b"GET /ids/%ff HTTP/1.1\r\n", b"GET /ids/5 HTTP/1.1\r\nHost: \xff\r\n"])
def test_what_is_no_text_is_refused_in_our_words(house, line):
    peer = house.connect()
    peer.dataReceived(line + b"\r\n")
    [(status, body)] = answers(peer)
    assert (status, body["error"]) == (400, "BadRequest")


LENGTH = b"Content-Length: %d\r\n\r\n" % (1 << 20)
CHUNK = b"Transfer-Encoding: chunked\r\n\r\n" + b"%x\r\n" % (1 << 20)


@pytest.mark.parametrize("framing", [LENGTH, CHUNK])
def test_a_long_body_is_refused_while_it_comes(house, framing):
    """The console's forms are short, and twisted.web would keep all of a body in a file, as much as the disk has."""
    peer = house.connect()
    peer.dataReceived(b"POST /ids?count=1 HTTP/1.1\r\nHost: ids\r\n" + framing)
    for _ in range(16):
        assert not peer.transport.disconnecting
        peer.dataReceived(bytes(4_096))
    assert peer.transport.value() == b""
    peer.dataReceived(bytes(4_096))
    assert peer.transport.disconnecting
    peer.dataReceived(bytes((1 << 20) - 17 * 4_096) + b"\r\n0\r\n\r\n")
    head, _, text = peer.transport.value().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\n")
    assert text.startswith(b"The form is too long") and b"Content-Length: %d" % len(text) in head
    assert house.service.counters.ids == 0


def test_a_request_whose_connection_is_lost_holds_nobody_up(house):
    peer, other = house.connect(), house.connect()
    house.service.claim.worker.next_ids(house.service.claim.worker.max_batch, NOW)
    peer.dataReceived(post_ids(100_000))
    other.dataReceived(post_ids(1))
    peer.connectionLost(Failure(ConnectionDone()))
    house.reactor.rightNow += 0.001
    house.iterate()
    assert [status for status, _ in answers(other)] == [200]


@pytest.mark.parametrize("path", [b"/id", b"/ids?count=3"])
@pytest.mark.parametrize(
    "headers, refusal",
    [
        (b"Host: evil.example\r\n", (421, "MisdirectedRequest")),
        (b"Host: ids\r\nOrigin: https://evil.example\r\n", (403, "ForeignOrigin")),
        (b"Host: ids\r\nHost: ids\r\n", (400, "BadRequest")),
        (b"Host: ids\r\nOrigin: \xff\r\n", (403, "ForeignOrigin")),
    ],
)
def test_a_web_page_spends_no_ids(house, path, headers, refusal):
    peer = house.connect()
    peer.dataReceived(b"POST " + path + b" HTTP/1.1\r\n" + headers + b"\r\n")
    assert [(status, body["error"]) for status, body in answers(peer)] == [refusal]
    assert house.service.counters.ids == 0
    peer.dataReceived(b"POST " + path + b" HTTP/1.1\r\nHost: IDS:8609\r\nOrigin: http://ids:8609\r\n\r\n")
    assert [status for status, _ in answers(peer)] == [200]


@pytest.mark.parametrize(
    "begun",
    [
        b"POST /i",  # might be plain
        b"G",  # is the site's from its first byte
        b"GET /ids/5 HTTP/1.1\r\nHost: ids\r\n",
        b"POST /ids?count=5 HTTP/1.1\r\nHost: ids\r\nContent-Length: 9\r\n\r\n1234",
        post_ids(1) + b"GET /ids/5 HTTP/1.1\r\nHost: ids\r\nX-Slow: ",
    ],
)
def test_a_request_that_arrives_byte_by_byte_is_refused_after_its_time(house, begun):
    """Each byte began the time of an idle connection anew, so that 10,000 such peers took all connections for ever."""
    peer = house.connect()
    peer.dataReceived(begun)
    answered = len(answers(peer))
    for _ in range(4):
        house.reactor.advance(2)
        peer.dataReceived(b"1" if begun.endswith((b"4", b" ")) else b"")
        assert not peer.transport.disconnecting
    house.reactor.advance(2)
    if answered:  # its second request began later
        peer.dataReceived(b"1")
        house.reactor.advance(10)
    assert [(status, body["error"]) for status, body in answers(peer)] == [(408, "RequestTimeout")]
    assert peer.transport.disconnecting
    peer.connectionLost(Failure(ConnectionDone()))
    assert house.timers() == 0


def test_a_request_that_is_whole_in_its_time_leaves_no_timer_behind(house):
    peer = house.connect()
    peer.dataReceived(b"POST /id HT")
    peer.dataReceived(b"TP/1.1\r\nHost: ids\r\n\r\n")
    peer.dataReceived(post_ids(2)[:20])
    peer.dataReceived(post_ids(2)[20:])
    house.reactor.advance(11)
    assert [status for status, _ in answers(peer)] == [200, 200] and not peer.transport.disconnecting
    peer.connectionLost(Failure(ConnectionDone()))
    assert house.timers() == 0


def test_a_request_that_waits_for_ids_is_not_late(house):
    """Its time is for the peer to send it; the rest of it is ours."""
    peer = house.connect()
    peer.dataReceived(post_ids(100_000))
    house.reactor.rightNow += 11
    peer.dataReceived(post_ids(1))
    house.reactor.rightNow += 11
    while not (responses := answers(peer)):
        house.iterate()
    assert [status for status, _ in responses] == [200, 200] and not peer.transport.disconnecting


def test_tls_on_the_plain_port_is_named_and_closed(house):
    peer = house.connect()
    with capturedLogs() as lines:
        peer.dataReceived(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64))
    assert peer.transport.disconnecting and peer.transport.value() == b""
    assert ["TLS handshake" in formatEvent(line) for line in lines] == [True]
