"""idgen.http_port: connections on a transport in memory, in front of a twisted.web site."""

import json

import pytest
from twisted.internet.task import Clock
from twisted.web.resource import Resource
from twisted.web.server import Site

from coordination.memory import Ensemble, MemoryCoordinator
from idgen.clock import IdClock
from idgen.config import IdgenConfig
from idgen.http import SmallSite
from idgen.http_hosts import EVERY_HOST
from idgen.http_port import HttpFactory
from idgen.server import IdQueue, ThriftFactory
from idgen.service import IdService
from idgen.wire import Call, encode_call
from tests.idgen.driving import NOW, claim, settle
from tests.idgen.test_thrift_protocol import Transport

POST_ID = b"POST /id HTTP/1.1\r\nHost: ids\r\n\r\n"
OTHER = b"GET /other HTTP/1.1\r\nHost: ids\r\n\r\n"


class Echo(Resource):
    """A resource that returns the request's method, its URI, and the length of its body."""

    isLeaf = True

    def render(self, request):
        return b"%b %b %d" % (request.method, request.uri, len(request.content.read()))


class House:
    def __init__(self, connections_max=10):
        self.reactor = Clock()
        clock = IdClock(self.wall_ns, self.wall_ns)
        held = settle(claim(), MemoryCoordinator(Ensemble()), NOW)
        self.service = IdService(held, IdgenConfig())
        line = IdQueue(self.service, clock, self.reactor)
        self.sites = 0
        self.factory = HttpFactory(
            self.service, line, self.reactor, self.make_site, connections_max=connections_max, idle_ms=60_000
        )
        self.thrift = ThriftFactory(self.service, line)

    def wall_ns(self):
        return NOW * 10**6 + int(self.reactor.seconds() * 1e9)

    def make_site(self):
        self.sites += 1
        return Site(Echo(), reactor=self.reactor)

    def connect(self, factory=None):
        protocol = (factory or self.factory).buildProtocol(None)
        protocol.makeConnection(Transport())
        return protocol


@pytest.fixture
def house():
    return House()


def bodies(peer):
    """Return the bodies of the answers so far, which all have a Content-Length."""
    data, contents = peer.transport.value(), []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        [length] = [int(line[16:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length: ")]
        contents.append(data[:length])
        data = data[length:]
    peer.transport.clear()
    return contents


def test_ids_are_given_without_the_site(house):
    peer = house.connect()
    peer.dataReceived(POST_ID + POST_ID[:7])
    peer.dataReceived(POST_ID[7:])
    ids = [json.loads(body)["id"] for body in bodies(peer)]
    assert len(ids) == 2 and ids[0] < ids[1]
    assert house.sites == 0


def test_the_first_other_request_and_what_follows_it_are_the_sites(house):
    peer, second = house.connect(), house.connect()
    peer.dataReceived(POST_ID + OTHER + b"POST /x HTTP/1.1\r\nContent-Length: 3\r\n\r\nab")
    peer.dataReceived(b"c" + POST_ID)
    first, *others = bodies(peer)
    assert b"id_str" in first
    assert others == [b"GET /other 0", b"POST /x 3", b"POST /id 0"]
    second.dataReceived(OTHER)
    assert bodies(second) == [b"GET /other 0"] and house.sites == 1


@pytest.mark.parametrize(
    "request_, body",
    [
        (b"HEAD /id HTTP/1.1\r\n\r\n", None),
        (b"POST /id HTTP/1.0\r\n\r\n", b"POST /id 0"),
        (b"POST /id HTTP/1.1\r\nConnection: close\r\n\r\n", b"POST /id 0"),
        (b"POST /id HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", b"POST /id 2"),
        (b"POST /id HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nab", b"POST /id 2"),
        (b"POST /id HTTP/1.1\r\nX: \x00\r\n\r\n", None),
    ],
)
def test_what_means_more_is_understood_by_the_site_as_if_it_had_been_there_always(house, request_, body):
    peer, plain = house.connect(), House()
    alone = plain.make_site().buildProtocol(None)
    transport = Transport()
    alone.makeConnection(transport)
    for at in range(0, len(request_), 5):
        peer.dataReceived(request_[at : at + 5])
    alone.dataReceived(request_)
    outputs = [
        [line for line in connection.value().split(b"\r\n") if b"Date: " not in line]
        for connection in (peer.transport, transport)
    ]
    assert outputs[0] == outputs[1]
    assert peer.transport.disconnecting == transport.disconnecting
    assert body is None or outputs[0][-1] == body or body in outputs[0][-1]


def test_a_peer_that_does_not_read_is_not_answered_further_and_not_read_from(house):
    peer = house.connect()
    peer.dataReceived(POST_ID * 2_000)
    unread = len(peer.transport.value())
    assert unread < 70_000 and peer.transport.producerState == "paused"
    answered = 0
    while answers := bodies(peer):
        answered += len(answers)
        peer.resumeProducing()
        house.reactor.advance(0)
    assert answered == 2_000 and peer.transport.producerState == "producing"


def test_who_waits_for_ids_waits_in_one_line_with_those_who_ask_by_thrift(house):
    house.service.claim.worker.next_ids(house.service.claim.worker.max_batch, NOW)
    flood, peer = house.connect(house.thrift), house.connect()
    flood.dataReceived(encode_call(Call("get_ids", 1, "flood", 100_000)) * 3)
    peer.dataReceived(POST_ID + OTHER)
    house.reactor.advance(0.001)
    assert peer.transport.value() == b""
    house.reactor.advance(0.001)
    assert [body[:5] for body in bodies(peer)] == [b'{"id"', b"GET /"]
    assert flood.transport.value() == b""


def test_a_connection_too_many_is_closed_and_those_on_which_nothing_comes_are_in_time():
    house = House(connections_max=1)
    peer, refused = house.connect(), house.connect()
    assert refused.transport.disconnected or refused.transport.disconnecting
    refused.connectionLost()
    peer.dataReceived(POST_ID)
    house.reactor.advance(60)
    assert not peer.transport.disconnecting
    house.reactor.advance(60)
    assert peer.transport.disconnecting
    peer.connectionLost()
    assert not house.reactor.getDelayedCalls()


def test_all_connections_are_closed_when_a_server_stops_and_what_was_answered_is_sent(house):
    plain, sites = house.connect(), house.connect()
    plain.dataReceived(POST_ID)
    sites.dataReceived(OTHER)
    house.factory.close_connections()
    assert plain.transport.disconnecting and sites.transport.disconnecting
    assert len(bodies(plain)) == len(bodies(sites)) == 1


def test_a_peer_that_has_said_all_it_will_has_its_answers_before_it_is_closed(house):
    for requests, answered in ((POST_ID, 1), (POST_ID + OTHER, 2), (OTHER, 1), (b"", 0)):
        peer = house.connect()
        peer.dataReceived(requests)
        peer.readConnectionLost()
        assert len(bodies(peer)) == answered and peer.transport.disconnecting


def test_a_connection_of_the_sites_is_closed_by_the_sites_own_time(house):
    peer = house.connect()
    peer.dataReceived(OTHER)
    house.reactor.advance(59)
    assert not peer.transport.disconnecting
    house.reactor.advance(1)
    assert peer.transport.disconnecting
    peer.connectionLost("gone")


# --- heads that are too long ------------------------------------------------------------------------------------------

LONG = b"GET /" + b"a" * 60_000


def site_connection(house):
    site = SmallSite(Echo(), EVERY_HOST, idle_ms=60_000, request_ms=10_000, reactor=house.reactor)
    house.make_site = lambda: site
    house.factory._make_site = house.make_site
    return house.connect()


def send_in_pieces(peer, data, size):
    for at in range(0, len(data), size):
        peer.dataReceived(data[at : at + size])


@pytest.mark.parametrize("size", [1_000, 16_384, 100_000])
@pytest.mark.parametrize("before", [b"", OTHER])
def test_a_path_that_is_too_long_is_answered_414_before_the_connection_is_closed(house, size, before):
    """RFC 9110, section 15.5.15. It is answered once all of it has come, so that no reset takes the answer away."""
    peer = site_connection(house)
    peer.dataReceived(before)
    peer.transport.clear()
    send_in_pieces(peer, LONG + b" HTTP/1.1\r\nHost: ids\r\n", size)
    assert not peer.transport.value() and not peer.transport.disconnecting
    for byte in b"\r\n":
        peer.dataReceived(bytes([byte]))
    head, _, body = peer.transport.value().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 414 URI Too Long\r\n") and b"Connection: close" in head
    assert json.loads(body)["error"] == "URITooLong"
    assert peer.transport.disconnecting


def test_a_header_that_is_too_long_is_answered_431(house):
    """RFC 6585, section 5."""
    peer = site_connection(house)
    peer.dataReceived(b"GET /x HTTP/1.1\r\nHost: ids\r\nX: " + b"a" * 20_000 + b"\r\n\r\n")
    assert peer.transport.value().startswith(b"HTTP/1.1 431 ") and peer.transport.disconnecting


def test_a_path_without_end_is_answered_after_a_megabyte_and_what_follows_is_dropped(house):
    peer = site_connection(house)
    send_in_pieces(peer, b"GET /" + b"a" * (2 << 20), 1 << 16)
    assert peer.transport.value().startswith(b"HTTP/1.1 414 ") and peer.transport.value().count(b"HTTP/1.1") == 1
    assert peer.transport.disconnecting


def test_a_path_that_is_too_long_and_stops_is_closed_in_time(house):
    peer = site_connection(house)
    peer.dataReceived(LONG)
    house.reactor.advance(10)
    assert peer.transport.value().startswith(b"HTTP/1.1 408 ") and peer.transport.disconnecting
