"""The shell without a network: the reads of one poll make one turn, and the engine says which connections to read."""

from threading import Semaphore, current_thread
from types import SimpleNamespace

import cramjam
import pytest

from broker.membership.calls import FetchCall
from broker.net.peers import PeerConnections
from broker.net.transport import (
    CLOSE_WAIT_SECONDS,
    JOINED_BYTES,
    RECEIVE_BUFFER_BYTES,
    RECEIVE_BYTES,
    ReceiveBuffer,
)
from broker.record.compression import Codec
from broker.security.sasl.config import sasl_of
from broker.security.sasl.listeners import SaslListeners
from broker.wire.fetch import FetchResponse
from tests.broker.engine.opening_world import large, small_budget
from tests.broker.engine_client import FETCH, METADATA, PRODUCE, WALL_MS, fetch_request, produce_request
from tests.broker.net.polled_server import PolledServer
from tests.partition_manager.managers import calls_of
from tests.patience import until


@pytest.fixture
def worlds():
    """Return a function that makes a world of settings; it is stopped after the test."""
    made = []
    yield lambda **settings: made.append(PolledServer(**settings)) or made[-1]
    for world in made:
        world.stop()


@pytest.fixture
def world(worlds):
    return worlds()


def producing(value=b"x"):
    return PRODUCE, 9, produce_request("flights", value)


def asking():
    return METADATA, 1, {"topics": []}


# --- turns -----------------------------------------------------------------------------------------------------------


def test_what_is_read_in_one_poll_is_one_turn(world):
    peers = [world.connect() for _ in range(5)]
    sent = [peer.send(producing(), producing()) for peer in peers]
    before = world.writes()
    world.poll()
    assert [peer.answered() for peer in peers] == sent
    assert world.writes() == before + 1


class OtherBroker:
    """A connection to another broker, whose answer is read in each poll."""

    def __init__(self, world):
        self.peers = PeerConnections(world.reactor, 1, lambda call, response: None, world.closed.append)
        world.server.join(SimpleNamespace(serve=lambda core, turn: None), self.peers)
        world.reactor.addReader(self)

    def doRead(self):
        self.peers.answered(FetchCall(2, None), FetchResponse())


def test_the_answer_of_another_broker_is_part_of_the_turn_of_its_poll(world):
    """Each turn has a fixed cost, and its appends share a write."""
    before_it = world.connect()
    OtherBroker(world)
    peers = [before_it, world.connect()]
    sent = [peer.send(producing()) for peer in peers]
    before = world.writes()
    world.poll()
    assert [peer.answered() for peer in peers] == sent
    assert world.writes() == before + 1


def test_an_answer_that_a_timer_reports_is_a_turn_of_its_own(world):
    """The reactor may sleep after its timers, as when a connection cannot be made."""
    other, peer = OtherBroker(world), world.connect()
    sent = peer.send(producing())
    peer.transport.doRead()
    world.reactor.callLater(0, other.peers.answered, FetchCall(2, None), None)
    world.wait(0)
    assert peer.answered() == sent


def test_a_turn_ends_before_the_receive_buffer_has_no_room_for_a_read(world):
    """Its bytes were executed or copied then, and its memory is used again."""
    values = [bytes([number]) * 200_000 for number in range(12)]
    peers = [world.connect() for _ in values]
    sent = [peer.send(producing(value)) for peer, value in zip(peers, values, strict=True)]
    readers = [*world.reactor.readers]
    for number, descriptor in enumerate(readers[:4]):
        assert peers[0].socket.sends == 0, f"{number} reads"
        descriptor.doRead()
    assert [peer.answered() for peer in peers[:4]] == sent[:4]
    world.poll()
    assert [peer.answered() for peer in peers[4:]] == sent[4:]
    assert values == world.broker.connect().fetch("flights", max_bytes=1 << 24)


# --- clients that wait for their turn to log in -------------------------------------------------------------------


def logins(**settings):
    """Return the settings of a broker whose clients of the listener LOGINS have to log in."""
    given = {"sasl.enabled.mechanisms": "SCRAM-SHA-256"}
    listeners = {"LOGINS": sasl_of("LOGINS", given)}
    sasl = SaslListeners(given, listeners, b"secret", lambda: "nonce", lambda line: None)
    return {"membership": {"sasl": sasl}, **settings}


def test_clients_that_wait_for_their_login_cost_a_turn_nothing(worlds):
    """A turn looked at each of them, so that a storm of 10,000 held the reactor up for seconds."""
    world = worlds(**logins(authentications_max=2, authentications_max_per_address=2))
    peers = [world.connect("LOGINS") for _ in range(100)]
    world.poll()
    world.server.turn()
    assert calls_of(world.server.turn) < 50
    assert [peer.is_read_from for peer in peers[:3]] == [True, True, False]


def test_a_client_that_waited_for_its_login_is_read_from_once_another_has_gone(worlds):
    world = worlds(**logins(authentications_max=1))
    first, second = world.connect("LOGINS"), world.connect("LOGINS")
    world.poll()
    world.server.turn()
    assert first.is_read_from and not second.is_read_from
    first.end()
    world.poll()
    world.wait(0)
    world.poll()
    assert second.is_read_from


def test_what_is_read_lies_one_after_the_other_in_the_receive_buffer():
    buffer = ReceiveBuffer()
    first = buffer.room
    buffer.room[:3] = b"one"
    buffer.room = buffer.room[3:]
    buffer.room[:3] = b"two"
    assert bytes(first[:6]) == b"onetwo" and len(buffer.room) == RECEIVE_BUFFER_BYTES - 3 > RECEIVE_BYTES
    buffer.clear()
    assert len(buffer.room) == RECEIVE_BUFFER_BYTES


def test_a_large_request_is_read_into_memory_of_its_own(world):
    """It takes no room from the others."""
    peer, other = world.connect(), world.connect()
    value = bytes(range(256)) * 3_500
    sent = peer.send(producing(value))
    data = peer.socket.incoming.popleft()
    peer.socket.incoming.extend(data[start : start + 100_000] for start in range(0, len(data), 100_000))
    world.poll()
    before = len(world.server.receive_buffer.room)
    peer.transport.doRead()
    assert len(world.server.receive_buffer.room) == before
    while peer.socket.incoming:
        sent_by_other = other.send(producing())
        world.poll()
        assert other.answered() == sent_by_other
    assert peer.answered() == sent
    assert value in world.broker.connect().fetch("flights", max_bytes=1 << 24)


# --- peers that close ------------------------------------------------------------------------------------------------


def unanswered(value, **more):
    return PRODUCE, 9, produce_request("flights", value, acks=0, **more)


def poll_until_closed(world, peer):
    until(lambda: world.poll() or peer.transport.conn.close_reason is not None, what="the end of the connection")


def test_all_it_sent_before_it_closed_is_executed(world):
    """With acks=0 a producer counts a message as delivered when it is sent."""
    peer = world.connect()
    values = [b"%d" % number for number in range(200)]
    peer.send(*map(unanswered, values))
    peer.end()
    poll_until_closed(world, peer)
    assert world.broker.connect().fetch("flights", max_bytes=1 << 24) == values
    assert not peer.is_read_from


def test_a_large_batch_is_opened_and_written_although_its_producer_closed(world, monkeypatch):
    small_budget(monkeypatch)
    peer, reader = world.connect(), world.broker.connect()
    batch = large(count=2_500, codec=Codec.ZSTD)
    peer.send((PRODUCE, 9, produce_request("flights", batch=batch, acks=0)), unanswered(b"behind it"))
    peer.end()
    poll_until_closed(world, peer)
    assert len(reader.fetch("flights", max_bytes=1 << 24)) == 2_501


def test_a_request_that_came_in_part_ends_with_its_peer(world):
    peer = world.connect()
    peer.send(producing(b"whole"), producing(b"cut"))
    peer.socket.incoming[0] = peer.socket.incoming[0][:-1]
    peer.end()
    poll_until_closed(world, peer)
    assert world.broker.connect().fetch("flights") == [b"whole"]


def test_a_request_that_waits_ends_with_its_peer(world):
    peer = world.connect()
    peer.send((FETCH, 12, fetch_request("flights", max_wait_ms=500)))
    world.poll_until_idle()
    peer.end()
    poll_until_closed(world, peer)
    assert len(world.broker.services.purgatory) == 0


# --- paused connections ----------------------------------------------------------------------------------------------


def test_one_with_a_large_backlog_is_not_read_from_until_it_is_executed(world):
    peer = world.connect()
    sent = peer.send(*[producing(bytes(1_000))] * 200)
    later = peer.send(*[producing()] * 10)
    world.poll()
    assert not peer.is_read_from and world.reactor.polls_again
    assert 0 < len(found := peer.answered()) < 200
    world.poll_until_idle()
    assert peer.is_read_from
    world.poll_until_idle()
    assert found + peer.answered() == sent + later


def test_others_are_answered_in_each_poll_meanwhile(world):
    flooder, peer = world.connect(), world.connect()
    sent = flooder.send(*[producing(bytes(1_000))] * 500)
    world.poll()
    for _ in range(50):
        asked = peer.send(asking())
        world.poll()
        assert peer.answered() == asked
    world.poll_until_idle()
    assert flooder.answered() == sent


def test_one_that_waits_for_ids_is_read_from_again_when_it_was_answered(worlds):
    world = worlds(max_ahead_ms=0)
    peer, other = world.connect(), world.connect()
    world.wait(1)
    world.broker.worker.next_ids(4_096, WALL_MS + world.broker.now_ms)
    sent = peer.send(producing(), asking())
    world.poll()
    assert not peer.is_read_from and peer.answered() == []
    asked = other.send(asking())
    world.poll_until_idle()
    assert other.answered() == asked and not world.reactor.polls_again, "it sleeps until there are ids"
    world.wait(2)
    world.poll_until_idle()
    assert peer.answered() == sent and peer.is_read_from


def test_one_that_reads_no_answers_is_not_read_from_until_it_does(worlds):
    world = worlds(max_queued_bytes=1 << 16)
    peer = world.connect()
    peer.socket.room_bytes = 0
    sent = peer.send(*[asking()] * 3_000)
    world.poll_until_idle()
    assert not peer.is_read_from and not peer.socket.sent
    for _ in range(100):
        peer.socket.room_bytes = 10_000
        world.poll_until_idle()
    assert peer.answered() == sent and peer.is_read_from


# --- answers to a slow reader ----------------------------------------------------------------------------------------


def test_small_answers_to_a_slow_reader_are_joined_to_large_pieces(world):
    peer = world.connect()
    peer.socket.room_bytes = 0
    sent = []
    for _ in range(50):
        sent += peer.send(*[asking()] * 100)
        world.poll_until_idle()
    peer.socket.room_bytes = None
    world.poll()
    size = len(peer.socket.sent)
    assert peer.answered() == sent
    assert peer.socket.sends <= 2 + size // JOINED_BYTES


@pytest.mark.parametrize("taken_bytes", (0, 1_000))
def test_a_closed_connection_whose_peer_takes_no_answers_frees_its_place_after_five_seconds(worlds, taken_bytes):
    world = worlds(max_connections=1)
    slow = world.connect()
    slow.socket.room_bytes = taken_bytes
    slow.send(*[asking()] * 100)
    world.poll_until_idle()
    slow.socket.incoming.append(b"\x7f\xff\xff\xff")  # announces a frame that is too large
    world.poll_until_idle()
    assert not slow.is_read_from and len(slow.socket.sent) == taken_bytes
    world.wait(CLOSE_WAIT_SECONDS * 1_000 - 1)
    assert slow.transport in world.reactor.writers
    world.wait(1)
    other = world.connect()
    sent = other.send(asking())
    world.poll_until_idle()
    assert other.answered() == sent


# --- records that threads open -----------------------------------------------------------------------------------


def test_a_thread_opens_a_large_batch_and_the_connection_is_not_read_meanwhile(world, monkeypatch):
    small_budget(monkeypatch)
    threads = []
    unpack = cramjam.zstd.decompress_into
    monkeypatch.setattr(
        cramjam.zstd, "decompress_into", lambda *data: threads.append(current_thread().name) or unpack(*data)
    )
    peer, other = world.connect(), world.connect()
    sent = peer.send((PRODUCE, 9, produce_request("flights", batch=large(count=2_500, codec=Codec.ZSTD))))
    other_sent = other.send(producing())
    world.poll()
    assert not peer.is_read_from and other.answered() == other_sent
    until(lambda: world.poll() or peer.answered() == sent, what="an answer")
    assert peer.is_read_from and threads and all("open" in name for name in threads)


def test_a_server_stops_while_batches_wait_for_threads(monkeypatch):
    """Clients send unanswered batches again, so no thread opens another one."""
    small_budget(monkeypatch)
    world = PolledServer(open_threads=1)
    opened = set()
    unpack = cramjam.zstd.decompress_into

    def unpack_slowly(data, out):  # the size of the output is guessed, so one batch may need several calls
        opened.add(bytes(data))
        entered.release()
        go_on.acquire()
        return unpack(data, out)

    monkeypatch.setattr(cramjam.zstd, "decompress_into", unpack_slowly)
    entered, go_on = Semaphore(0), Semaphore(0)
    for number in range(5):
        batch = large(b"batch %d" % number, count=2_500, codec=Codec.ZSTD)
        world.connect().send((PRODUCE, 9, produce_request("flights", batch=batch)))
    world.poll()
    entered.acquire()
    stopped = []
    world.server.stop().addBoth(stopped.append)
    world.wait(1)  # the connections are closed in the reactor's next turn
    go_on.release(100)
    until(lambda: world.poll() or stopped, what="the end")
    assert len(opened) == 1 and world.broker.services.log_of("flights", 0).log_end_offset == 0


def test_connections_over_a_limit_have_one_line_a_minute_and_then_their_number(worlds):
    world = worlds(max_connections=1)
    kept = world.connect()
    refused = [world.connect() for _ in range(50)]
    world.wait(1)
    assert len(world.closed) == 1 and "max.connections is 1" in world.closed[0]
    world.wait(61_000)
    assert len(world.closed) == 2 and f"{len(refused) - 1} more such lines in the last minute" in world.closed[1]
    kept.send(asking())
    world.poll_until_idle()
    assert kept.answered()


def test_the_limits_of_connections_hide_no_line_about_a_broken_peer(worlds):
    world = worlds(max_connections=1)
    broken = world.connect()
    world.connect(), world.connect()
    world.wait(1)
    broken.socket.incoming.append(b"\x7f\xff\xff\xff")
    world.poll_until_idle()
    assert len(world.closed) == 2 and "socket.request.max.bytes" in world.closed[1]
