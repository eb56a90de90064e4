"""flakelog.testing: a cluster of several nodes for users' tests, which lose one, or all."""

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from flakelog.testing import Broker
from tests.compat.stock_clients import QUIET
from tests.patience import SECONDS, until


@pytest.fixture(scope="module")
def cluster():
    with Broker({"flights": 3}, nodes=3) as cluster:
        yield cluster


def leaders(cluster):
    """Return the leader of each partition, as a stock client hears it."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, **QUIET})
    partitions = admin.list_topics("flights", SECONDS).topics["flights"].partitions
    return {number: partition.leader for number, partition in partitions.items()}


def idempotent(cluster):
    quick = {"linger.ms": 0, "retry.backoff.ms": 10, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100}
    return Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, **quick, **QUIET})


def produce(cluster, *partitions):
    producer = idempotent(cluster)
    for partition in partitions:
        producer.produce("flights", b"record", partition=partition)
    assert producer.flush(SECONDS) == 0


def led_by(cluster, number):
    """Return a partition that the node leads."""
    return next(partition for partition, leader in leaders(cluster).items() if leader == number)


def test_a_cluster_has_partitions_on_each_node_and_one_address_of_all(cluster):
    assert sorted(leaders(cluster).values()) == [1, 2, 3]
    assert len(cluster.bootstrap_servers.split(",")) == 3 and cluster.address in cluster.bootstrap_servers
    produce(cluster, 0, 1, 2)
    assert [record.value for record in cluster.records("flights")] == [b"record"] * 3


def test_a_killed_node_takes_its_partitions_away_until_it_is_restarted(cluster):
    lost = led_by(cluster, 2)
    cluster.kill(2)
    until(lambda: leaders(cluster)[lost] == -1, "its partition offline")
    produce(cluster, *({0, 1, 2} - {lost}))
    before = cluster.bootstrap_servers
    cluster.restart(2)
    assert cluster.bootstrap_servers == before
    until(lambda: leaders(cluster)[lost] == 2, "its partition back")
    produce(cluster, lost)


def test_a_stalled_node_answers_when_it_is_resumed(cluster):
    partition = led_by(cluster, 3)
    cluster.stall(3)
    producer = idempotent(cluster)
    producer.produce("flights", b"late", partition=partition)
    assert producer.flush(0.5) == 1
    cluster.resume(3)
    assert producer.flush(SECONDS) == 0


def test_all_nodes_of_a_cluster_are_killed_and_healed(cluster):
    records_before = len(cluster.records("flights"))
    cluster.kill()
    assert not cluster.running
    cluster.heal()
    until(lambda: -1 not in leaders(cluster).values(), "all leaders")
    assert len(cluster.records("flights")) == records_before


def test_what_no_cluster_has_is_refused(cluster):
    with pytest.raises(ValueError, match="no node 4: the nodes are 1 to 3"):
        cluster.kill(4)
    with pytest.raises(ValueError, match="listeners: with several nodes, each has its own"):
        Broker(nodes=3, settings={"listeners": "PLAINTEXT://127.0.0.1:9092"})
    with pytest.raises(ValueError, match="nodes=0: give a whole number from 1 to 16"):
        Broker(nodes=0)
