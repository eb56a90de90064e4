"""Consumers that agree through ZooKeeper lose no message when processes die or pause, and repeat uncommitted ones only.

`make test` plays a round of several faults. The soak has more messages, and all faults in any order, some of them in
the middle of a rebalance.
"""

from random import Random

import pytest

from coordination.embedded_zookeeper import EmbeddedZooKeeper
from tests.compat.faults.connector_group import ConnectorGroup, Load
from tests.compat.faults.zookeeper_ensemble import ZooKeeperEnsemble
from tests.compat.mirror.kafka_node import KafkaNode
from tests.compat.server_process import ServerProcess
from tests.patience import until

ROUNDS = 20
MESSAGES = 100_000
BROKER = {"broker.id": "1", "zookeeper.session.timeout.ms": "2000"}
LAPSE = "nothing is delivered meanwhile"


class World:
    """A group of consumers with its load. `server` is the log's, Flakelog or Apache Kafka."""

    def __init__(self, group, load, zookeeper, server):
        self.group = group
        self.load = load
        self.zookeeper = zookeeper
        self.server = server

    def kill_consumer(self, random):
        random.choice(self.group.living).kill()
        self.group.start()

    def kill_consumer_while_another_joins(self, random):
        killed = random.choice(self.group.living)
        self.group.start()
        killed.kill()

    def leave(self, random):
        random.choice(self.group.living).leave()
        self.group.start()

    def pause_consumer(self, random):
        """Pause a consumer until ZooKeeper has ended its session; another joins, and it wakes in mid-rebalance."""
        paused = random.choice(self.group.living)
        paused.pause()
        self.group.await_registered(paused, gone=True)
        self.group.await_more()
        joined = self.group.start()
        paused.resume()
        self.group.await_registered(paused)
        joined.leave()

    def kill_broker(self, random):
        joined = self.group.start()
        self.server.restart()
        joined.leave()

    def kill_zookeeper(self, random):
        """ZooKeeper is away for longer than the consumers believe in their sessions."""
        before = {member: member.log.count(LAPSE) for member in self.group.living}
        self.zookeeper.kill()
        until(lambda: any(member.log.count(LAPSE) > times for member, times in before.items()), LAPSE)
        self.zookeeper.start()

    def kill_zookeeper_in_a_rebalance(self, random):
        self.group.start()
        self.zookeeper.kill()
        self.zookeeper.start()
        random.choice(self.group.living).leave()

    def await_messages(self, number):
        until(lambda: self.load.sent >= number, f"{number} messages")


FAULTS = (
    World.kill_consumer, World.kill_consumer_while_another_joins, World.leave, World.pause_consumer, World.kill_broker,
    World.kill_zookeeper, World.kill_zookeeper_in_a_rebalance,
)  # fmt: skip


def run_round(world, faults, random, messages=0):
    for _ in range(3):
        world.group.start()
    for fault in faults:
        world.group.await_more()
        fault(world, random)
    world.group.await_more()
    world.await_messages(messages)
    world.group.check(world.load.end())


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory):
    """A ZooKeeper of this module's own, because it is killed."""
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as zookeeper:
        yield zookeeper


@pytest.fixture(scope="module")
def server(tmp_path_factory, zookeeper):
    settings = {"zookeeper.connect": f"{zookeeper.hosts}/faults", **BROKER}
    with ServerProcess(tmp_path_factory.mktemp("connectors") / "data", settings).keep_ports() as server:
        yield server


def test_no_message_is_lost_or_repeated_without_reason(zookeeper, server, name):
    load = Load(server.address, name, batch=5, pause_s=0.05)
    with ConnectorGroup(f"{zookeeper.hosts}/faults", name) as group:
        faults = World.pause_consumer, World.kill_broker, World.kill_zookeeper, World.kill_consumer_while_another_joins
        run_round(World(group, load, zookeeper, server), faults, Random(0))


@pytest.mark.soak
@pytest.mark.parametrize("number", range(ROUNDS))
def test_no_message_of_many_is_lost_in_any_order_of_faults(zookeeper, server, name, number):
    random = Random(number)
    load = Load(server.address, name, batch=100)
    with ConnectorGroup(f"{zookeeper.hosts}/faults", name) as group:
        world = World(group, load, zookeeper, server)
        run_round(world, random.sample(FAULTS, len(FAULTS)), random, MESSAGES)


class AnyOfThree:
    """Kills one of three ZooKeepers, the leader more often than others, and starts it again."""

    def __init__(self, ensemble, random):
        self._ensemble = ensemble
        self._random = random
        self._dead = None

    def kill(self):
        self._dead = self._random.choice((1, 2, 3, self._ensemble.leader))
        self._ensemble.kill(self._dead)

    def start(self):
        self._ensemble.start(self._dead)


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory):
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("ensemble")) as ensemble:
        yield ensemble


@pytest.fixture(scope="module")
def server_of_ensemble(tmp_path_factory, ensemble):
    settings = {"zookeeper.connect": f"{ensemble.hosts}/faults", **BROKER}
    with ServerProcess(tmp_path_factory.mktemp("three") / "data", settings).keep_ports() as server:
        yield server


@pytest.mark.soak
@pytest.mark.parametrize("number", range(ROUNDS))
def test_no_message_is_lost_while_one_zookeeper_of_three_dies(ensemble, server_of_ensemble, name, number):
    random = Random(number)
    load = Load(server_of_ensemble.address, name, batch=100)
    with ConnectorGroup(f"{ensemble.hosts}/faults", name) as group:
        world = World(group, load, AnyOfThree(ensemble, random), server_of_ensemble)
        faults = [fault for fault in FAULTS if fault is not World.kill_zookeeper]  # two of three answer on
        run_round(world, random.sample(faults, len(faults)), random, MESSAGES)


@pytest.fixture(scope="module")
def kafka_node(tmp_path_factory):
    with KafkaNode(tmp_path_factory.mktemp("kafka") / "node") as node:
        yield node


@pytest.mark.soak
@pytest.mark.parametrize("number", range(ROUNDS))
def test_no_message_of_apache_kafka_is_lost(kafka_node, zookeeper, name, number):
    """The registry has no brokers: the consumers find them, and the topics, by `servers`."""
    random, servers = Random(number), kafka_node.bootstrap_servers
    load = Load(servers, name, batch=100)
    with ConnectorGroup(f"{zookeeper.hosts}/kafka", name, servers) as group:
        world = World(group, load, zookeeper, kafka_node)
        run_round(world, random.sample(FAULTS, len(FAULTS)), random, MESSAGES)
