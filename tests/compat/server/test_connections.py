"""Connections whose peers are slow, gone or too late, and timers when the wall clock steps.

Each meets back-pressure or a clear error, and nothing is kept for ever (rule 4 of CONTRIBUTING.md). A connection costs
a descriptor, its queued answers, and the segments that these answers hold open.
"""

import os
import select
import socket
import struct
import subprocess
import sys

import pytest

from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch
from broker.wire import fetch
from broker.wire.fetch import FetchPartition, FetchRequest
from tests.compat.raw_connection import RawConnection, fetch_frame, frame
from tests.compat.server_process import PYTHONPATH, ServerProcess
from tests.patience import SECONDS

TOPIC = "kept"


def batch_of(*values):
    return encode_batch([BatchRecord(n, 0, None, value, ()) for n, value in enumerate(values)], base_timestamp_ms=1)


def waiting_fetch(correlation_id, offset, max_wait_ms=60_000):
    request = FetchRequest(max_wait_ms, 1, 8 << 20, [FetchPartition(TOPIC, 0, offset, 8 << 20)])
    return frame(fetch.API_KEY, 12, correlation_id, fetch.encode_request(12, request))


def has_ended(connection):
    """Return True if the peer ended the connection, without reading the bytes before the end."""
    poller = select.poll()
    poller.register(connection.socket, 0)  # poll always reports hangups and errors
    return bool(poller.poll(SECONDS * 1000))


def test_a_silent_peer_that_leaves_its_answers_unread_is_closed_all_the_same(tmp_path):
    """Closing waits for queued answers, but not for ever."""
    with ServerProcess(tmp_path / "data", {"connections.max.idle.ms": 4_000}) as server:
        with Client(server.address) as client:
            client.create_topic(TOPIC)
            for _ in range(12):
                client.produce(TOPIC, 0, batch_of(bytes(900_000)))
        with RawConnection(server.address, 4096) as slow:
            slow.socket.sendall(fetch_frame(1, TOPIC, max_bytes=16 << 20))
            server.wait_for_log(f"connection of {slow.name} closed")
            assert has_ended(slow)


def test_a_peer_that_went_while_it_was_not_read_from_is_let_go_when_it_is_sent_to(tmp_path):
    """A failed send ends a dead peer's connection, because the server does not see its end while reading is paused."""
    settings = {
        "max.connections": 2,
        "flakelog.max.inflight.requests.per.connection": 1,
        "flakelog.max.queued.bytes.per.connection": 1 << 16,
    }
    with ServerProcess(tmp_path / "data", settings) as server, Client(server.address) as client:
        client.create_topic(TOPIC)
        with RawConnection(server.address) as gone:
            gone.socket.sendall(fetch_frame(1, TOPIC))
            gone.read_frame()
            gone.socket.sendall(waiting_fetch(2, 0))
            client.topics()
            gone.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.produce(TOPIC, 0, batch_of(bytes(100_000)))
        with Client(server.address) as another:
            assert len(another.topics()) == 1


def test_a_file_that_was_cut_under_its_reader_ends_that_connection_with_a_reason(tmp_path):
    with ServerProcess(tmp_path / "data") as server, Client(server.address) as bystander:
        bystander.create_topic(TOPIC)
        bystander.produce(TOPIC, 0, batch_of(b"x" * 1000))
        path = server.data_dir / f"{TOPIC}-0" / "00000000000000000000.log"
        os.truncate(path, 500)
        with RawConnection(server.address) as reader:
            reader.socket.sendall(fetch_frame(1, TOPIC))
            reader.read_to_end()
            assert "left of its file" in server.wait_for_log(f"connection of {reader.name} closed")
        assert len(bystander.topics()) == 1


TIMER = """
import time
wall, stepped_back = time.time, [0.0]
time.time = lambda: wall() - stepped_back[0]
from broker.net import reactor as fast
fast.install()
from twisted.internet import reactor
def step():
    stepped_back[0] = 3_600.0
    reactor.callLater(0, print, "next turn")
reactor.callLater(0.1, reactor.stop)
reactor.callWhenRunning(step)
reactor.run()
"""

FAULT = """
import sys
from twisted.logger import globalLogBeginner, textFileLogObserver
globalLogBeginner.beginLoggingTo([textFileLogObserver(sys.stdout)], redirectStandardIO=False, discardBuffer=True)
from broker.net import reactor as fast
fast.install()
from twisted.internet import reactor
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.internet.protocol import Factory, Protocol
class Faulty(Protocol):
    def dataReceived(self, data):
        reactor.callLater(0, reactor.stop)
        raise ZeroDivisionError
port = reactor.listenTCP(0, Factory.forProtocol(Faulty), interface="127.0.0.1")
connected = connectProtocol(TCP4ClientEndpoint(reactor, "127.0.0.1", port.getHost().port), Protocol())
connected.addCallback(lambda protocol: protocol.transport.write(b"x"))
reactor.run()
"""


LOOKS = """
import os, sys
processors, busy_poll_us = map(int, sys.argv[1:])
os.sched_getaffinity = lambda _: range(processors)
from broker.net import reactor as fast
fast.install(busy_poll_us)
from twisted.internet import reactor
class Poller:
    timeouts = []
    def __init__(self, poller):
        self.poller = poller
    def __getattr__(self, name):
        return getattr(self.poller, name)
    def poll(self, timeout, most):
        self.timeouts.append(timeout)
        return self.poller.poll(timeout, most)
reactor._poller = Poller(reactor._poller)
reactor.callWhenRunning(reactor.wakeUp)
reactor.callLater(0.1, reactor.stop)
reactor.run()
looks = sum(timeout == 0 for timeout in Poller.timeouts)  # a timer that is due has it look too, at most twice here
print("looks again" if looks > 2 else "sleeps at once", "and sleeps" if max(Poller.timeouts) > 0 else "")
"""


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="the fast reactor is epoll's")
@pytest.mark.parametrize(
    "processors, busy_poll_us, said",
    [(2, 9_000, "looks again and sleeps"), (2, 0, "sleeps at once and sleeps"), (1, 99, "sleeps at once and sleeps")],
)
def test_the_reactor_looks_again_before_it_sleeps_once_something_came(processors, busy_poll_us, said):
    """The reactor polls for flakelog.busy.poll.us before it sleeps, but not on one processor, which peers may need."""
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    argv = [sys.executable, "-c", LOOKS, str(processors), str(busy_poll_us)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.stdout.strip() == said, done.stderr


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="the fast reactor is epoll's")
@pytest.mark.parametrize("program, said", [(TIMER, "next turn"), (FAULT, "ZeroDivisionError")], ids=["clock", "fault"])
def test_the_reactors_timers_do_not_follow_the_wall_clock_and_its_faults_are_logged(program, said):
    """A wall clock that is set back does not delay timers, and a protocol's traceback is logged."""
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert said in done.stdout and done.returncode == 0, done.stderr
