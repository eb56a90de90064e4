"""What a connection to another broker writes, over a real socket whose polls the test makes."""

import socket
from uuid import UUID

import pytest
from twisted.internet.tcp import Connection

from broker.client.address import Address
from broker.net.peer_connection import PeerConnection
from broker.wire.fetch import FetchPartition
from tests.broker.net.peer_world import fetch
from tests.broker.net.polled_server import Reactor

SMALL = 16 * 1024  # the room of both sockets, about
TOPIC_ID = UUID(int=4)
MANY = 20_000  # partitions of a request that is larger


class Calls:
    """The owner of a connection, which hears nothing here."""

    def __init__(self):
        self.is_lost = False

    def lost(self, connection):
        self.is_lost = True

    def answered(self, call, response):
        pass


class Link:
    """A connection, and the socket of its peer."""

    def __init__(self):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            own = socket.socket()
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
            own.connect(listening.getsockname())
            self.peer, _ = listening.accept()
        own.setblocking(False)
        self._sockets = own, self.peer
        self.peer.settimeout(10)
        self.reactor, self.calls = Reactor(), Calls()
        self.connection = PeerConnection(self.reactor, "1", Address("127.0.0.1", 9002), lambda: None, self.calls)
        self.transport = Connection(own, self.connection, self.reactor)
        self.transport.connected = True
        self.connection.makeConnection(self.transport)

    def read_frame(self):
        """Return a request that has arrived, while the reactor writes what waits."""
        return self._read(int.from_bytes(self._read(4), "big"))

    def _read(self, size):
        data = bytearray()
        while len(data) < size:
            self.reactor.poll()
            data += self.peer.recv(size - len(data))
        return bytes(data)

    def close(self):
        for end in self._sockets:
            end.close()


@pytest.fixture
def link():
    link = Link()
    yield link
    link.close()


def large():
    return fetch(partitions=[FetchPartition(TOPIC_ID, partition, 0, 1) for partition in range(MANY)])


def test_a_request_that_the_socket_takes_leaves_at_once_and_no_reactor_watches_for_it(link):
    link.connection.send(fetch())
    assert link.reactor.writers == {} and link.peer.recv(1 << 16)


def test_requests_that_the_socket_does_not_take_leave_in_order_as_the_peer_reads(link):
    for call in (large(), fetch(), large(), fetch()):
        link.connection.send(call)
    assert link.transport in link.reactor.writers
    sizes = [len(link.read_frame()) for _ in range(4)]
    assert sizes[0] == sizes[2] > SMALL * 4 > sizes[1] == sizes[3]
    link.reactor.poll()
    assert link.reactor.writers == {}


def test_a_request_to_a_peer_that_has_gone_is_told_of_by_the_reactor(link):
    link.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    link.peer.close()
    link.connection.send(fetch())
    link.connection.send(fetch())
    link.reactor.poll()
    assert link.calls.is_lost
