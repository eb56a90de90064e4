"""Producers that find their brokers in a real ZooKeeper, as early Kafka's did with zk.connect."""

import asyncio
import threading

import pytest

from broker.client.async_producer import AsyncProducer
from broker.client.blocking import Client
from broker.client.errors import ClientError, ProduceError
from broker.client.producer import Producer
from broker.client.registry import bootstrap
from coordination.port import Children
from coordination.zookeeper import ZooKeeperCoordinator
from tests.compat.server_process import ServerProcess
from tests.compat.tcp_proxy import TcpProxy
from tests.patience import until

NOBODY = "127.0.0.1:1"
LONG_MS = 120_000  # for messages that wait until a server has started again


@pytest.fixture
def registry(zookeeper, name):
    return f"{zookeeper.hosts}/{name}"


@pytest.fixture
def server(tmp_path, registry):
    settings = {"zookeeper.connect": registry, "broker.id": "1", "auto.create.topics.enable": "true"}
    with ServerProcess(tmp_path / "data", settings) as server:
        yield server


def values(server, topic):
    with Client(server.address) as client:
        return [record.value for record in client.fetch(topic, 0, 0, max_wait_ms=0)[0]]


def test_a_producer_finds_the_brokers_in_zookeeper(server, registry):
    with Producer(registry=registry) as producer:
        producer.send("t", "one")
        assert producer.send_and_wait("t", "two").offset == 1
    assert values(server, "t") == [b"one", b"two"]


def test_a_producer_follows_brokers_that_come_back_elsewhere(server, registry):
    """The messages that wait meanwhile are sent to the new address."""
    with Producer(registry=registry, timeout_ms=LONG_MS) as producer:
        producer.send_and_wait("t", "before")
        before = server.address
        server.stop()
        producer.send("t", "meanwhile")
        server.start()
        assert server.address != before
        producer.send_and_wait("t", "after")
    assert values(server, "t") == [b"before", b"meanwhile", b"after"]


def test_a_producer_that_is_made_before_the_first_broker_waits_for_it(registry, tmp_path):
    with Producer(registry=registry, timeout_ms=LONG_MS) as producer:
        producer.send("t", "early")
        settings = {"zookeeper.connect": registry, "broker.id": "1", "auto.create.topics.enable": "true"}
        with ServerProcess(tmp_path / "data", settings) as server:
            producer.flush()
            assert values(server, "t") == [b"early"]


def test_a_producer_with_a_chroot_that_is_not_there_does_not_create_it(zookeeper, registry):
    with Producer(registry=registry):
        other = ZooKeeperCoordinator(zookeeper.hosts)
        try:
            assert registry.rpartition("/")[2] not in other.execute(Children("/"))
        finally:
            other.close()


def test_a_producer_goes_on_while_zookeeper_is_away(server, zookeeper, name):
    with TcpProxy(zookeeper.port) as proxy, Producer(registry=f"127.0.0.1:{proxy.port}/{name}") as producer:
        proxy.cut()
        assert producer.send_and_wait("t", "alone").offset == 0


def test_a_producer_stamps_ids_with_a_worker_number_of_the_same_zookeeper(server, zookeeper, registry):
    """`registry` names the brokers' ZooKeeper, and `zookeeper` that of the worker numbers."""
    with Producer(registry=registry, ids="header", zookeeper=f"{zookeeper.hosts}/workers") as producer:
        producer.send_and_wait("t", "stamped")
    with Client(server.address) as client:
        (record,) = client.fetch("t", 0, 0, max_wait_ms=0)[0]
    assert [name for name, _ in record.headers] == ["flakelog-id"]


def test_an_async_producer_finds_the_brokers_in_zookeeper(server, registry):
    async def send():
        async with AsyncProducer(registry=registry) as producer:
            return await producer.send_and_wait("t", "one")

    assert asyncio.run(send()).offset == 0


def test_a_producer_without_a_broker_says_where_it_looked(registry):
    with Producer(registry=registry, timeout_ms=300) as producer:
        with pytest.raises(ProduceError, match=f"no answer from the brokers in ZooKeeper at {registry}"):
            producer.send_and_wait("t", "lost")


def test_a_producer_gives_its_port_and_its_session_back(server, registry):
    before = threading.active_count()
    with Producer(registry=registry) as producer:
        producer.send_and_wait("t", "one")
    until(lambda: threading.active_count() <= before, "the end of the threads")


def test_a_producer_that_is_refused_gives_its_port_and_its_session_back(registry):
    before = threading.active_count()
    with pytest.raises(TypeError, match="hook="):
        Producer(registry=registry, hook="no hook")
    until(lambda: threading.active_count() <= before, "the end of the threads")


@pytest.mark.parametrize("arguments", [{}, {"servers": NOBODY, "registry": NOBODY}])
@pytest.mark.parametrize("kind", [Producer, AsyncProducer])
def test_a_producer_is_told_to_take_one_place_of_brokers(kind, arguments):
    with pytest.raises(ValueError, match="give the brokers as servers=.* or their ZooKeeper as registry="):
        kind(**arguments)


@pytest.mark.parametrize("registry", ["", "host:port", "a host:2181", 2181])
def test_a_registry_that_is_no_ensemble_is_refused(registry):
    with pytest.raises(ValueError, match="registry=.*: give the hosts of a ZooKeeper, as host:port,host:port/chroot"):
        Producer(registry=registry)


def test_a_registry_without_zookeeper_is_named(monkeypatch):
    monkeypatch.setattr(bootstrap, "CONNECT_TIMEOUT_MS", 300)
    with pytest.raises(ClientError, match="no ZooKeeper answered at 127.0.0.1:1"):
        Producer(registry=NOBODY)
