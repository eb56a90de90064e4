"""SHELL (blocking sockets, waiting): the Network port over TCP."""

import socket
import struct
import time
from contextlib import suppress

from spark_bridge.reading.network import Address, Connection

CONNECT_SECONDS_MAX = 10.0  # Kafka's socket.connection.setup.timeout.ms
ANSWER_SECONDS_MAX = 30.0  # Kafka's request.timeout.ms
FRAME_BYTES_MAX = 256 << 20
"""A fetch may exceed its limit by one batch (KIP-74); a frame larger than this is not Kafka's protocol."""

_LENGTH = struct.Struct(">i")


class SocketNetwork:
    """A Network of blocking TCP connections."""

    def connect(self, address: Address) -> Connection:
        try:
            sock = socket.create_connection(address, timeout=CONNECT_SECONDS_MAX)
        except OSError as error:
            raise ConnectionError(f"{address} cannot be reached: {error}") from error
        sock.settimeout(ANSWER_SECONDS_MAX)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return SocketConnection(sock, address)

    def pause(self, ms: int) -> None:
        time.sleep(ms / 1000)


class SocketConnection:
    """Frames over one socket. Each answer has a separate buffer, because Arrow may keep views of it."""

    def __init__(self, sock: socket.socket, address: Address) -> None:
        self._socket = sock
        self._address = address

    def send(self, frame: bytes) -> None:
        self._socket.sendall(_LENGTH.pack(len(frame)) + frame)

    def receive(self) -> memoryview:
        (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if not 0 <= size <= FRAME_BYTES_MAX:
            raise ConnectionError(f"{self._address} sent a frame of {size} bytes, at most {FRAME_BYTES_MAX} are taken")
        return self._exactly(size)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()

    def _exactly(self, size: int) -> memoryview:
        view = memoryview(bytearray(size))
        got = 0
        while got < size:
            number = self._socket.recv_into(view[got:])
            if not number:
                raise ConnectionError(f"{self._address} closed the connection after {got} of {size} bytes")
            got += number
        return view
