"""Stock clients at three brokers: each client knows one address, and finds leaders, coordinators and controller."""

from contextlib import ExitStack

import pytest

from flakelog.admin import Admin
from tests.compat.clients.cluster_clients import AioKafka, FranzGo, Java, Kafkajs, KafkaPython, Librdkafka
from tests.compat.cluster_servers import PARTITIONS, Servers
from tests.patience import until

COUNT = 24
IN_PYTHON = [Librdkafka, KafkaPython, AioKafka]
IN_A_PROCESS = [Java, FranzGo, Kafkajs]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, zookeeper):
    with ExitStack() as stack:
        yield Servers(tmp_path_factory.mktemp("cluster-clients"), f"{zookeeper.hosts}/clients", stack)


@pytest.fixture
def address(cluster):
    """Return the address of a broker that is not the controller, so that an admin client has to find it."""
    return next(server.address for number, server in cluster.servers.items() if number != cluster.controller)


@pytest.mark.parametrize("kind", IN_PYTHON, ids=lambda kind: kind.__name__)
def test_a_client_in_python_works_with_a_cluster(kind, cluster, address):
    check(kind(address, len(PARTITIONS)), cluster, kind.__name__)


@pytest.mark.parametrize("kind", IN_A_PROCESS, ids=lambda kind: kind.__name__)
def test_a_client_in_another_language_works_with_a_cluster(kind, cluster, address):
    if reason := kind.missing():
        pytest.skip(reason)
    with kind.process() as process:
        check(kind(process, address, len(PARTITIONS)), cluster, kind.__name__)


def check(client, cluster, name):
    """Use a topic over all brokers with the client: records, a group, transactions and settings."""
    client.create(name)
    client.produce(name, values("plain"))
    assert set(cluster.leaders(name).values()) == {1, 2, 3}
    with Admin(cluster.bootstrap) as admin:
        ends = admin.end_offsets([(name, partition) for partition in PARTITIONS])
    assert all(ends.values()) and sum(ends.values()) == COUNT, "records in all partitions"
    assert sorted(client.read(name, f"{name}-readers", COUNT)) == values("plain")
    client.transact(name, values("aborted"), commit=False)
    client.transact(name, values("committed"), commit=True)
    assert sorted(client.read(name, f"{name}-readers", COUNT)) == values("committed"), "the group went on"
    client.set_config(name, "retention.ms", "86400000")
    until(lambda: client.config(name, "retention.ms") == "86400000", "the setting, at whichever broker is asked")


def values(text):
    return [f"{text}-{n:02}" for n in range(COUNT)]
