"""kafka-topics and kafka-leader-election print the same lines for three brokers of ours as for three of Kafka's.

Brokers die in the same order on both sides. Kafka 4.3 has eligible leader replicas (KIP-966) as our brokers, and the
tools of 3.9 and 4.3 show them. Kafka 3.9.1 has a ZooKeeper as ours and no ELR, and it keeps the last member of an ISR
there that died, so that the lines of partitions without a leader are not compared with it. Neither is what it says
with an error of an election: it names a class of its controller. Of a partition that is missing 3.9.1 says what we
say, and 4.3 says it otherwise.
"""

import re
from contextlib import ExitStack
from difflib import unified_diff

import pytest
from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.faults.replicated_brokers import NUMBERS, ReplicatedServers
from tests.compat.kafka_cluster import kafka_broker
from tests.compat.kafka_cluster.zookeeper_tree import create_chroots
from tests.compat.python.kafka_cluster import KafkaCluster
from tests.compat.stock_clients import QUIET
from tests.compat.stock_java import need_java
from tests.patience import SECONDS, until

pytestmark = pytest.mark.soak
need_java()

TOOLS = "org.apache.kafka.tools"
TOPICS = {
    "flights": [[1, 2, 3], [2, 3, 1], [3, 1, 2]],
    "pairs": [[2, 1], [3, 1]],
    "alone": [[1], [2], [3]],
}
CONFIG = {"min.insync.replicas": "2"}
SETTINGS = {"auto.leader.rebalance.enable": "false", "auto.create.topics.enable": "false"}
LIVES = {"all": (), "without 3": (3,), "without 3 and 2": (3, 2)}
"""The brokers that died, in this order, after all were in sync. Broker 1 lives and answers the tools."""
DESCRIBED = (
    (),
    ("--under-replicated-partitions",),
    ("--at-min-isr-partitions",),
    ("--under-min-isr-partitions",),
    ("--unavailable-partitions",),
    ("--topic", "flights"),
    ("--topic", "flights", "--under-min-isr-partitions"),
    ("--topic", "missing"),
)
ELECTED = (
    ("preferred", "--topic", "flights", "--partition", 0),
    ("preferred", "--topic", "flights", "--partition", 2),
    ("preferred", "--topic", "missing", "--partition", 0),
    ("preferred", "--topic", "flights", "--partition", 9),
    ("preferred", "--all-topic-partitions"),
    ("unclean", "--topic", "flights", "--partition", 0),
    ("unclean", "--topic", "alone", "--partition", 2),
)


class Brokers:
    """Three brokers of one kind, with the topics. `nodes` has kill(number) and start(number)."""

    def __init__(self, nodes, address, bootstrap):
        self._nodes = nodes
        self.address = address
        self._admin = AdminClient({"bootstrap.servers": bootstrap} | QUIET)
        self._dead = []
        topics = [NewTopic(name, len(rows), replica_assignment=rows, config=CONFIG) for name, rows in TOPICS.items()]
        for created in self._admin.create_topics(topics).values():
            created.result(SECONDS)
        self._await_isrs()

    def let_die(self, numbers):
        """Let exactly these brokers be dead; they die in this order, after preferred leaders with full ISRs led."""
        if self._dead == [*numbers]:
            return
        for number in reversed(self._dead):
            self._nodes.start(number)
            self._dead.remove(number)
            self._await_isrs()
        self._admin.elect_leaders(ElectionType.PREFERRED).result(SECONDS)
        until(lambda: all(map(self._has_preferred_leaders, TOPICS)), "preferred leaders")
        for number in numbers:
            self._nodes.kill(number)
            self._dead.append(number)
            self._await_isrs()

    def _await_isrs(self):
        until(lambda: all(map(self._has_isrs, TOPICS)), f"the ISRs without {self._dead}")

    def _partitions(self, name):
        partitions = self._admin.list_topics(name, timeout=SECONDS).topics[name].partitions
        return [partitions[number] for number in sorted(partitions)]

    def _has_isrs(self, name):
        """Return True if each partition's living replicas are in sync, and one of them leads if there is one."""
        partitions = self._partitions(name)
        return len(partitions) == len(TOPICS[name]) and all(map(self._is_settled, TOPICS[name], partitions))

    def _is_settled(self, replicas, partition):
        living = set(replicas).difference(self._dead)
        if not living:
            return partition.leader == -1
        return set(partition.isrs) == living and partition.leader in living

    def _has_preferred_leaders(self, name):
        leaders = [partition.leader for partition in self._partitions(name)]
        return leaders == [replicas[0] for replicas in TOPICS[name]]


class KafkaServers:
    """Three brokers of Kafka 3.9.1."""

    def __init__(self, directory, zookeeper, stack):
        self._brokers = {
            number: kafka_broker.KafkaBroker(directory / str(number), number, zookeeper, SETTINGS)
            for number in NUMBERS
        }
        for broker in self._brokers.values():
            stack.enter_context(broker)

    def __getitem__(self, number):
        return self._brokers[number]

    def kill(self, number):
        self._brokers[number].kill()

    def start(self, number):
        self._brokers[number].start()


@pytest.fixture(scope="module")
def ours(tmp_path_factory, zookeeper):
    with ExitStack() as stack:
        directory, chroot = tmp_path_factory.mktemp("ours"), f"{zookeeper.hosts}/tools-of-ours"
        servers = ReplicatedServers(directory, chroot, stack, settings=SETTINGS)
        yield Brokers(servers, servers[1].address, servers.bootstrap)


@pytest.fixture(scope="module")
def kafka39(tmp_path_factory, zookeeper):
    if reason := kafka_broker.missing():
        pytest.skip(reason)
    with ExitStack() as stack:
        create_chroots(zookeeper.hosts, "tools-of-kafka")
        chroot = f"{zookeeper.hosts}/tools-of-kafka"
        servers = KafkaServers(tmp_path_factory.mktemp("kafka39"), chroot, stack)
        yield Brokers(servers, servers[1].address, ",".join(servers[number].address for number in NUMBERS))


@pytest.fixture(scope="module")
def kafka43(tmp_path_factory):
    with KafkaCluster(tmp_path_factory.mktemp("kafka43"), settings=SETTINGS) as cluster:
        yield Brokers(cluster, cluster.addresses[1], cluster.servers)


@pytest.fixture(params=["3.9 at 3.9", "3.9 at 4.3", "4.3 at 4.3"])
def release(request, ours, java):
    """Return the tool of a release, the lines to compare, and the brokers that it asks: ours and Kafka's."""
    tool, kafka = request.param.split(" at ")
    run = kafka_broker.tool if tool == "3.9" else java.tool
    if kafka == "3.9":
        return run, lines_but_of_elrs, ours, request.getfixturevalue("kafka39")
    return run, lines, ours, request.getfixturevalue("kafka43")


def lines(done):
    """Return what a tool printed, without times, topic ids and stack traces, and with each set in order."""
    text = re.sub(r"TopicId: \S+", "TopicId: ID", f"exit {done.exit}\n{done.stdout}\n{done.stderr}")
    text = re.sub(r"(Isr|Elr): ([\d,]+)", lambda match: f"{match[1]}: {sorted(match[2].split(','))}", text)
    text = re.sub(r"Configs: \S*", "Configs: ", text)
    text = re.sub(r"\[[\d-]+ [\d:,]+\]", "[TIME]", text)
    text = re.sub(r"(?<=UnknownTopicOrPartitionException:) .*", "", text)
    return [line.rstrip() for line in text.splitlines() if not line.startswith(("\tat ", "\t... "))]


def lines_but_of_elrs(done):
    """Return the lines without ELRs, without the partitions that have no leader, and without the reasons of errors."""
    with_leader = [line for line in lines(done) if "Leader: none" not in line]
    return [re.sub(r"\tElr: .*|(?<=NotAvailableException:) .*", "", line) for line in with_leader]


def check_alike(release, dead, tool, *arguments):
    run, lines_of, *both = release
    printed = []
    for brokers in both:
        brokers.let_die(dead)
        printed.append(lines_of(run(f"{TOOLS}.{tool}", "--bootstrap-server", brokers.address, *arguments)))
    ours, kafkas = printed
    assert ours == kafkas, "\n".join(unified_diff(kafkas, ours, "Kafka", "ours", lineterm=""))


@pytest.mark.parametrize("arguments", DESCRIBED, ids=" ".join)
@pytest.mark.parametrize("dead", LIVES.values(), ids=LIVES)
def test_topics_are_described_as_by_kafka(release, dead, arguments):
    check_alike(release, dead, "TopicCommand", "--describe", *arguments)


@pytest.mark.parametrize("arguments", ELECTED, ids=lambda arguments: " ".join(map(str, arguments)))
@pytest.mark.parametrize("dead", LIVES.values(), ids=LIVES)
def test_leaders_are_elected_as_by_kafka(release, dead, arguments):
    check_alike(release, dead, "LeaderElectionCommand", "--election-type", *arguments)
    check_alike(release, dead, "TopicCommand", "--describe")
