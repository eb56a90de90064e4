"""Connections of TLS in a server without a network. A descriptor is called on events only, as epoll does it."""

from types import SimpleNamespace

import pytest

from broker.net.tls import ListenerTls
from broker.net.tls_handshake import HandshakeTurns
from broker.net.tls_socket import WRITE_BYTES
from broker.net.tls_transport import TlsTransport
from broker.net.transport import CLOSE_WAIT_SECONDS, NullProtocol
from broker.security.handshakes import HandshakeFigures
from broker.security.tls_config import TlsConfig
from tests.broker.engine_client import METADATA, PRODUCE, EngineClient, produce_request
from tests.broker.net.polled_server import PolledServer, Socket
from tests.broker.net.tls_pair import AUTHORITY, TlsClient
from tests.broker.net.tls_records import ClientRecords, logged_context


@pytest.fixture
def worlds():
    """Return a function that makes a world of settings; it is stopped after the test."""
    made = []
    yield lambda **settings: made.append(PolledServer(**settings)) or made[-1]
    for world in made:
        world.stop()


class TlsPeer:
    """One connection of TLS to a polled server, after its handshake."""

    def __init__(self, world, *early, context=None):
        """`early` are requests that arrive together with the client's last bytes of the handshake."""
        issued = AUTHORITY.issue("broker")
        config = TlsConfig(
            ssl_keystore_type="PEM",
            ssl_keystore_key=issued.key_pem(),
            ssl_keystore_certificate_chain=issued.chain_pem(),
        )
        self.log = []
        tls = ListenerTls("SSL", config, self.log.append, "use TLS", wall_ms=lambda: 0)
        turns = HandshakeTurns(world.reactor, world.broker.services.config, self.log.append, HandshakeFigures())
        server = SimpleNamespace(broker=world.server, listener="SSL", _realPortNumber=9092, tls=tls, handshakes=turns)
        self._world = world
        self.socket = Socket()
        self.tls = TlsClient(self.socket, context)
        self.transport = TlsTransport(self.socket, NullProtocol(), ("10.0.0.7", 50_000), server, 0, world.reactor)
        self.transport.startReading()
        self.client = EngineClient(world.broker, self.transport.conn, "test", True)
        while not self.tls.shake_hands():
            self.tls.deliver()
            self.settle()
        self.early = self.write(*early)
        self.settle()
        turns.stop()

    def write(self, *requests):
        """Send requests in one record each, all of which arrive at once."""
        frames = [self.client.frame(*request) for request in requests]
        for _, data in frames:
            self.tls.write(data)
        self.tls.deliver()
        return [correlation_id for correlation_id, _ in frames]

    def answered(self):
        self.client.received += self.tls.read()
        return self.client.answered()

    def read_slowly(self, room_bytes):
        """Give the socket room for so many bytes, again and again, until the server has nothing left to send."""
        while self.transport in self._world.reactor.writers:
            self.socket.room_bytes = room_bytes
            self.settle()
            assert self.socket.sent, "it stands still"
            self.client.received += self.tls.read()

    def settle(self):
        """Handle events and timers that are due until none are left."""
        reactor = self._world.reactor
        while self._has_event() or reactor.polls_again or reactor.getDelayedCalls() and self._is_due():
            reactor.polls_again = False
            if self.socket.incoming and self.transport in reactor.readers:
                reactor._close_after(self.transport, self.transport.doRead())
            if self.socket.room_bytes != 0 and self.transport in reactor.writers:
                reactor._close_after(self.transport, self.transport.doWrite())
            for call in reactor._after_events:
                call()
            self._world.wait(0)

    def _has_event(self):
        reactor = self._world.reactor
        is_readable = self.socket.incoming and self.transport in reactor.readers
        return is_readable or self.socket.room_bytes != 0 and self.transport in reactor.writers

    def _is_due(self):
        reactor = self._world.reactor
        return min(call.getTime() for call in reactor.getDelayedCalls()) <= reactor.seconds()


def asking():
    return METADATA, 1, {"topics": []}


def test_requests_that_came_together_are_all_answered(worlds):
    peer = TlsPeer(worlds())
    sent = peer.write(*[asking()] * 3_000)
    peer.settle()
    assert peer.answered() == sent


def test_requests_right_behind_the_handshake_need_no_event(worlds):
    """They lie in OpenSSL's memory, and the socket has no more bytes."""
    peer = TlsPeer(worlds(), *[asking()] * 100)
    assert peer.answered() == peer.early


def test_requests_right_behind_the_rest_of_a_large_one_need_no_event(worlds):
    """The rest of a large request is read into a buffer that has no room for more."""
    peer = TlsPeer(worlds())
    large, data = peer.client.frame(PRODUCE, 9, produce_request("flights", b"x" * 500_000))
    peer.tls.write(data[:-100])
    peer.tls.deliver()
    peer.settle()
    peer.tls.write(data[-100:])
    sent = [large, *peer.write(*[asking()] * 100)]
    peer.settle()
    assert peer.answered() == sent


def test_a_client_that_sends_only_key_updates_is_disconnected_and_the_log_says_why(worlds):
    context, directory = logged_context()
    peer = TlsPeer(worlds(), context=context)
    peer.socket.incoming.append(ClientRecords(peer.tls, directory).key_updates(100_000))
    peer.settle()
    assert peer.transport.disconnected
    reason = "it has sent 32768 bytes of TLS without a byte of a request in them"
    assert peer.log == [f"connection of 10.0.0.7:50000 to SSL closed: {reason}"]


def test_one_that_reads_no_answers_is_not_read_from_until_it_does(worlds):
    world = worlds(max_queued_bytes=1 << 16)
    peer = TlsPeer(world)
    peer.socket.room_bytes = 0
    sent = peer.write(*[asking()] * 9_000)
    peer.settle()
    assert peer.transport not in world.reactor.readers
    peer.read_slowly(10_000)
    assert peer.answered() == sent and peer.transport in world.reactor.readers


@pytest.mark.parametrize("room_bytes", [1_000, 20_000])
def test_a_slow_reader_gets_its_answers_whole(worlds, room_bytes):
    peer = TlsPeer(worlds())
    peer.socket.room_bytes = 0
    sent = peer.write(*[asking()] * 2_000)
    peer.settle()
    peer.read_slowly(room_bytes)
    assert peer.answered() == sent


def test_a_closed_connection_sends_its_answers_and_its_end_first(worlds):
    world = worlds()
    peer = TlsPeer(world)
    peer.socket.room_bytes = 1_000
    sent = peer.write(*[asking()] * 500)
    peer.settle()
    peer.tls.write(b"\x7f\xff\xff\xff")  # announces a frame that is too large
    peer.tls.deliver()
    peer.settle()
    assert peer.transport.disconnecting and not peer.transport.disconnected
    peer.socket.room_bytes = None
    peer.settle()
    assert peer.transport.disconnected
    assert peer.answered() == sent
    assert peer.tls.tls.read(1) == b"", "close_notify"


def test_a_closed_connection_whose_peer_takes_no_answers_ends_after_five_seconds(worlds):
    world = worlds()
    peer = TlsPeer(world)
    peer.socket.room_bytes = 0
    peer.write(*[asking()] * 500)
    peer.tls.write(b"\x7f\xff\xff\xff")
    peer.tls.deliver()
    peer.settle()
    world.wait(CLOSE_WAIT_SECONDS * 1_000 - 1)
    assert not peer.transport.disconnected
    world.wait(1)
    world.wait(0)
    assert peer.transport.disconnected


def test_a_slow_reader_has_no_more_than_one_piece_of_ciphertext(worlds):
    peer = TlsPeer(worlds())
    peer.socket.room_bytes = 0
    peer.write(*[asking()] * 9_000)
    peer.settle()
    assert peer.transport.socket.is_blocked
    assert 0 < len(peer.transport.socket._unsent) < WRITE_BYTES + 16 * 1024
