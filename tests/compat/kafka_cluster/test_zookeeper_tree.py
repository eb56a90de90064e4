"""The tree that our brokers write to ZooKeeper is the one that brokers of Kafka 3.9.1 write, after each act."""

from contextlib import ExitStack

import pytest

from tests.compat.kafka_cluster.admin_acts import (
    APPEND,
    BROKER,
    DELETE,
    SET,
    TOPIC,
    ask,
    configure,
    create,
    delete,
    elect_preferred,
    grow,
    no_password,
    password,
    producer_id,
    quotas,
    replace_settings,
)
from tests.compat.kafka_cluster.kafka_broker import KafkaBroker, need_kafka
from tests.compat.kafka_cluster.own_broker import own_broker
from tests.compat.kafka_cluster.zookeeper_tree import ZooKeeperTree, create_chroots, differences
from tests.patience import until

pytestmark = pytest.mark.soak
need_kafka()

ACTS = {
    "create": create("flights", 1, 2),
    "create with settings": create("settings", 2, retention_ms="1000000", cleanup_policy="compact"),
    "create a third": create("orders", 2, 2, 1),
    "grow": grow("flights", 4, 2, 1),
    "grow once more": grow("flights", 5, 1),
    "set a topic's settings": configure(TOPIC, "flights", (SET, "retention.ms", "77"), (SET, "segment.ms", "88")),
    "append to a topic's setting": configure(TOPIC, "settings", (APPEND, "cleanup.policy", "delete")),
    "delete a topic's setting": configure(TOPIC, "flights", (DELETE, "retention.ms", None)),
    "replace a topic's settings": replace_settings(TOPIC, "flights", max_message_bytes="99999"),
    "set a broker's setting": configure(BROKER, "1", (SET, "log.cleaner.threads", "2")),
    "set the brokers' default": configure(BROKER, "", (SET, "log.retention.ms", "99999999")),
    "delete the brokers' default": configure(BROKER, "", (DELETE, "log.retention.ms", None)),
    "quota of a client id": quotas({"client_id": "app"}, producer_byte_rate=1_024.0),
    "quotas of a user": quotas({"user": "ann"}, consumer_byte_rate=2_048.0, request_percentage=50.0),
    "quota of any user": quotas({"user": None}, controller_mutation_rate=12.5),
    "quota of a client id of a user": quotas({"user": "ann", "client_id": "app"}, producer_byte_rate=4_096.0),
    "quota of a name to sanitize": quotas({"client_id": "my app/1~*+"}, consumer_byte_rate=1e7),
    "quota of an address": quotas({"ip": "10.0.0.1"}, connection_creation_rate=7.0),
    "quota of any address": quotas({"ip": None}, connection_creation_rate=8.0),
    "a quota removed": quotas({"user": "ann"}, consumer_byte_rate=None),
    "the last quota removed": quotas({"client_id": "app"}, producer_byte_rate=None),
    "the last quota of a client id of a user": quotas({"user": "ann", "client_id": "app"}, producer_byte_rate=None),
    "a quota of a client id of a user without one": quotas({"user": "eve", "client_id": "a"}, request_percentage=1.5),
    "the same removed": quotas({"user": "eve", "client_id": "a"}, request_percentage=None),
    "the last quota of an address removed": quotas({"ip": "10.0.0.1"}, connection_creation_rate=None),
    "a password": password("bob", 1),
    "another of a user with quotas": password("ann", 2),
    "a password removed": no_password("ann", 2),
    "the only password removed": no_password("bob", 1),
    "a producer id": producer_id(),
    "preferred leaders, which lead": elect_preferred(),
    "delete": delete("flights"),
    "create again": create("flights", 2, 1),
    "delete another": delete("orders"),
}


class Cluster:
    """Brokers 1 and 2, the first of which is the controller."""

    def __init__(self, stack, hosts, start):
        self.tree = stack.enter_context(ZooKeeperTree(hosts))
        self.brokers = {}
        for broker_id in (1, 2):
            self.brokers[broker_id] = stack.enter_context(start(broker_id))
            until(lambda: "/controller" in self.tree.read(), "a controller")
        until(lambda: len(self.tree.children("/brokers/ids")) == 2, "both brokers")

    def ask(self, *request):
        return ask(self.brokers[1].address, *request)


@pytest.fixture(scope="module")
def clusters(tmp_path_factory, zookeeper):
    """Return a cluster of ours and one of Kafka's."""
    directory = tmp_path_factory.mktemp("trees")

    def ours(broker_id):
        return own_broker(directory / f"ours-{broker_id}", broker_id, f"{zookeeper.hosts}/ours")

    def kafkas(broker_id):
        return KafkaBroker(directory / f"kafka-{broker_id}", broker_id, f"{zookeeper.hosts}/kafka")

    with ExitStack() as stack:
        create_chroots(zookeeper.hosts, "ours", "kafka")
        of_kafka = Cluster(stack, f"{zookeeper.hosts}/kafka", kafkas)
        of_ours = Cluster(stack, f"{zookeeper.hosts}/ours", ours)
        yield of_ours, of_kafka


def await_alike(clusters, act):
    """Wait until the two trees are alike."""
    ours, kafkas = (cluster.tree for cluster in clusters)
    remaining = []

    def alike():
        remaining[:] = differences(ours.read(), kafkas.read())
        return not remaining

    try:
        until(alike, f"two trees that are alike after {act!r}")
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *remaining])) from None


def test_the_tree_is_alike_after_each_act(clusters):
    await_alike(clusters, "the start")
    for act, request in ACTS.items():
        answers = [cluster.ask(*request) for cluster in clusters]
        assert answers == [set(), set()], (act, answers)
        await_alike(clusters, act)
