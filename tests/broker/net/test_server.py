"""The shell without a network: the reads of one poll make one turn, and the engine says which connections to read.

Sockets and the reactor are simple objects in memory; `poll` does what the reactor does between two waits.
"""

from collections import deque
from itertools import count
from threading import Semaphore, current_thread
from types import SimpleNamespace

import pytest
from twisted.internet.task import Clock

from broker.log.validation.open_job import OpenTask
from broker.net.server import BrokerServer
from broker.net.transport import (
    JOINED_BYTES,
    RECEIVE_BUFFER_BYTES,
    RECEIVE_BYTES,
    KafkaTransport,
    NullProtocol,
    ReceiveBuffer,
)
from broker.record.compression import Codec
from tests.broker.engine.opening_world import large, small_budget
from tests.broker.engine_client import METADATA, PRODUCE, WALL_MS, EngineBroker, EngineClient, produce_request
from tests.broker.watched_storage import WatchedStorage
from tests.patience import until


class Reactor(Clock):
    """A reactor whose polls the test makes. `readers` and `writers` are the descriptors it watches."""

    def __init__(self):
        super().__init__()
        self.readers, self.writers = {}, {}
        self.polls_again = False
        self._after_events = []
        self._from_threads = deque()

    def after_events(self, call):
        self._after_events.append(call)

    def poll_again(self):
        self.polls_again = True

    def callFromThread(self, call, *arguments):
        self._from_threads.append((call, arguments))

    def addReader(self, descriptor):
        self.readers[descriptor] = None

    def removeReader(self, descriptor):
        self.readers.pop(descriptor, None)

    def addWriter(self, descriptor):
        self.writers[descriptor] = None

    def removeWriter(self, descriptor):
        self.writers.pop(descriptor, None)

    def poll(self):
        """Call the descriptors that are ready, and then those who wait for the end of the events."""
        self.polls_again = False
        while self._from_threads:
            call, arguments = self._from_threads.popleft()
            call(*arguments)
        for descriptor in [*self.readers]:
            descriptor.doRead()
        for descriptor in [*self.writers]:
            descriptor.doWrite()
        for call in self._after_events:
            call()


class Socket:
    """A socket that has received `incoming`. `room_bytes` may be sent, any number if it is None."""

    def __init__(self):
        self.incoming = deque()
        self.sent = bytearray()
        self.sends = 0
        self.room_bytes = None

    def recv_into(self, buffer):
        if not self.incoming:
            raise BlockingIOError
        data = self.incoming.popleft()
        taken = min(len(buffer), len(data))
        buffer[:taken] = data[:taken]
        if taken < len(data):
            self.incoming.appendleft(data[taken:])
        return taken

    def send(self, data, flags=0):
        taken = len(data) if self.room_bytes is None else min(len(data), self.room_bytes)
        if not taken:
            raise BlockingIOError
        if self.room_bytes is not None:
            self.room_bytes -= taken
        self.sends += 1
        self.sent += bytes(data[:taken])
        return taken

    def setblocking(self, flag):
        pass

    def setsockopt(self, *option):
        pass

    def fileno(self):
        return -1

    def close(self):
        pass


class TimedServer(BrokerServer):
    """A server whose time is the test's."""

    broker = None

    def now(self):
        return self.broker.now


class World:
    """A server over a broker in memory, and clients that write into its sockets."""

    def __init__(self, **settings):
        self.broker = EngineBroker(WatchedStorage(), **settings)
        self.broker.create("flights")
        self.reactor, self.closed = Reactor(), []
        self.server = TimedServer(self.reactor, None, self.closed.append, self.broker.services.config)
        self.server.broker = self.broker
        self.server.use(self.broker.engine)
        self.server.serve()

    def connect(self):
        return Peer(self)

    def poll(self):
        self.reactor.poll()

    def poll_until_idle(self):
        """Poll while the server has work left; return the number of polls."""
        polls = 1
        self.poll()
        while self.reactor.polls_again:
            self.poll()
            polls += 1
            assert polls < 10_000
        return polls

    def wait(self, ms):
        self.broker.now_ms += ms
        self.reactor.advance(ms / 1000)

    def writes(self):
        return self.broker.storage.writes_of(self.broker, "flights")


class Peer:
    """One connection. `send` puts requests into its socket; `answered` returns the ids of the answers sent to it."""

    ports = count(50_000)

    def __init__(self, world):
        self.socket = Socket()
        server = SimpleNamespace(broker=world.server, listener="", _realPortNumber=9092)
        address = ("10.0.0.7", next(self.ports))
        self.transport = KafkaTransport(self.socket, NullProtocol(), address, server, 0, world.reactor)
        self.transport.startReading()
        self.client = EngineClient(world.broker, self.transport.conn, "test", True)
        self._world = world

    def send(self, *requests):
        frames = [self.client.frame(*request) for request in requests]
        self.socket.incoming.append(b"".join(data for _, data in frames))
        return [correlation_id for correlation_id, _ in frames]

    def answered(self):
        self.client.received += self.socket.sent
        self.socket.sent.clear()
        return self.client.answered()

    @property
    def is_read_from(self):
        return self.transport in self._world.reactor.readers


@pytest.fixture
def worlds():
    """Return a function that makes a world of settings; it is stopped after the test."""
    made = []
    yield lambda **settings: made.append(World(**settings)) or made[-1]
    for world in made:
        world.server.stop()


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


# --- records that threads open -----------------------------------------------------------------------------------


def test_a_thread_opens_a_large_batch_and_the_connection_is_not_read_meanwhile(world, monkeypatch):
    small_budget(monkeypatch)
    threads = []
    run = OpenTask.run
    monkeypatch.setattr(OpenTask, "run", lambda task: threads.append(current_thread().name) or run(task))
    peer, other = world.connect(), world.connect()
    sent = peer.send((PRODUCE, 9, produce_request("flights", batch=large(count=2_500, codec=Codec.ZSTD))))
    other_sent = other.send(producing())
    world.poll()
    assert not peer.is_read_from and other.answered() == other_sent
    until(lambda: world.poll() or peer.answered() == sent, what="an answer")
    assert peer.is_read_from and threads == [threads[0]] and "open" in threads[0]


def test_a_server_stops_while_batches_wait_for_threads(monkeypatch):
    """Clients send unanswered batches again, so no thread opens another one."""
    small_budget(monkeypatch)
    world = World(open_threads=1)
    opened = []
    monkeypatch.setattr(OpenTask, "run", lambda task: opened.append(task) or entered.release() or go_on.acquire())
    entered, go_on = Semaphore(0), Semaphore(0)
    for _ in range(5):
        world.connect().send((PRODUCE, 9, produce_request("flights", batch=large(count=2_500))))
    world.poll()
    entered.acquire()
    stopped = []
    world.server.stop().addBoth(stopped.append)
    world.wait(1)  # the connections are closed in the reactor's next turn
    go_on.release()
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
