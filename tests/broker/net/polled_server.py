"""A server without a network: the sockets and the reactor are simple objects in memory, and a test makes the polls.

`poll` does what the reactor does between two waits.
"""

from collections import deque
from itertools import count
from types import SimpleNamespace

from twisted.internet.task import Clock
from twisted.python.failure import Failure

from broker.net.server import BrokerServer
from broker.net.transport import KafkaTransport, NullProtocol
from tests.broker.engine_client import EngineBroker, EngineClient
from tests.broker.watched_storage import WatchedStorage
from tests.patience import until


class Reactor(Clock):
    """A reactor whose polls the test makes. `readers` and `writers` are the descriptors it watches."""

    def __init__(self):
        super().__init__()
        self.readers, self.writers = {}, {}
        self.polls_again = False
        self.handles_events = False
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
        self.handles_events = True
        for descriptor in [*self.readers]:
            self._close_after(descriptor, descriptor.doRead())
        for descriptor in [*self.writers]:
            self._close_after(descriptor, descriptor.doWrite())
        self.handles_events = False
        for call in self._after_events:
            call()

    def _close_after(self, descriptor, error):
        """End a descriptor whose event returned an error, as every reactor does."""
        if error is not None:
            self.removeReader(descriptor)
            self.removeWriter(descriptor)
            descriptor.connectionLost(Failure(error))


class Socket:
    """A socket that has received `incoming`. `room_bytes` may be sent, any number if it is None."""

    def __init__(self):
        self.incoming = deque()
        self.sent = bytearray()
        self.sends = 0
        self.room_bytes = None

    def recv_into(self, buffer, nbytes=0):
        if not self.incoming:
            raise BlockingIOError
        data = self.incoming.popleft()
        taken = min(nbytes or len(buffer), len(data))
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

    def sendmsg(self, buffers):
        return self.send(b"".join(buffers))

    def setblocking(self, flag):
        pass

    def setsockopt(self, *option):
        pass

    def getsockopt(self, *option):
        return 0

    def getsockname(self):
        return "127.0.0.1", 9092

    def fileno(self):
        return -1

    def shutdown(self, how):
        pass

    def close(self):
        pass


class TimedServer(BrokerServer):
    """A server whose time is the test's."""

    broker = None

    def now(self):
        return self.broker.now


class PolledServer:
    """A server over a broker in memory, and clients that write into its sockets."""

    def __init__(self, **settings):
        self.broker = EngineBroker(WatchedStorage(), **settings)
        self.broker.create("flights")
        self.reactor, self.closed = Reactor(), []
        self.server = TimedServer(self.reactor, None, self.closed.append, self.broker.services.config)
        self.server.broker = self.broker
        self.server.use(self.broker.engine)
        self.server.serve()

    def connect(self, listener=""):
        return Peer(self, listener)

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

    def stop(self):
        """Stop the server and its threads, which would keep the process from ending."""
        stopped = []
        self.server.stop().addBoth(stopped.append)
        until(lambda: self.wait(1) or self.poll() or stopped, what="the end of the server")

    def writes(self):
        return self.broker.storage.writes_of(self.broker, "flights")


class Peer:
    """One connection. `send` puts requests into its socket; `answered` returns the ids of the answers sent to it."""

    ports = count(50_000)

    def __init__(self, world, listener=""):
        self.socket = Socket()
        server = SimpleNamespace(broker=world.server, listener=listener, _realPortNumber=9092)
        address = ("10.0.0.7", next(self.ports))
        self.transport = KafkaTransport(self.socket, NullProtocol(), address, server, 0, world.reactor)
        self.transport.startReading()
        self.client = EngineClient(world.broker, self.transport.conn, "test", True)
        self._world = world

    def send(self, *requests):
        frames = [self.client.frame(*request) for request in requests]
        self.socket.incoming.append(b"".join(data for _, data in frames))
        return [correlation_id for correlation_id, _ in frames]

    def end(self):
        """Send nothing more, as a client does that closes its socket."""
        self.socket.incoming.append(b"")

    def answered(self):
        self.client.received += self.socket.sent
        self.socket.sent.clear()
        return self.client.answered()

    @property
    def is_read_from(self):
        return self.transport in self._world.reactor.readers
