"""Limits on connections and on the memory of requests, of a real server."""

import resource
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from twisted.internet import reactor
from twisted.internet.protocol import Factory

from broker.client.blocking import Client
from broker.net.transport import KafkaPort, NullProtocol
from broker.settings.config import BrokerConfig
from tests.compat.raw_connection import RawConnection
from tests.compat.server_process import ServerProcess
from tests.patience import SECONDS, until

SYSTEM_DOUBLES = 2  # Linux doubles the size for its bookkeeping: socket(7), SO_SNDBUF


def test_one_address_has_so_many_connections_and_the_log_says_why(tmp_path):
    with ServerProcess(tmp_path / "data", {"max.connections.per.ip": 2}) as server:
        with RawConnection(server.address), RawConnection(server.address), RawConnection(server.address) as third:
            assert third.socket.recv(1) == b""
            server.wait_for_log("it has 2 connections already (max.connections.per.ip)")


def test_a_listener_has_limits_of_its_own(tmp_path):
    settings = {
        "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "listener.name.outside.max.connections": 1,
    }
    with ServerProcess(tmp_path / "data", settings) as server:
        outside = server.addresses["broker.OUTSIDE"]
        with RawConnection(outside), RawConnection(outside) as second, RawConnection(server.address):
            assert second.socket.recv(1) == b""
            server.wait_for_log("listener.name.outside.max.connections is 1")
            with Client(server.address) as client:
                client.topics()


def test_connections_past_the_rate_are_served_later_not_refused(tmp_path):
    with ServerProcess(tmp_path / "data", {"max.connection.creation.rate": 10}) as server:
        begin = time.monotonic()
        for _ in range(18):
            with Client(server.address) as client:
                client.topics()
        assert time.monotonic() - begin > 0.5


def test_a_connection_waits_for_the_memory_of_another_and_then_goes_on(tmp_path):
    with ServerProcess(tmp_path / "data", {"queued.max.request.bytes": 1_000}) as server:
        with RawConnection(server.address) as half, Client(server.address) as client:
            half.socket.sendall((90_000_000).to_bytes(4, "big") + bytes(400_000))
            client.create_topic("small")  # arrives whole, so it claims no memory
            other = RawConnection(server.address)
            other.socket.sendall((5_000_000).to_bytes(4, "big") + bytes(100))
            other.socket.settimeout(0.3)
            with pytest.raises(TimeoutError):
                other.socket.sendall(bytes(40_000_000))
            half.socket.close()
            other.socket.settimeout(SECONDS)
            with pytest.raises(ConnectionError):
                other.socket.sendall(bytes(40_000_000))  # the server reads it now and finds no valid request
            other.socket.close()


def test_sockets_have_the_buffers_and_the_backlog_that_are_set():
    config = BrokerConfig(
        socket_send_buffer_bytes=65_536, socket_receive_buffer_bytes=32_768, socket_listen_backlog_size=7
    )
    port = KafkaPort(0, Factory.forProtocol(NullProtocol), config, "127.0.0.1", reactor, None, "PLAINTEXT")
    made = port.createInternetSocket()
    with made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) in (65_536, SYSTEM_DOUBLES * 65_536)
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) in (32_768, SYSTEM_DOUBLES * 32_768)
    assert port.backlog == 7


def test_connections_without_a_descriptor_left_are_closed_with_one_line_and_come_in_again_later(tmp_path):
    with ServerProcess(tmp_path / "data") as server, Client(server.address) as bystander, ExitStack() as stack:
        bystander.topics()
        own = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
        soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (own + 5, hard))
        peers = [stack.enter_context(RawConnection(server.address)) for _ in range(40)]
        assert peers[-1].socket.recv(1) == b""
        assert bystander.topics() is not None
        until(lambda: "descriptor" in server.log_since(0), what="the line")
        lines = [line for line in server.log_since(0).splitlines() if "descriptor" in line]
        assert len(lines) == 1 and "raise its limit" in lines[0]
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (soft, hard))
        with Client(server.address) as other:
            assert other.topics() is not None
