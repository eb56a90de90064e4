"""confluent-kafka, kafka-python and aiokafka, unchanged, against a real server: every codec, with a group and without.

Mission: every Kafka client works unchanged. Each client reads the messages of every other client, byte for byte. The
broker stores batches as they were sent (https://kafka.apache.org/documentation/#recordbatch), and so keeps their codec.
"""

import os
import subprocess
import sys
from contextlib import contextmanager
from itertools import count

import confluent_kafka
import kafka
import kafka.errors
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from broker.record.batch import walk
from broker.record.compression import Codec
from tests.compat.cluster_servers import one_or_three
from tests.compat.server_process import ROOT, ServerProcess
from tests.compat.stock_clients import CLIENTS, QUIET, Message, gather
from tests.patience import SECONDS, until

PARTITIONS = 4
VICTIMS_SESSION_MS = 1_500
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,  # the tests' groups need not wait for more members
    "group.min.session.timeout.ms": 500,
}

_numbers = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with one_or_three(tmp_path_factory.mktemp("stock"), SETTINGS) as server:
        yield server


@pytest.fixture(params=CLIENTS)
def client(request):
    return CLIENTS[request.param]


@pytest.fixture
def topic(server):
    return make_topic(server)


def make_topic(server, partitions=1):
    name = f"topic-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": server.address})
    admin.create_topics([NewTopic(name, partitions)])[name].result(SECONDS)
    return name


def messages(number, prefix="message"):
    """Return messages, some with a key, some with headers, some empty; every codec makes their batch smaller."""
    return [
        Message(
            b"key-%d" % n if n % 3 else None,
            f"{prefix} {n} ".encode() * 20 if n % 7 else b"",
            (("source", b"test"), ("empty", b"")) if n % 2 else (),
        )
        for n in range(number)
    ]


# --- codecs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_what_one_client_writes_every_client_reads(server, client, codec, topic):
    if codec and codec not in client.codecs:
        pytest.skip(f"{client.name} needs its extra for {codec}")
    sent = messages(200)
    client.produce(server.address, topic, sent, codec)
    log = (server.directory_of(f"{topic}-0") / "00000000000000000000.log").read_bytes()
    # librdkafka does not compress a batch that would not become smaller, such as a single first message on a busy
    # machine.
    used = {header.compression for _, header in walk(log)} - {Codec.NONE}
    assert used == {Codec[(codec or "none").upper()]} - {Codec.NONE}
    for reader in CLIENTS.values():
        if codec in (None, *reader.codecs):
            assert reader.read(server.address, topic, len(sent)) == sent, f"as {reader.name} reads it"


def test_an_idempotent_producers_records_are_read_as_committed(server, topic):
    """Without transactions every acknowledged record is committed (KIP-98)."""
    sent = messages(100)
    confluent = CLIENTS["confluent-kafka"]
    confluent.produce(server.address, topic, sent, "lz4", **{"enable.idempotence": True})
    assert confluent.read(server.address, topic, 100, **{"isolation.level": "read_committed"}) == sent


# --- groups ----------------------------------------------------------------------------------------------------------


def test_a_group_goes_on_where_it_has_committed(server, client, topic):
    group = f"group-of-{client.name}"
    first, second = messages(50, "first"), messages(30, "second")
    client.produce(server.address, topic, first)
    with client.member(server.address, group, topic) as member:
        assert gather(member.poll, len(first)) == first
        member.commit()
    client.produce(server.address, topic, second)
    with client.member(server.address, group, topic) as member:
        assert gather(member.poll, len(second)) == second


@contextmanager
def member_process(client, server, group, topic):
    """Run a group member in a separate process, which is killed and not closed."""
    arguments = client.name, server.address, group, topic, str(VICTIMS_SESSION_MS)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.compat.clients.group_member", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_killed_members_partitions_go_to_the_other(server, client):
    """A killed member does not leave its group, so its session must expire (session.timeout.ms) before a rebalance."""
    topic = make_topic(server, PARTITIONS)
    group = f"takeover-{client.name}"
    producer = confluent_kafka.Producer({"bootstrap.servers": server.address, **QUIET})

    def holds(member, number):
        def polled():
            member.poll()
            return len(member.partitions) == number

        return polled

    with client.member(server.address, group, topic) as member:
        until(holds(member, PARTITIONS), what="the whole topic")
        with member_process(client, server, group, topic) as other:
            until(holds(member, PARTITIONS // 2), what="the second member")
            other.kill()
            until(holds(member, PARTITIONS), what="the killed member's share")
        for partition in range(PARTITIONS):
            producer.produce(topic, b"for %d" % partition, partition=partition)
        assert producer.flush(SECONDS) == 0
        received = gather(member.poll, PARTITIONS)
    assert sorted(message.value for message in received) == [b"for %d" % n for n in range(PARTITIONS)]


def test_a_group_survives_the_brokers_kill_9(tmp_path, client):
    """The broker reads `__consumer_offsets` at its start, so that surviving and new members find their group."""
    with ServerProcess(tmp_path / "data", SETTINGS).keep_ports() as server:
        topic, sent = make_topic(server), messages(60)
        client.produce(server.address, topic, sent[:20])
        with client.member(server.address, "survivors", topic) as member:
            assert gather(member.poll, 20) == sent[:20]
            member.commit()
            server.restart()
            client.produce(server.address, topic, sent[20:40])
            assert gather(member.poll, 20) == sent[20:40]
            member.commit()
        server.restart()
        client.produce(server.address, topic, sent[40:])
        with client.member(server.address, "survivors", topic) as member:
            assert gather(member.poll, 20) == sent[40:]


# --- administration --------------------------------------------------------------------------------------------------


def test_librdkafkas_admin_sees_and_deletes_groups_and_topics(server, topic):
    confluent = CLIENTS["confluent-kafka"]
    confluent.produce(server.address, topic, messages(10))
    admin = AdminClient({"bootstrap.servers": server.address})
    with confluent.member(server.address, "seen", topic) as member:
        gather(member.poll, 10)
        member.commit()
        (described,) = [future.result(SECONDS) for future in admin.describe_consumer_groups(["seen"]).values()]
        assert described.state.name == "STABLE" and len(described.members) == 1
        assert "seen" in {group.group_id for group in admin.list_consumer_groups().result(SECONDS).valid}
    partition = confluent_kafka.TopicPartition(topic, 0)
    query = confluent_kafka.ConsumerGroupTopicPartitions("seen", [partition])
    (offsets,) = [future.result(SECONDS) for future in admin.list_consumer_group_offsets([query]).values()]
    assert [committed.offset for committed in offsets.topic_partitions] == [10]
    admin.delete_consumer_groups(["seen"])["seen"].result(SECONDS)
    admin.delete_topics([topic])[topic].result(SECONDS)
    assert topic not in admin.list_topics(timeout=SECONDS).topics
    assert "seen" not in {group.group_id for group in admin.list_consumer_groups().result(SECONDS).valid}


def test_kafka_pythons_admin_sees_and_deletes_groups_and_topics(server, topic):
    python = CLIENTS["kafka-python"]
    python.produce(server.address, topic, messages(10))
    with python.member(server.address, "seen-too", topic) as member:
        gather(member.poll, 10)
        member.commit()
    admin = kafka.KafkaAdminClient(bootstrap_servers=server.address)
    try:
        offsets = admin.list_group_offsets(["seen-too"])["seen-too"]
        assert [committed.offset for committed in offsets.values()] == [10]
        admin.delete_groups(["seen-too"])
        admin.delete_topics([topic])
        assert topic not in admin.list_topics()
    finally:
        admin.close()
