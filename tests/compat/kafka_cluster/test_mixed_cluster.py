"""Brokers of Kafka 3.9.1 and a broker of ours are one cluster, whichever of them is the controller.

Each topic has one copy of each partition.
"""

from contextlib import ExitStack

import pytest
from confluent_kafka import Producer

from tests.compat.cluster_servers import Alone, Servers
from tests.compat.kafka_cluster.admin_acts import SET, TOPIC, ask, configure, create, delete, grow
from tests.compat.kafka_cluster.kafka_broker import KafkaBroker, need_kafka
from tests.compat.kafka_cluster.own_broker import own_broker
from tests.compat.kafka_cluster.zookeeper_tree import ZooKeeperTree, create_chroots
from tests.patience import SECONDS, until

pytestmark = pytest.mark.soak
need_kafka()

OURS = {"ours": 1, "kafkas": 2}
"""The broker that is ours; broker 1 is the controller."""


class MixedCluster(Servers):
    """Brokers 1 to 3, of which `ours` is ours."""

    def __init__(self, directory, zookeeper, stack, ours):
        self.servers = {}
        self.tree = stack.enter_context(ZooKeeperTree(zookeeper))
        for broker_id in (1, 2, 3):
            start = own_broker if broker_id == ours else KafkaBroker
            self.servers[broker_id] = stack.enter_context(start(directory / str(broker_id), broker_id, zookeeper))
            until(lambda: "/controller" in self.tree.read(), "a controller")
        until(lambda: len(self.brokers) == 3, "all brokers in the metadata")
        assert self.controller == 1

    def act(self, request, broker_id=1):
        assert ask(self.servers[broker_id].address, *request) == set()

    def await_all_hear(self, topic, partitions):
        """Wait until each broker names a leader of each partition."""
        for server in self.servers.values():
            alone, description = Alone(server), f"the leaders of {topic} at {server.address}"
            until(lambda alone=alone: _is_led(alone, topic, partitions), description)


def _is_led(cluster, topic, partitions):
    """Return True if a cluster names a leader of each partition."""
    topics = cluster.admin.list_topics(timeout=SECONDS).topics
    leaders = [partition.leader for partition in topics[topic].partitions.values()] if topic in topics else []
    return len(leaders) == partitions and -1 not in leaders


@pytest.fixture(scope="module", params=["ours", "kafkas"])
def cluster(request, tmp_path_factory, zookeeper):
    name = f"mixed-{request.param}"
    create_chroots(zookeeper.hosts, name)
    with ExitStack() as stack:
        yield MixedCluster(tmp_path_factory.mktemp(name), f"{zookeeper.hosts}/{name}", stack, OURS[request.param])


def texts(word, partitions):
    return [f"{word}-{partition}" for partition in range(partitions)]


def test_a_topic_of_all_brokers_is_written_read_and_grown(cluster):
    cluster.act(create("flights", 1, 2, 3))
    cluster.await_all_hear("flights", 3)
    assert cluster.leaders("flights") == {0: 1, 1: 2, 2: 3}
    cluster.produce("flights", "first", range(3))
    assert cluster.consume("flights", 3) == texts("first", 3)
    cluster.act(grow("flights", 6, 3, 2, 1))
    cluster.await_all_hear("flights", 6)
    cluster.produce("flights", "second", range(6))
    assert cluster.consume("flights", 6) == texts("second", 6), "the group went on at its offsets"


def test_a_transaction_over_all_brokers_is_whole(cluster):
    cluster.act(create("payments", 1, 2, 3))
    cluster.await_all_hear("payments", 3)
    for transactional_id in ("payer-1", "payer-2", "payer-3", "payer-4"):  # coordinators on several brokers
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": transactional_id})
        producer.init_transactions(SECONDS)
        for word, end in (("aborted", producer.abort_transaction), ("committed", producer.commit_transaction)):
            producer.begin_transaction()
            for partition in range(3):
                producer.produce("payments", f"{word}-{partition}", partition=partition)
            producer.flush(SECONDS)
            end(SECONDS)
    assert cluster.consume("payments", 12, "payees") == sorted(texts("committed", 3) * 4)


@pytest.mark.parametrize("broker_id", [1, 2, 3])
def test_a_setting_that_any_broker_takes_reaches_all(cluster, broker_id):
    topic = f"settings-{broker_id}"
    cluster.act(create(topic, 1, 2, 3))
    cluster.await_all_hear(topic, 3)
    cluster.act(configure(TOPIC, topic, (SET, "max.message.bytes", "100")), broker_id)

    def is_refused(partition):
        errors = []
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        producer.produce(topic, b"x" * 1_000, partition=partition, on_delivery=lambda error, _: errors.append(error))
        producer.flush(SECONDS)
        return errors[0] is not None and errors[0].name() == "MSG_SIZE_TOO_LARGE"

    for partition in range(3):
        until(lambda partition=partition: is_refused(partition), f"the setting at the leader of {partition}")


def test_a_deleted_topic_is_gone_and_one_of_its_name_begins_empty(cluster):
    cluster.act(create("orders", 1, 2, 3))
    cluster.await_all_hear("orders", 3)
    cluster.produce("orders", "old", range(3))
    cluster.act(delete("orders"))
    until(lambda: not [path for path in cluster.tree.read() if "orders" in path], "the end of the deletion")
    cluster.act(create("orders", 3, 1, 2))
    cluster.await_all_hear("orders", 3)
    cluster.produce("orders", "new", range(3))
    assert cluster.consume("orders", 3, "those of the new") == texts("new", 3)


def test_a_dead_broker_takes_its_own_partitions_away_until_it_is_back(cluster):
    cluster.act(create("kept", 1, 2, 3))
    cluster.await_all_hear("kept", 3)
    cluster.produce("kept", "first", range(3))
    for broker_id in (2, 3):
        server = cluster.servers[broker_id]
        server.kill()
        until(lambda dead=broker_id: cluster.leaders("kept")[dead - 1] == -1, "no leader")
        living = [partition for partition in range(3) if partition != broker_id - 1]
        cluster.produce("kept", f"without-{broker_id}", living)
        server.start()
        cluster.await_all_hear("kept", 3)
        cluster.produce("kept", f"with-{broker_id}", range(3))
    words = [text for word in ("first", "with-2", "with-3") for text in texts(word, 3)]
    words += ["without-2-0", "without-2-2", "without-3-0", "without-3-1"]
    assert cluster.consume("kept", len(words), "keepers", commit=False) == sorted(words)
