"""Connections that do not speak Kafka, are silent or too many: the server closes them and serves the other clients."""

import resource
from contextlib import ExitStack, suppress

import pytest
from confluent_kafka import KafkaError, Producer

from broker.client.blocking import Client
from tests.compat.raw_connection import RawConnection, fetch_frame, frame
from tests.compat.served_data import TOPIC
from tests.compat.server_process import ServerProcess
from tests.patience import until

STRANGERS = {
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), "a TLS handshake"),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "an HTTP request"),
    "an SSH greeting": (b"SSH-2.0-OpenSSH_9.6\r\n", "an SSH greeting"),
    "garbage": (bytes(range(255, 0, -1)), "bytes"),
    "zeros": (bytes(1024), "bytes"),
    "an oversized frame": (b"\x7f\xff\xff\xff", "socket.request.max.bytes"),
    "an unknown API": (frame(9999, 0, 1, b""), "API key 9999"),
    "an unknown version": (frame(1, 99, 1, b""), "v99"),
    "a Fetch cut short": (fetch_frame(1, TOPIC)[:3] + b"\x14" + fetch_frame(1, TOPIC)[4:24], "Fetch"),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_what_is_not_kafka_is_named_with_its_peer_and_the_others_are_served_on(broker, kind):
    data, reason = STRANGERS[kind]
    source = f"127.0.1.{1 + list(STRANGERS).index(kind)}"
    with Client(broker.address) as bystander, RawConnection(broker.address, source=source) as stranger:
        bystander.topics()
        stranger.socket.sendall(data)
        line = broker.wait_for_log(f"connection of {stranger.name} closed")
        assert reason in line
        stranger.read_to_end()
        assert bystander.topics() is not None


def test_an_address_of_many_broken_peers_has_one_line_in_the_log(broker):
    mark = broker.mark()
    for _ in range(50):
        with RawConnection(broker.address, source="127.0.2.1") as stranger:
            stranger.socket.sendall(b"\xff" * 4)
            stranger.read_to_end()
    with RawConnection(broker.address, source="127.0.2.2") as last:
        last.socket.sendall(b"\xff" * 4)
        broker.wait_for_log(f"connection of {last.name} closed")
    assert broker.log_since(mark).count("connection of 127.0.2.1:") == 1


def test_a_client_set_up_for_sasl_is_refused_as_by_kafka_and_the_operator_is_told(broker):
    told = []
    sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "a"}
    sasl |= {"sasl.password": "b", "error_cb": told.append, "log_level": 0}
    producer = Producer({"bootstrap.servers": broker.address} | sasl)
    until(lambda: [producer.poll(0.05)] and told)
    assert told[0].code() == KafkaError._AUTHENTICATION and "current SASL state" in told[0].str()
    assert "security.protocol=PLAINTEXT" in broker.wait_for_log("it asks for SASL")


def test_silence_is_closed_after_connections_max_idle_ms(tmp_path):
    begun = b"", b"\x00", b"\x00\x00\x01\x00\x00\x01"  # the last is half a frame
    with ServerProcess(tmp_path / "data", {"connections.max.idle.ms": 4_000}) as server, ExitStack() as stack:
        sources = [f"127.0.1.{number}" for number in range(1, 4)]
        silent = [stack.enter_context(RawConnection(server.address, source=source)) for source in sources]
        for connection, data in zip(silent, begun):
            connection.socket.sendall(data)
        for connection, data in zip(silent, begun):
            assert connection.read_to_end() == b""
            line = server.wait_for_log(f"connection of {connection.name} closed")
            assert "connections.max.idle.ms" in line
            assert ("in the middle of a frame" in line) == bool(data)
        with Client(server.address) as client:
            client.topics()


def test_one_connection_more_than_max_connections_is_closed_and_the_others_stay(tmp_path):
    with ServerProcess(tmp_path / "data", {"max.connections": 2}) as server:
        with Client(server.address) as first, Client(server.address) as second:
            assert first.topics() == second.topics()
            with RawConnection(server.address) as third:
                assert third.read_to_end() == b""
                assert "max.connections is 2" in server.wait_for_log(f"connection of {third.name} closed")
            assert first.topics() == second.topics()


def test_a_frame_that_the_server_has_no_memory_for_closes_its_connection_only(tmp_path):
    """`ulimit -v` limits a process so; a container's limit ends it instead."""
    with ServerProcess(tmp_path / "data") as server, Client(server.address) as bystander:
        bystander.topics()
        limit = (server.status("VmSize") << 10) + (40 << 20)
        resource.prlimit(server.pid, resource.RLIMIT_AS, (limit, limit))
        with RawConnection(server.address) as large:
            with suppress(OSError):
                large.socket.sendall((90 << 20).to_bytes(4, "big") + bytes(90 << 20))
            line = server.wait_for_log(f"connection of {large.name} closed")
        assert line.endswith("the server has no memory for its request, a frame of 94371840 bytes")
        assert bystander.topics() is not None
        assert "Traceback" not in server.log_since(0)
