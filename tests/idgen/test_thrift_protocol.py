"""idgen.server.ThriftProtocol on a transport in memory, with clocks that the test sets."""

import pytest
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import Logger, formatEvent

from coordination.memory import Ensemble, MemoryCoordinator
from idgen.clock import IdClock
from idgen.config import IdgenConfig
from idgen.server import BURST_BYTES, IdQueue, ThriftFactory
from idgen.service import IdService
from idgen.wire import Call, FrameDecoder, decode_reply, encode_call
from tests.idgen.driving import NOW, LookingClock, claim, settle


class Transport(StringTransport):
    """A transport that counts writes and, as TCP does, asks its producer to pause at 64 KiB unsent."""

    writes = 0

    def setTcpNoDelay(self, enabled):
        pass

    def write(self, data):
        self.writes += 1
        super().write(data)
        if self.producer and len(self.value()) > BURST_BYTES:
            self.producer.pauseProducing()

    def read(self):
        """Read all answers so far, as the peer."""
        frames = [decode_reply(f) for f in FrameDecoder(1 << 24).frames(self.value())]
        self.clear()
        return frames


class House:
    def __init__(self, reactor=None, **settings):
        self.reactor = reactor or Clock()
        self.clock = IdClock(self.wall_ns, self.wall_ns)
        held = settle(claim(), MemoryCoordinator(Ensemble()), NOW)
        self.service = IdService(held, IdgenConfig(**settings))
        self.line = IdQueue(self.service, self.clock, self.reactor)
        self.factory = ThriftFactory(self.service, self.line)

    def wall_ns(self):
        return NOW * 10**6 + int(self.reactor.seconds() * 1e9)

    def connect(self):
        protocol = self.factory.buildProtocol(None)
        protocol.makeConnection(Transport())
        return protocol


@pytest.fixture
def house():
    return House()


def get_ids(count, seqid=1):
    return encode_call(Call("get_ids", seqid, "agent", count))


def get_id(seqid):
    return encode_call(Call("get_id", seqid, "agent"))


def test_pipelined_calls_are_answered_in_order_by_one_write(house):
    peer = house.connect()
    peer.dataReceived(b"".join(get_id(n) for n in range(100)) + get_id(100)[:7])
    assert peer.transport.writes == 1
    replies = peer.transport.read()
    assert [reply.seqid for reply in replies] == list(range(100))
    assert [reply.value for reply in replies] == sorted({reply.value for reply in replies})
    peer.dataReceived(get_id(100)[7:])
    assert peer.transport.read()[0].seqid == 100


def test_a_call_that_must_wait_for_the_clock_waits_by_timer_and_keeps_its_place(house):
    peer, other = house.connect(), house.connect()
    house.service.claim.worker.next_ids(house.service.claim.worker.max_batch, NOW)
    peer.dataReceived(get_ids(5000, seqid=1) + get_id(2) + encode_call(Call("get_timestamp", 3)))
    assert peer.transport.read() == []
    assert peer.transport.producerState == "paused"
    other.dataReceived(encode_call(Call("get_timestamp", 7)))
    assert other.transport.read()[0].seqid == 7
    house.reactor.advance(0.001)
    house.reactor.advance(0.001)
    assert [reply.seqid for reply in peer.transport.read()] == [1, 2, 3]
    assert peer.transport.producerState == "producing"


def test_a_peer_that_does_not_read_is_not_answered_further_and_not_read_from(house):
    """With Thrift's TTwisted such a peer left 1.73 M replies unread, RSS 35 -> 174 MB."""
    peer = house.connect()
    peer.dataReceived(b"".join(get_ids(5000, seqid=n) for n in range(100)))
    unread = len(peer.transport.value())
    assert unread < BURST_BYTES + 5000 * 8 + 100
    assert peer.transport.producerState == "paused"
    seen = []
    while replies := peer.transport.read():
        seen += [reply.seqid for reply in replies]
        peer.resumeProducing()
    assert seen == list(range(100))
    assert peer.transport.producerState == "producing"


def test_garbage_closes_that_connection_after_what_came_before_it_was_answered(house):
    peer, other = house.connect(), house.connect()
    peer.dataReceived(get_id(1) + b"GET / HTTP/1.0\r\n\r\n")
    assert [reply.seqid for reply in peer.transport.read()] == [1]
    assert peer.transport.disconnecting
    other.dataReceived(get_id(2))
    assert other.transport.read()[0].seqid == 2


def test_one_connection_too_many_is_closed_and_a_freed_place_is_taken():
    house = House(ids_max_connections=2)
    first, _, third = house.connect(), house.connect(), house.connect()
    assert third.transport.disconnecting or third.transport.disconnected
    third.connectionLost()
    first.connectionLost()
    fourth = house.connect()
    fourth.dataReceived(get_id(1))
    assert len(fourth.transport.read()) == 1


def test_a_connection_lost_while_it_waits_leaves_no_timer(house):
    peer = house.connect()
    house.service.claim.worker.next_ids(house.service.claim.worker.max_batch, NOW)
    peer.dataReceived(get_id(1))
    assert house.reactor.getDelayedCalls()
    peer.connectionLost()
    assert not house.reactor.getDelayedCalls()


def test_who_asks_for_one_id_beside_a_flood_waits_one_turn_and_not_its_calls(house):
    """A turn gives one millisecond's ids; the flood has the 24 turns that it needs afterwards."""
    house.service.claim.worker.next_ids(house.service.claim.worker.max_batch, NOW)
    flood, small = house.connect(), house.connect()
    flood.dataReceived(b"".join(get_ids(100_000, seqid=n) for n in range(5)))
    small.dataReceived(get_id(1))
    turns = 0
    while not small.transport.value():
        house.reactor.advance(0.001)
        turns += 1
    assert turns == 2
    assert flood.transport.value() == b""
    for _ in range(25):
        house.reactor.advance(0.001)
    assert [reply.seqid for reply in flood.transport.read()] == [0]
    assert house.service.counters.waits == 2


def test_between_two_looks_at_everything_else_all_connections_together_are_answered_so_much():
    """The same process also serves a log, which waits for at most 100 calls at a time."""
    house = House(LookingClock(), ids_look_calls=100)
    floods = [house.connect() for _ in range(10)]
    for flood in floods:
        flood.dataReceived(b"".join(get_id(n) for n in range(150)))
    issued = [house.service.counters.ids]
    while issued[-1] < 1_500:
        house.reactor.iterate()
        issued.append(house.service.counters.ids)
    assert issued == [100 * iterations for iterations in range(1, 16)]
    for flood in floods:
        assert [reply.seqid for reply in flood.transport.read()] == list(range(150))
        assert flood.transport.producerState == "producing"


def test_who_comes_while_others_wait_for_the_next_look_is_answered_after_them():
    house = House(LookingClock(), ids_look_calls=100)
    flood, small = house.connect(), house.connect()
    flood.dataReceived(b"".join(get_id(n) for n in range(250)))
    small.dataReceived(get_id(7))
    served = []
    while not small.transport.value():
        house.reactor.iterate()
        served.append(len(flood.transport.read()))
    assert served == [200, 50]


def test_who_comes_while_others_wait_for_ids_does_not_pass_them_even_where_there_are_some_by_then(house):
    house.service.claim.worker.next_ids(house.service.claim.worker.max_batch, NOW)
    first, late = house.connect(), house.connect()
    first.dataReceived(get_ids(4_096))
    house.reactor.rightNow += 0.003  # the queue's timer is late
    late.dataReceived(get_id(7))
    assert late.transport.read() == []
    house.reactor.advance(0)
    [before], [after] = first.transport.read(), late.transport.read()
    assert before.value[-1] < after.value


def test_a_peer_that_has_said_all_it_will_has_its_answers_before_it_is_closed(house):
    """`printf ... | nc -N` sends its calls and closes its sending side immediately."""
    house.service.claim.worker.next_ids(house.service.claim.worker.max_batch, NOW)
    peer = house.connect()
    peer.dataReceived(encode_call(Call("get_timestamp", 1)) + get_ids(5_000, 2) + get_id(3))
    peer.readConnectionLost()
    assert not peer.transport.disconnecting
    house.reactor.advance(0.001)
    house.reactor.advance(0.001)
    assert [reply.seqid for reply in peer.transport.read()] == [1, 2, 3]
    assert peer.transport.disconnecting
    assert not house.reactor.getDelayedCalls()


def test_a_peer_that_ended_and_does_not_read_is_closed_when_it_has_read(house):
    peer = house.connect()
    peer.dataReceived(b"".join(get_ids(5000, seqid=n) for n in range(20)))
    peer.readConnectionLost()
    seen = []
    while replies := peer.transport.read():
        assert not peer.transport.disconnecting
        seen += [reply.seqid for reply in replies]
        peer.resumeProducing()
    assert seen == list(range(20)) and peer.transport.disconnecting


def test_a_peer_that_ends_with_nothing_asked_is_closed_immediately(house):
    peer = house.connect()
    peer.dataReceived(get_id(1)[:9])
    peer.readConnectionLost()
    assert peer.transport.disconnecting


def test_a_peer_that_does_not_read_gives_its_place_in_the_line_up(house):
    house.service.claim.worker.next_ids(house.service.claim.worker.max_batch, NOW)
    deaf, other = house.connect(), house.connect()
    deaf.dataReceived(b"".join(get_ids(4_096, seqid=n) for n in range(100)))
    other.dataReceived(b"".join(get_ids(4_096, seqid=n) for n in range(100)))
    for _ in range(300):
        house.reactor.advance(0.001)
        other.transport.read()
        other.resumeProducing()
    assert deaf.transport.producerState == "paused"
    assert len(deaf.transport.value()) <= BURST_BYTES + 4_096 * 8 + 100
    assert other.transport.producerState == "producing"  # because all its calls are answered


@pytest.mark.parametrize("connections_max", [100, 1])
def test_broken_peers_and_refused_ones_have_one_line_a_minute_and_then_their_number(monkeypatch, connections_max):
    house, lines = House(ids_max_connections=connections_max), []
    logger = Logger(observer=lambda event: lines.append(formatEvent(event)))
    monkeypatch.setattr(ThriftFactory, "log", logger)
    peers = [house.connect() for _ in range(2)]
    for peer in peers[:connections_max]:
        peer.dataReceived(b"\xff" * 64)
    house.connect()
    for _ in range(48):
        peer = house.connect()
        if connections_max > 1:
            peer.dataReceived(b"\xff" * 64)
    assert len(lines) == 1 and "ids: " in lines[0]
    house.reactor.advance(61)
    assert len(lines) == 2 and "more such lines in the last minute" in lines[1]
