"""Stock consumers of a topic with hundreds of partitions, with and without a fetch session, against a real server.

kafka-python keeps a fetch session (KIP-227), as Java's consumer does; librdkafka and aiokafka send whole requests.
"""

import os
from itertools import count
from urllib.request import urlopen

import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from tests.compat.server_process import ServerProcess
from tests.compat.stock_clients import CLIENTS, gather
from tests.patience import SECONDS, until

PARTITIONS = 200
FILES = 4  # of each partition
_numbers = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    settings = {"group.initial.rebalance.delay.ms": 0}
    with ServerProcess(tmp_path_factory.mktemp("many") / "data", settings) as server:
        yield server


@pytest.fixture
def topic(server):
    name = f"many-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": server.address})
    admin.create_topics([NewTopic(name, PARTITIONS)])[name].result(SECONDS)
    return name


def produce(server, topic, label, partitions=PARTITIONS):
    """Produce one message to each partition."""
    producer = confluent_kafka.Producer({"bootstrap.servers": server.address, "linger.ms": 20})
    for partition in range(partitions):
        producer.produce(topic, f"{label} {partition}", partition=partition)
    assert producer.flush(SECONDS) == 0


def figure(server, name):
    with urlopen(f"http://{server.http}/metrics", timeout=SECONDS) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {sample.name: sample.value for family in families for sample in family.samples}[name]


@pytest.mark.parametrize("name", CLIENTS)
def test_every_partition_is_read_while_they_fill_again(server, topic, name):
    client = CLIENTS[name]
    with client.member(server.address, f"group-{name}", topic) as member:
        for label in ("first", "second"):
            produce(server, topic, label)
            values = {message.value for message in gather(member.poll, PARTITIONS)}
            assert values == {f"{label} {partition}".encode() for partition in range(PARTITIONS)}


def test_a_consumer_that_knows_sessions_keeps_one_over_all_its_partitions(server, topic):
    """A consumer's fetch session covers all of its partitions, and its answers omit idle partitions."""
    former = figure(server, "flakelog_fetch_session_partitions")
    consumer = kafka.KafkaConsumer(bootstrap_servers=server.address, auto_offset_reset="earliest", fetch_max_wait_ms=50)
    try:
        consumer.assign([kafka.TopicPartition(topic, partition) for partition in range(PARTITIONS)])
        until(
            lambda: not consumer.poll(100)
            and figure(server, "flakelog_fetch_session_partitions") >= former + PARTITIONS
        )
        before = figure(server, "flakelog_network_sent_bytes_total")
        consumer.poll(1_000)
        sent_bytes = figure(server, "flakelog_network_sent_bytes_total") - before
        assert 0 < sent_bytes < 30 * PARTITIONS, "several answers, together less than a single one with all partitions"
        produce(server, topic, "then")
        records = gather(lambda: [record for some in consumer.poll(100).values() for record in some], PARTITIONS)
        assert {record.value for record in records} == {f"then {partition}".encode() for partition in range(PARTITIONS)}
    finally:
        consumer.close()


def read(server, topic, number, partitions):
    """Return the values of a topic's first messages."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": server.address, "group.id": "none"})
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(partitions)])
    try:
        return {message.value().decode() for message in gather(lambda: consumer.consume(1_000, 0.1), number)}
    finally:
        consumer.close()


@pytest.mark.parametrize(
    "descriptors, topics, partitions", [(200, 1, 100), pytest.param(4_096, 20, 1_000, marks=pytest.mark.soak)]
)
def test_partitions_have_more_files_than_the_server_may_open(tmp_path, descriptors, topics, partitions):
    """They start, serve and stop. Files of silent partitions are closed, and opened again when they are used."""
    names = [f"many-{number}" for number in range(topics)]
    limited = ServerProcess(tmp_path / "data", prefix=["prlimit", f"--nofile={descriptors}:{descriptors}"])
    assert topics * partitions * FILES > descriptors
    with limited.keep_ports() as server:
        admin = AdminClient({"bootstrap.servers": server.address})
        for name in names:
            admin.create_topics([NewTopic(name, partitions)])[name].result(SECONDS)
        for label in ("first", "second"):
            for name in names:
                produce(server, name, label, partitions)
                assert open_descriptors(server) < descriptors * 3 // 4
        del admin
        server.stop()
        server.start()
        assert open_descriptors(server) < descriptors * 3 // 4
        expected = {f"{label} {number}" for label in ("first", "second") for number in range(partitions)}
        for name in names:
            assert read(server, name, 2 * partitions, partitions) == expected
            produce(server, name, "third", partitions)
            assert open_descriptors(server) < descriptors * 3 // 4
        assert 0 < figure(server, "flakelog_open_files") <= descriptors // 5


def open_descriptors(server):
    return len(os.listdir(f"/proc/{server.pid}/fd"))
