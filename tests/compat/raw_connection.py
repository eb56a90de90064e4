"""A raw socket to a broker, for tests of half frames, unread answers, small buffers and arbitrary bytes."""

import socket
import struct

from broker.wire import fetch
from broker.wire.fetch import FetchPartition, FetchRequest
from broker.wire.frame import request_header
from tests.patience import SECONDS


class RawConnection:
    """A blocking socket. A small `receive_buffer` shrinks the kernel's window, so the broker soon sees a slow peer.

    `source` is the address that it connects from, such as "127.0.0.2": the broker's log counts lines by address.
    """

    def __init__(self, address, receive_buffer=None, source=None):
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = socket.socket(family)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if source:
            self.socket.bind((source, 0))
        self.socket.settimeout(SECONDS)
        self.socket.connect((host.strip("[]"), int(port)))
        self.name = "{}:{}".format(*self.socket.getsockname()[:2])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def read_exactly(self, size, chunk=1 << 16):
        data = bytearray()
        while len(data) < size:
            received = self.socket.recv(min(chunk, size - len(data)))
            assert received, f"it closed the connection after {len(data)} of {size} bytes"
            data += received
        return data

    def read_frame(self, chunk=1 << 16):
        """Return (correlation id, the rest of the frame)."""
        (size,) = struct.unpack(">i", self.read_exactly(4))
        frame = self.read_exactly(size, chunk)
        return int.from_bytes(frame[:4], "big"), memoryview(frame)[4:]

    def read_to_end(self):
        """Return all bytes until the broker closes or resets the connection."""
        data = b""
        try:
            while received := self.socket.recv(1 << 16):
                data += received
        except ConnectionResetError:
            pass
        return data


class SocketLine:
    """A connection over which a World (tests/broker/any_api.py) sends its requests."""

    def __init__(self, address):
        self._address = address
        self._connection = RawConnection(address)

    def another(self):
        return SocketLine(self._address)

    def send(self, frame):
        self._connection.socket.sendall(frame)

    def receive(self):
        size = int.from_bytes(self._connection.read_exactly(4), "big")
        return self._connection.read_exactly(size)

    def pause(self):
        """Do nothing, because each request to a real broker takes time anyway."""


def frame(api_key, version, correlation_id, body, client_id="raw", flexible=True):
    """Return a request frame with its length field."""
    message = request_header(api_key, version, correlation_id, client_id, flexible) + body
    return struct.pack(">i", len(message)) + message


def fetch_frame(correlation_id, topic, offset=0, max_bytes=1 << 20, version=12, client_id="raw"):
    """Return a Fetch of partition 0 that does not wait for data."""
    request = FetchRequest(0, 1, max_bytes, [FetchPartition(topic, 0, offset, max_bytes)])
    return frame(fetch.API_KEY, version, correlation_id, fetch.encode_request(version, request), client_id)


def fetched(body, version=12):
    """Return the single partition of a Fetch's answer, whose `body` comes from `read_frame`."""
    return fetch.decode_response(version, body, 1).partitions[0]
