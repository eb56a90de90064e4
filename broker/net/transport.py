"""SHELL (sockets): Twisted's TCP server connection with the reads and writes a broker needs.

Reading: `recv_into` a buffer that all connections of a turn share, or straight into the rest of a large frame.
Writing: at once, as far as the socket takes it; the rest waits in one queue of bytes and file regions, in order, and
regions leave by `sendfile`. Each connection gets a byte budget a turn, so a fast reader of old data does not delay the
others. A worker thread reads a region first that is not cached: only its connection waits for the disk.

Private names of Twisted relied on: `Connection.doRead`, `doWrite`, `_postLoseConnection`, `Port.transport`,
`Port._preexistingSocket`, `Port._buildAddr`, `Port._logger` and the fields of its events
(tests/broker/net/test_transport.py holds them to be there).
"""

import os
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from twisted.internet import main, tcp
from twisted.internet.address import UNIXAddress
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.logger import ILogObserver, Logger

from broker.address import LOCAL_HOST, host_port
from broker.channel.connection import Connection
from broker.log.storage.page_cache import is_in_memory, read_now, read_now_into
from broker.log.storage.port import StorageError
from broker.settings.config import BrokerConfig
from broker.wire.frame import FileRegion, Part, RegionDescriptor, size_of

RECEIVE_BYTES = 256 * 1024  # room for one read
RECEIVE_BUFFER_BYTES = 1 << 20  # most bytes that a turn receives, besides large frames, which have separate buffers
TURN_BYTES = 4 << 20  # most bytes one connection sends in a turn
READ_AHEAD_BYTES = 4 << 20  # a worker thread reads at least this, because a reader of old data continues
NEXT_BYTES = 64 * 1024  # behind a region: the next Fetch looks for a batch there
JOINED_BYTES = 64 * 1024  # small answers to a slow reader are joined to pieces of this size
PREAD_BYTES = 128 * 1024  # below it one copy and one send are cheaper than a sendfile
CLOSE_WAIT_SECONDS = 5  # time for the peer to take the queued bytes when its connection is closed

_MSG_MORE = getattr(socket, "MSG_MORE", 0)


class ReceiveBuffer:
    """The bytes that connections receive in one turn, one after the other, so that none are copied."""

    __slots__ = ("room", "_whole")

    def __init__(self) -> None:
        self._whole = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self.room = self._whole
        """Where the next read puts its bytes; the turn ends when that is less than RECEIVE_BYTES."""

    def clear(self) -> None:
        """All requests of the turn were executed, or copied."""
        self.room = self._whole


class Broker(Protocol):
    """The port of the transport to its server."""

    receive_buffer: ReceiveBuffer

    def connected(self, transport: "KafkaTransport", peer: str, listener: str) -> Connection: ...

    def secured(self, conn: Connection, user: str | None) -> None: ...

    def received(self, conn: Connection, data: memoryview) -> None: ...

    def drained(self, conn: Connection, sent_bytes: int) -> None: ...

    def read_ahead(self, region: FileRegion, done: Callable[[], None]) -> None: ...

    def broken(self, conn: Connection, reason: str) -> None: ...

    def ended(self, transport: "KafkaTransport") -> bool: ...

    def disconnected(self, conn: Connection) -> None: ...

    def closed_at_once(self, host: str, port: int) -> None: ...

    def cannot_accept(self, port: "KafkaPort", error: str) -> None: ...


class ShortFile(Exception):
    """The file was cut inside a region, so the promised bytes cannot be sent."""


class KafkaTransport(tcp.Server):
    """An accepted connection."""

    def __init__(
        self, sock: socket.socket, protocol: Any, client: Any, server: Any, session: int, reactor: Any
    ) -> None:
        super().__init__(sock, protocol, client, server, session, reactor)
        self.setTcpNoDelay(True)
        self._queue: deque[Part | memoryview] = deque()
        self._paused = False
        self._reading_ahead = False
        self._was_read = False
        self._has_ended = False
        self._abort_later: Any = None
        self._broker: Broker = server.broker
        self._receive_buffer = self._broker.receive_buffer
        self.conn = self._broker.connected(self, host_port(client[0], client[1]), server.listener)

    # --- reading -------------------------------------------------------------------------------------------------

    def doRead(self) -> Exception | None:  # type: ignore[override]
        conn, shared = self.conn, self._receive_buffer
        buffer = shared.room if conn.decoder.partial is None else conn.decoder.wanted() or shared.room
        try:
            size = self.socket.recv_into(buffer)
        except BlockingIOError:
            return None
        except OSError:
            return main.CONNECTION_LOST
        if size == 0:
            return self._end()
        if buffer is shared.room:
            shared.room = buffer[size:]
        self._broker.received(conn, buffer[:size])
        return None

    def _end(self) -> Exception | None:
        """Read nothing more, and stay open while requests of the peer are left: those of acks=0 count as sent."""
        if not self._broker.ended(self):
            return main.CONNECTION_DONE
        self._has_ended = True
        self.stopReading()
        return None

    def pause_unless_readable(self) -> bool:
        """Stop or start reading as the connection says; True while it is paused."""
        wants_data = self.conn.wants_data
        if wants_data == self._paused and not self.disconnecting and not self._has_ended:
            self._paused = not wants_data
            (self.startReading if wants_data else self.stopReading)()
        return self._paused

    # --- writing -------------------------------------------------------------------------------------------------

    def send(self, parts: list[Part]) -> int:
        """Send in order. Return the number of bytes if all were sent at once.

        Otherwise return 0: the rest is sent when the socket has room, and `drained` reports it.
        """
        if self._queue:
            self._enqueue(parts)
            return 0
        data = parts[0] if len(parts) == 1 else _joined(parts)
        if isinstance(data, FileRegion):
            self._queue.extend(parts)
            self._read_ahead(FileRegion(data.file, data.position, data.length + NEXT_BYTES))
            return 0
        if data is None:
            self._queue.extend(parts)
            if self._write() is not None:
                # While reading is paused no descriptor is watched, so no event would report the closed connection.
                self.abortConnection()
            return 0
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.abortConnection()
            return 0
        if sent == len(data):
            return sent
        self._queue.append(memoryview(data)[sent:])
        if sent:
            self._broker.drained(self.conn, sent)
        self.startWriting()
        return 0

    def _enqueue(self, parts: list[Part]) -> None:
        """Queue parts behind those that wait. Small answers are joined: one send each would take a reader's turn."""
        queue = self._queue
        for part in parts:
            last = queue[-1]
            if isinstance(part, FileRegion) or len(part) > JOINED_BYTES:
                queue.append(part)
            elif isinstance(last, bytearray) and len(last) < JOINED_BYTES:
                last += part
            else:
                queue.append(bytearray(part))

    def doWrite(self) -> Exception | None:  # type: ignore[override]
        error = self._write()
        if error is None and not self._queue and self.disconnecting:
            error = self._postLoseConnection()
        return error

    def _write(self) -> Exception | None:
        """Send as much as the socket takes, and ask to be called again for the rest.

        Return the exception if the peer has closed the connection.
        """
        if self._reading_ahead:
            self.stopWriting()
            return None
        try:
            sent = self._drain()
        except (ShortFile, StorageError) as error:
            self._broker.broken(self.conn, str(error))
            self.abortConnection()
            return None
        except OSError:
            return main.CONNECTION_LOST
        if sent:
            self._broker.drained(self.conn, sent)
        if (self._queue or self.disconnecting) and not self._reading_ahead:
            self.startWriting()
        else:
            self.stopWriting()
        return None

    def _drain(self) -> int:
        """Send from the queue until it is empty, the socket is full or the turn is over; return the bytes sent."""
        queue = self._queue
        total = 0
        while queue and total < TURN_BYTES:
            part = queue[0]
            try:
                if isinstance(part, FileRegion):
                    sent = self._send_region(part, TURN_BYTES - total)
                else:
                    sent = self._send_bytes(part)
            except BlockingIOError:
                break
            total += sent
        return total

    def _send_bytes(self, data: bytes | bytearray | memoryview) -> int:
        queue = self._queue
        more = _MSG_MORE if len(queue) > 1 else 0
        sent = self.socket.send(data, more)
        if sent == len(data):
            queue.popleft()
        else:
            queue[0] = memoryview(data)[sent:]
        return sent

    def _send_region(self, region: FileRegion, budget: int) -> int:
        if region.length == 0:
            self._queue.popleft()
            return 0
        at = region.file.descriptor()
        if at is None or region.length <= PREAD_BYTES:
            return self._send_small(region, at)
        wanted = min(region.length, budget)
        if not self._was_read and not is_in_memory(at.fd, region.position, wanted + NEXT_BYTES):
            self._read_ahead(FileRegion(region.file, region.position, max(wanted + NEXT_BYTES, READ_AHEAD_BYTES)))
            raise BlockingIOError
        sent = os.sendfile(self.fileno(), at.fd, region.position, wanted)
        self._was_read = False
        if sent == 0:
            raise ShortFile(f"a region of {region.length} bytes is past the end of its file")
        if sent == region.length:
            self._queue.popleft()
        else:
            self._queue[0] = FileRegion(region.file, region.position + sent, region.length - sent)
        return sent

    def _send_small(self, region: FileRegion, at: RegionDescriptor | None) -> int:
        data: bytes | bytearray | None = None
        if at is not None and not self._was_read:
            data = read_now(at.fd, region.position, region.length)
            if data is None:
                self._read_ahead(FileRegion(region.file, region.position, region.length + NEXT_BYTES))
                raise BlockingIOError
        if data is None:
            data = region.file.read(region.position, region.length)
        self._was_read = False
        if len(data) < region.length:
            raise ShortFile(f"{len(data)} bytes of a region of {region.length} are left of its file")
        self._queue[0] = data
        return self._send_bytes(data)

    def _read_ahead(self, region: FileRegion) -> None:
        self._reading_ahead = True
        self._broker.read_ahead(region, self._read)

    def _read(self) -> None:
        """Send the next region, which a worker thread has read. Do not check the cache again: it may have dropped
        it."""
        self._reading_ahead, self._was_read = False, True
        if self._queue and self._write() is not None:
            self.abortConnection()

    # --- closing -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Send the queue, then close; abort if the peer does not take it in CLOSE_WAIT_SECONDS."""
        self.stopReading()
        self.loseConnection()
        if self._abort_later is None:
            self._abort_later = self.reactor.callLater(CLOSE_WAIT_SECONDS, self.abortConnection)

    def connectionLost(self, reason: Any) -> None:
        self._queue.clear()
        if self._abort_later is not None and self._abort_later.active():
            self._abort_later.cancel()
        self._broker.disconnected(self.conn)
        super().connectionLost(reason)


def _joined(parts: list[Part]) -> bytearray | FileRegion | None:
    """Join a small answer for one send; return a region of it that is not cached, or None if it is large."""
    size = size_of(parts)
    if size > PREAD_BYTES:
        return None
    joined = bytearray(size)
    view, at = memoryview(joined), 0
    for part in parts:
        if isinstance(part, FileRegion):
            end = at + part.length
            try:
                file = part.file.descriptor()
            except StorageError:
                return None  # sending the region meets it again
            if file is None:
                return None
            if not read_now_into(file.fd, part.position, view[at:end]):
                return part
        else:
            end = at + len(part)
            view[at:end] = part
        at = end
    return joined


class KafkaPort(tcp.Port):
    """A listening port whose connections are KafkaTransports of one broker; `listener` is its name."""

    transport = KafkaTransport  # type: ignore[assignment]  # Twisted types it as Server itself

    def __init__(
        self, port: int, factory: Any, config: BrokerConfig, interface: str, reactor: Any, broker: Broker, listener: str
    ) -> None:
        super().__init__(port, factory, config.socket_listen_backlog_size, interface, reactor)
        self.broker = broker
        self.listener = listener
        self._config = config
        # Without it Twisted writes a line for each connection.
        self._logger = Logger("broker.accept", observer=cast(ILogObserver, self._not_accepted))

    def bind(self) -> None:
        """Take the address without listening, so that the system refuses connections until `listen`.

        Raise CannotListenError.
        """
        bound = self.createInternetSocket()
        try:
            host, family = self.interface or None, self.addressFamily
            bound.bind(socket.getaddrinfo(host, self.port, family, flags=socket.AI_PASSIVE)[0][4])
        except OSError as error:
            bound.close()
            raise CannotListenError(self.interface, self.port, error) from error
        self._preexistingSocket = bound
        self.startListening()
        self.stopReading()

    def listen(self) -> None:
        """Take connections, after `bind`. Raise CannotListenError if another process has begun to listen meanwhile."""
        try:
            self.socket.listen(self.backlog)
        except OSError as error:
            raise CannotListenError(self.interface, self.getHost().port, error) from error
        self.startReading()

    def _not_accepted(self, event: Mapping[str, Any]) -> None:
        """Tell the server of a connection that Twisted closed because no descriptor is left, or could not accept."""
        if "address" in event:
            self.broker.closed_at_once(*event["address"][:2])
        elif "acceptError" in event:
            self.broker.cannot_accept(self, event["acceptError"])

    def createInternetSocket(self) -> socket.socket:
        """Set the buffer sizes, which accepted sockets inherit; a receive buffer is sized before the connection
        exists."""
        made: socket.socket = super().createInternetSocket()
        config = self._config
        if config.socket_send_buffer_bytes > 0:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.socket_send_buffer_bytes)
        if config.socket_receive_buffer_bytes > 0:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.socket_receive_buffer_bytes)
        return made


class LocalTransport(KafkaTransport):
    """An accepted connection of a LocalPort. Its peer, which has no address, is "local" and a number."""

    def __init__(
        self, sock: socket.socket, protocol: Any, client: Any, server: Any, session: int, reactor: Any
    ) -> None:
        super().__init__(sock, protocol, (LOCAL_HOST, session), server, session, reactor)

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Do nothing, because a unix socket delays nothing."""


class LocalPort(KafkaPort):
    """A listening unix socket, made by its owner."""

    transport = LocalTransport

    def __init__(
        self, listening: socket.socket, factory: Any, config: BrokerConfig, reactor: Any, broker: Broker, listener: str
    ) -> None:
        super().__init__(0, factory, config, "", reactor, broker, listener)
        self._preexistingSocket = listening

    def _buildAddr(self, address: object) -> UNIXAddress:
        return UNIXAddress(None)


class NullProtocol(TwistedProtocol):
    """A protocol that does nothing, because Twisted wants one for each connection and the engine is ours."""
