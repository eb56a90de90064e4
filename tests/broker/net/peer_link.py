"""A connection to another broker, over a real socket whose polls the test makes."""

import socket

from twisted.internet.tcp import Connection

from broker.client.address import Address
from broker.net.peer_connection import PeerConnection
from tests.broker.net.polled_server import Reactor

SMALL = 16 * 1024  # the room of both sockets, about


class Calls:
    """The owner of a connection, with the answers to its calls in order."""

    def __init__(self):
        self.is_lost = False
        self.responses = []

    def reached(self):
        pass

    def lost(self, connection):
        self.is_lost = True

    def answered(self, call, response):
        self.responses.append(response)


class Link:
    """A connection, and the socket of its peer."""

    def __init__(self):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            own = socket.socket()
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
            own.connect(listening.getsockname())
            self.peer, _ = listening.accept()
        own.setblocking(False)
        self.own = own
        self._sockets = own, self.peer
        self.peer.settimeout(10)
        self.reactor, self.calls = Reactor(), Calls()
        self.connection = PeerConnection(self.reactor, "1", Address("127.0.0.1", 9002), lambda: None, self.calls)
        self.transport = Connection(own, self.connection, self.reactor)
        self.transport.connected = True
        self.connection.makeConnection(self.transport)
        self.transport.startReading()

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
