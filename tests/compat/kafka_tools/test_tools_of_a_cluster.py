"""Kafka's tools of 4.3, and in `make soak` those of 3.9, see three brokers as one cluster."""

import re
from contextlib import ExitStack

import pytest
from confluent_kafka import Producer

from tests.compat.cluster_servers import Servers
from tests.compat.kafka_cluster import kafka_broker
from tests.compat.stock_java import need_java
from tests.patience import SECONDS, until

TOOLS = "org.apache.kafka.tools"
CONFIGS = "kafka.admin.ConfigCommand"
ADDRESS_LAST = {"ClusterTool"}  # its subcommand takes the address
TRANSACTIONAL_IDS = [f"payer-{number}" for number in range(6)]
"""Their coordinators are on several brokers."""

need_java()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, zookeeper):
    with ExitStack() as stack:
        servers = Servers(tmp_path_factory.mktemp("cluster"), f"{zookeeper.hosts}/tools", stack)
        servers.create("flights")
        servers.produce("flights", "first")
        servers.consume("flights", 6, "readers")
        for transactional_id in TRANSACTIONAL_IDS:
            producer = Producer({"bootstrap.servers": servers.bootstrap, "transactional.id": transactional_id})
            producer.init_transactions(SECONDS)
        yield servers


@pytest.fixture(params=["4.3", pytest.param("3.9", marks=pytest.mark.soak)])
def run(request, cluster):
    """Return run(server, "TopicCommand", "--list"), which returns the tool's Finished, of either release."""
    if request.param == "4.3":
        java = request.getfixturevalue("java")
        tool = java.tool
    elif reason := kafka_broker.missing():
        pytest.skip(reason)
    else:
        tool = kafka_broker.tool

    def ran(server, name, *arguments):
        main = name if name.startswith("kafka.") else f"{TOOLS}.{name}"
        address, arguments = ("--bootstrap-server", cluster[server].address), tuple(map(str, arguments))
        return tool(main, *(arguments + address if name in ADDRESS_LAST else address + arguments))

    return ran


def printed(done):
    assert done.exit == 0, done
    return done.stdout


def test_topics_are_made_described_grown_and_deleted_by_any_broker(cluster, run):
    """The tool finds the controller, whichever broker it asks first."""
    printed(run(3, "TopicCommand", "--create", "--topic", "orders", "--replica-assignment", "3,1"))
    cluster.await_leaders("orders")
    described = printed(run(2, "TopicCommand", "--describe", "--topic", "orders"))
    assert re.findall(r"Partition: (\d)\s+Leader: (\d)", described) == [("0", "3"), ("1", "1")]
    printed(run(1, "TopicCommand", "--alter", "--topic", "orders", "--partitions", 3))
    until(lambda: len(cluster.leaders("orders")) == 3, "the third partition")
    printed(run(2, "TopicCommand", "--delete", "--topic", "orders"))
    until(lambda: "orders" not in cluster.admin.list_topics(timeout=SECONDS).topics, "the end of the topic")


def test_settings_are_altered_at_one_broker_and_described_at_another(cluster, run):
    entity = ("--entity-type", "topics", "--entity-name", "flights")
    printed(run(1, CONFIGS, "--alter", *entity, "--add-config", "retention.ms=88888888"))
    until(lambda: "retention.ms=88888888" in printed(run(3, CONFIGS, "--describe", *entity)), "the setting")
    printed(run(2, CONFIGS, "--alter", *entity, "--delete-config", "retention.ms"))
    until(lambda: "retention.ms=" not in printed(run(3, CONFIGS, "--describe", *entity)), "its end")


def test_a_group_is_described_with_its_offsets_in_partitions_of_all_brokers(cluster, run):
    done = run(2, "consumer.group.ConsumerGroupCommand", "--describe", "--group", "readers")
    rows = [line.split() for line in printed(done).splitlines() if line.startswith("readers")]
    assert sorted(row[2:6] for row in rows) == [[str(partition), "1", "1", "0"] for partition in range(6)]
    assert "readers" in printed(run(3, "consumer.group.ConsumerGroupCommand", "--list"))


def test_offsets_are_those_of_each_leader(cluster, run):
    offsets = printed(run(1, "GetOffsetShell", "--topic", "flights"))
    assert offsets.split() == [f"flights:{partition}:1" for partition in range(6)]


def test_the_directories_of_all_brokers_are_described(cluster, run):
    described = printed(run(2, "LogDirsCommand", "--describe"))
    assert re.findall(r'"broker":(\d)', described) == ["1", "2", "3"]


def test_the_cluster_has_one_id_and_the_controller_is_its_only_voter(cluster, run):
    ids = {printed(run(broker, "ClusterTool", "cluster-id")) for broker in (1, 3)}
    assert len(ids) == 1
    described = printed(run(3, "MetadataQuorumCommand", "describe", "--status"))
    (leader,) = re.findall(r"LeaderId:\s+(\d)", described)
    assert int(leader) == cluster.controller


def test_transactions_of_all_coordinators_are_listed(cluster, run):
    _, *rows = printed(run(1, "TransactionsCommand", "list")).splitlines()
    listed = {row.split()[0]: row.split()[1] for row in rows if row.strip()}
    assert sorted(listed) == TRANSACTIONAL_IDS
    assert len(set(listed.values())) > 1


def test_no_other_leader_is_elected_for_a_partition_of_one_copy(cluster, run):
    done = run(2, "LeaderElectionCommand", "--election-type", "preferred", "--topic", "flights", "--partition", 0)
    assert "Valid replica already elected for partitions flights-0" in printed(done)
