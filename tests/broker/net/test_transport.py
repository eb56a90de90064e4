"""Twisted's internal names that the transport and the reactor rely on, although Twisted does not promise them."""

import inspect

import pytest
from twisted.internet import abstract, main, tcp

from broker.net.transport import KafkaPort, KafkaTransport

epollreactor = pytest.importorskip("twisted.internet.epollreactor", reason="epoll is Linux's")


@pytest.mark.parametrize("name", ["doRead", "doWrite", "_postLoseConnection", "connectionLost", "setTcpNoDelay"])
def test_a_connection_has_what_the_transport_overrides_or_calls(name):
    assert callable(getattr(tcp.Connection, name))


def test_twisted_reads_and_writes_by_the_transports_own_methods():
    """Twisted looks these names up on the object; under other names the stock methods would remain in use."""
    assert "doRead" in vars(KafkaTransport) and "doWrite" in vars(KafkaTransport)
    assert "doRead" in vars(tcp.Connection) and "doWrite" in vars(abstract.FileDescriptor)


def test_a_port_makes_connections_of_its_class_attribute_transport():
    """Twisted's `Port.doRead` calls `self.transport(skt, protocol, addr, self, s, self.reactor)`."""
    assert tcp.Port.transport is tcp.Server
    assert "self.transport(" in inspect.getsource(tcp.Port.doRead)
    assert KafkaPort.transport is KafkaTransport


def test_a_server_connection_is_made_of_these_arguments():
    assert list(inspect.signature(tcp.Server.__init__).parameters) == [
        "self", "sock", "protocol", "client", "server", "sessionno", "reactor",
    ]  # fmt: skip


def test_a_connection_ends_by_returning_one_of_these():
    assert isinstance(main.CONNECTION_LOST, Exception) and isinstance(main.CONNECTION_DONE, Exception)


@pytest.mark.parametrize("name", ["_poller", "_selectables"])
def test_the_epoll_reactor_keeps_what_the_fast_one_reads(name):
    assert f"self.{name}" in inspect.getsource(epollreactor.EPollReactor)


@pytest.mark.parametrize("name", ["_doReadOrWrite", "_disconnectSelectable", "doPoll"])
def test_the_epoll_reactor_has_the_methods_the_fast_one_calls(name):
    assert callable(getattr(epollreactor.EPollReactor, name))


def test_iteration_calls_doiteration_which_the_fast_reactor_replaces_too():
    assert epollreactor.EPollReactor.doIteration is epollreactor.EPollReactor.doPoll
