"""A broker in a cluster refuses clients until its controller has told it of the cluster, as Kafka opens its ports late.

Other brokers reach it before that, because the controller tells it of the cluster by their listener.
"""

import os
import signal
import socket
from contextlib import ExitStack, closing, contextmanager

import pytest
from twisted.internet import reactor
from twisted.internet.error import CannotListenError, ConnectionDone
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure

from broker.net.transport import KafkaPort, NullProtocol
from broker.settings.config import BrokerConfig
from coordination.free_port import FreePort
from coordination.port import Get, NoNode
from coordination.sessions import open_session
from tests.compat.cluster_servers import SETTINGS
from tests.compat.server_process import ServerProcess
from tests.compat.several_processes import SeveralProcesses
from tests.patience import until

ALONE = {"controlled.shutdown.enable": "false"}


def is_refused(address):
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port))).close()
    except ConnectionRefusedError:
        return True
    return False


@contextmanager
def bound_port(number=0, host="127.0.0.1"):
    port = KafkaPort(number, Factory.forProtocol(NullProtocol), BrokerConfig(), host, reactor, None, "PLAINTEXT")
    port.bind()
    yield port
    port.stopReading()
    port.connectionLost(Failure(ConnectionDone()))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_bound_port_refuses_connections_until_it_listens(host):
    with bound_port(host=host) as port:
        address = f"{host}:{port.getHost().port}"
        assert is_refused(address)
        port.listen()
        assert not is_refused(address)
    assert is_refused(address)


def test_an_address_that_another_listens_at_is_refused_when_it_is_bound():
    with socket.create_server(("127.0.0.1", 0)) as other:
        with pytest.raises(CannotListenError, match="Address already in use"), bound_port(other.getsockname()[1]):
            pass


def test_an_address_at_which_another_has_begun_to_listen_meanwhile_is_named():
    with bound_port() as port:
        number = port.getHost().port
        with socket.create_server(("127.0.0.1", number)):
            with pytest.raises(CannotListenError, match=f"127.0.0.1:{number}: .*Address already in use"):
                port.listen()


def test_a_broker_that_its_controller_does_not_reach_refuses_clients_and_names_the_way(zookeeper, tmp_path):
    """Its advertised address is that of nobody."""
    shared = SETTINGS | ALONE | {"zookeeper.connect": f"{zookeeper.hosts}/late", "flakelog.start.timeout.ms": "20000"}
    with ExitStack() as stack:
        clients, brokers, wrong = (stack.enter_context(FreePort()) for _ in range(3))
        controller = stack.enter_context(ServerProcess(tmp_path / "1", shared | {"broker.id": "1"}))
        listeners = f"PLAINTEXT://{clients.address},BROKERS://{brokers.address}"
        advertised = f"PLAINTEXT://{clients.address},BROKERS://{wrong.address}"
        own = {"broker.id": "2", "listeners": listeners, "advertised.listeners": advertised}
        late = ServerProcess(tmp_path / "2", shared | own)
        stack.callback(late.kill)
        late.launch()
        controller.wait_for_log(f"broker 2 at {wrong.address} cannot be reached")
        assert is_refused(clients.address) and not is_refused(brokers.address)
        assert late.running, "it has waited all the time"
        line = late.wait_for_log("the first image of the cluster from its controller: not within 20000 ms")
        way = f"broker 1 is the controller, and must reach this one at {wrong.address}, the address of listener BROKERS"
        assert way in line


def test_a_broker_that_knows_its_cluster_accepts_clients(zookeeper, tmp_path):
    settings = SETTINGS | ALONE | {"zookeeper.connect": f"{zookeeper.hosts}/accepting", "broker.id": "1"}
    with ServerProcess(tmp_path, settings) as server:
        assert server.running and not is_refused(server.address)


def test_a_process_whose_controller_stands_still_refuses_clients_until_that_goes_on(tmp_path):
    with ExitStack() as stack:
        server = stack.enter_context(SeveralProcesses(tmp_path / "data", 3, stack=stack))
        addresses = dict(enumerate(server.address.split(","), 1))
        controller = server.cluster.controller
        late = next(broker for broker in addresses if broker != controller)
        session = stack.enter_context(closing(open_session(directory=str(server.data_dir / "cluster"))))
        before = session.execute(Get(f"/brokers/ids/{late}")).czxid

        def is_registered_again():
            try:
                return session.execute(Get(f"/brokers/ids/{late}")).czxid != before
            except NoNode:
                return False

        stopped = server.child(controller)
        os.kill(stopped, signal.SIGSTOP)
        try:
            server.kill_child(late)
            until(is_registered_again, "the registration of the new process")
            assert is_refused(addresses[late])
        finally:
            os.kill(stopped, signal.SIGCONT)
        until(lambda: not is_refused(addresses[late]), "clients are accepted")
        assert late in server.cluster.brokers
