"""RegistryBootstrap: its port leads to a broker that a real ZooKeeper names. A plain kazoo registers the brokers."""

import json
import os
import socket
from contextlib import ExitStack, closing
from threading import Thread

import pytest
from kazoo.client import KazooClient

from broker.client.registry import bootstrap
from broker.client.registry.bootstrap import RegistryBootstrap
from coordination.free_port import FreePort
from tests.patience import SECONDS, until


class NamedBroker:
    """A listener that answers each connection with its name and what it was sent, and then ends it."""

    def __init__(self, name):
        self.name = name
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        Thread(target=self._serve, daemon=True).start()

    def close(self):
        self._listener.close()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(self.name + connection.recv(100))


@pytest.fixture
def registry(zookeeper, name):
    return f"{zookeeper.hosts}/{name}"


@pytest.fixture
def port(registry):
    """Return a port, which makes the chroot too."""
    with closing(RegistryBootstrap(registry)) as port:
        yield port


@pytest.fixture
def kazoo(registry, port):
    client = KazooClient(registry)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def one_and_two():
    with ExitStack() as stack:
        yield [stack.enter_context(closing(NamedBroker(name))) for name in (b"one", b"two")]


def register(kazoo, broker_id, port):
    """Write the node that Kafka 0.9 to 3.9 writes."""
    document = {
        "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
        "endpoints": [f"PLAINTEXT://127.0.0.1:{port}"],
        "jmx_port": -1,
        "host": "127.0.0.1",
        "port": port,
        "version": 4,
        "timestamp": "1",
    }
    kazoo.create(f"/brokers/ids/{broker_id}", json.dumps(document).encode(), ephemeral=True, makepath=True)


def ask(port):
    """Return the answer to a connection, empty if it was closed without one."""
    with socket.create_connection(port.address, timeout=SECONDS) as connection:
        try:
            connection.sendall(b"?")
            return b"".join(iter(lambda: connection.recv(100), b""))
        except ConnectionError:
            return b""


def test_the_port_leads_to_the_broker_that_lives(kazoo, one_and_two, port):
    first, second = one_and_two
    assert ask(port) == b""
    register(kazoo, 1, first.port)
    until(lambda: ask(port) == b"one?")
    kazoo.delete("/brokers/ids/1")
    register(kazoo, 2, second.port)
    until(lambda: ask(port) == b"two?")
    assert port.brokers.keys() == {2} and port.problem is None


def test_the_port_leads_past_a_registered_broker_that_takes_no_connection(kazoo, one_and_two, port):
    """The session of a broker that died lasts for some seconds."""
    with closing(FreePort()) as free:
        register(kazoo, 1, free.number)
        register(kazoo, 2, one_and_two[1].port)
        until(lambda: ask(port) == b"two?")
        assert ask(port) == b"two?"


def test_more_connections_than_the_port_takes_are_closed(kazoo, one_and_two, port, monkeypatch):
    monkeypatch.setattr(bootstrap, "CONNECTIONS_MAX", 1)
    register(kazoo, 1, one_and_two[0].port)
    until(lambda: ask(port) == b"one?")
    with socket.create_connection(port.address):
        until(lambda: ask(port) == b"")
    until(lambda: ask(port) == b"one?")


def test_a_forked_process_leaves_the_port_to_its_parent(kazoo, one_and_two, port):
    register(kazoo, 1, one_and_two[0].port)
    until(lambda: ask(port) == b"one?")
    child = os.fork()
    if not child:
        port.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert ask(port) == b"one?"


def test_a_closed_port_takes_no_connections(registry):
    port = RegistryBootstrap(registry)
    port.close()
    port.close()
    with pytest.raises(ConnectionError):
        socket.create_connection(port.address)
