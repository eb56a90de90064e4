"""A TlsSocket over a socket in memory, and the client's end of it, which is Python's own `ssl.SSLObject`."""

import ssl
import tempfile
from contextlib import suppress
from pathlib import Path

from broker.net.tls_socket import TlsSocket
from flakelog.testing.authority import Authority
from tests.broker.net.polled_server import Socket

AUTHORITY = Authority()
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


def server_context():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    with tempfile.TemporaryDirectory() as directory:
        context.load_cert_chain(AUTHORITY.issue("broker").write_pem(Path(directory) / "broker.pem"))
    return context


def client_context(version=ssl.TLSVersion.TLSv1_3):
    context = ssl.create_default_context(cadata=AUTHORITY.pem())
    context.minimum_version = context.maximum_version = version
    return context


CONTEXT = server_context()


class TlsClient:
    """A client over the memory socket of a server. `wire` has the ciphertext that has not reached that socket yet."""

    def __init__(self, socket, context=None):
        self.socket = socket
        self.wire = bytearray()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = (context or client_context()).wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")

    def shake_hands(self):
        """Go on with the handshake; return True once it is over."""
        self._take()
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self.wire += self._outgoing.read()
        return True

    def write(self, data):
        self.tls.write(data)
        self.wire += self._outgoing.read()

    def end(self):
        with suppress(ssl.SSLError):
            self.tls.unwrap()
        self.wire += self._outgoing.read()

    def deliver(self, size=None):
        """Bring the first bytes of the wire to the server, all of them if `size` is None."""
        data = bytes(self.wire[:size])
        del self.wire[:size]
        if data:
            self.socket.incoming.append(data)

    def read(self):
        """Return the plain bytes that the server has sent. An error is an alert of it."""
        self._take()
        parts = []
        with suppress(ssl.SSLWantReadError):
            while data := self.tls.read(1 << 16):
                parts.append(data)
        return b"".join(parts)

    def _take(self):
        self._incoming.write(bytes(self.socket.sent))
        self.socket.sent.clear()


class TlsPair:
    """A TlsSocket whose handshake with a client has succeeded."""

    def __init__(self, version=ssl.TLSVersion.TLSv1_3, context=None):
        self.socket = Socket()
        self.server = TlsSocket(self.socket, CONTEXT)
        self.client = TlsClient(self.socket, context or client_context(version))
        is_over = False
        while not is_over:
            is_over = self.client.shake_hands()
            self.client.deliver()
            is_over = self.step() and is_over

    def step(self):
        """Let the server go on with the handshake. Return True once it is over."""
        try:
            self.server.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def receive_all(self):
        """Read on events of the socket, and while the server has more. Return the bytes of each read."""
        reads = []
        while self.socket.incoming or self.server.has_more:
            reads.append(self.receive())
        return [data for data in reads if data is not None]

    def receive(self, size=1 << 20):
        """Read once into a buffer of this size; None if nothing has come."""
        view = memoryview(bytearray(size))
        try:
            return bytes(view[: self.server.recv_into(view)])
        except BlockingIOError:
            return None
