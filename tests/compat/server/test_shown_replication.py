"""What three servers whose topics have three copies lack: metrics, health, commands and Kafka's tools agree on it."""

import json
from contextlib import ExitStack, closing
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from flakelog.cli import main
from flakelog.metric_table import REPLICATION, SERVER
from tests.compat.faults.replicated_brokers import NUMBERS, ReplicatedServers
from tests.compat.stock_java import missing
from tests.patience import SECONDS, until

PARTITIONS = 3
OWN_SETTINGS = {"flakelog.http.listener": "127.0.0.1:0", "offsets.topic.replication.factor": "1"}
NOT_SHOWN = {"flakelog_ids_clock_offset_seconds", "flakelog_ids_peers"}
"""Metrics of id services, which depend on others in the network."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, zookeeper):
    with ExitStack() as stack:
        directory = tmp_path_factory.mktemp("shown")
        servers = ReplicatedServers(directory, f"{zookeeper.hosts}/shown", stack, settings=OWN_SETTINGS)
        servers.create("flights", PARTITIONS)
        servers.produce("flights", "first", range(PARTITIONS))
        servers.await_in_sync()
        yield servers


@pytest.fixture(scope="module")
def without_third(cluster):
    """The cluster from the end of broker 3's session on. The tests before have it whole."""
    cluster[3].kill()
    until(lambda: sorted(lacking(cluster, "--under-replicated")) == [0, 1, 2], "the end of its session")
    return cluster


def describe(cluster, *options):
    result = CliRunner().invoke(main, ["cluster", "describe", "--servers", cluster.bootstrap, *options])
    assert result.exit_code == 0, result.output
    return result.stdout


def rows(cluster, *options):
    return [json.loads(line) for line in describe(cluster, *options, "--json").splitlines()]


def lacking(cluster, option):
    """Return the partitions of flights that an option lists."""
    return [row["partition"] for row in rows(cluster, option) if row["topic"] == "flights"]


def metrics(server):
    """Return {name: sum over its labels}."""
    sums = {}
    with urlopen(f"http://{server.http}/metrics", timeout=SECONDS) as answer:
        for family in text_string_to_metric_families(answer.read().decode()):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0) + sample.value
            if not family.samples:
                sums[family.name] = None
    return sums


def of_cluster(cluster, name):
    """Return the sum of a metric over the living brokers."""
    return sum(metrics(server)[name] for server in cluster.servers.values() if server.running)


def replication_health(server):
    """Return (status, what /health says of replication)."""
    try:
        with urlopen(f"http://{server.http}/health", timeout=SECONDS) as answer:
            return answer.status, json.load(answer)["cluster"]["replication"]
    except HTTPError as error:
        return error.code, json.load(error)["cluster"]["replication"]


def test_a_sound_cluster_lacks_nothing(cluster):
    text = describe(cluster).splitlines()
    assert "under-replicated: 0" in text and "under-min-isr: 0" in text
    assert rows(cluster, "--under-replicated", "--under-min-isr", "--offline") == []
    for row in rows(cluster, "--partitions"):
        assert row["leader"] == row["preferred"] == row["replicas"][0]
        assert sorted(row["isr"]) == list(NUMBERS) and (row["elr"], row["min_isr"]) == ([], 2)
    assert of_cluster(cluster, "flakelog_partitions_led") == len(rows(cluster, "--partitions"))
    assert of_cluster(cluster, "flakelog_active_controller") == 1
    assert all(replication_health(cluster[number])[0] == 200 for number in NUMBERS)


def test_a_broker_with_replication_has_the_metrics_of_both_tables(cluster):
    expected = {row.name for table in (SERVER, REPLICATION) for rows in table.values() for row in rows} - NOT_SHOWN
    with urlopen(f"http://{cluster[1].http}/metrics", timeout=SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    shown = {line.split()[2] for line in lines if line.startswith("# TYPE flakelog_")}
    assert expected - shown == set()


def test_a_dead_broker_is_seen_the_same_way_by_metrics_health_and_commands(without_third):
    cluster = without_third
    assert lacking(cluster, "--at-min-isr") == [0, 1, 2] and lacking(cluster, "--under-min-isr") == []
    for row in rows(cluster, "--under-replicated"):
        assert row["offline"] == [3] and sorted(row["isr"]) == [1, 2] and row["leader"] != 3
    until(lambda: all(0 in row["lag"].values() for row in rows(cluster, "--under-replicated")), "fetches of followers")
    listed = len(rows(cluster, "--under-replicated"))
    assert of_cluster(cluster, "flakelog_under_replicated_partitions") == listed
    assert of_cluster(cluster, "flakelog_at_min_isr_partitions") == listed
    assert of_cluster(cluster, "flakelog_controller_offline_partitions") == 0
    states = [replication_health(cluster[number]) for number in (1, 2)]
    assert [status for status, _ in states] == [200, 200], "it is a note"
    assert sum(len(state["under_replicated"]) for _, state in states) == listed


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_kafkas_topic_tool_lists_the_same_partitions(without_third, java):
    def listed(option):
        done = java.tool(
            "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", without_third[1].address, "--describe",
            "--topic", "flights", option,
        )  # fmt: skip
        assert not done.exit, done
        lines = done.stdout.splitlines()
        return sorted(int(line.split("Partition: ")[1].split()[0]) for line in lines if "Partition: " in line)

    assert listed("--under-replicated-partitions") == listed("--at-min-isr-partitions") == [0, 1, 2]
    assert listed("--under-min-isr-partitions") == listed("--unavailable-partitions") == []


def test_the_start_health_and_commands_name_a_coordinators_topic_with_one_copy(without_third):
    cluster, third = without_third, without_third[3]
    third.start()
    committed = [TopicPartition("flights", 0, 0)]
    with closing(Consumer({"bootstrap.servers": third.address, "group.id": "readers"})) as consumer:
        consumer.commit(offsets=committed, asynchronous=False)
    warning = "__consumer_offsets has one copy: if a broker dies, its groups have no coordinator until it is back"
    until(lambda: warning in describe(cluster), "the topic at the broker that is asked")
    assert replication_health(third)[1]["coordinators_with_one_copy"] == ["__consumer_offsets"]
    assert third.stop() == 0 and warning not in third.log
    third.start()
    third.wait_for_log(warning)
