"""Brokers of ours follow a leader of Kafka 3.9.1, and it follows them, on a test bench with a switch (`test_bench`).

The switch lets batches without ids pass, which the product refuses (rule I2). So this shows how followers fetch and
truncate, and no way to migrate. It also sends ids to Kafka's follower, which did not ask for them.
"""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.compat import stock_java
from tests.compat.faults.replicated_loads import Java, Librdkafka
from tests.compat.kafka_cluster.kafka_broker import need_kafka
from tests.compat.kafka_cluster.loads_on_both import loads_on_both
from tests.compat.kafka_cluster.replicas_of_both import KAFKAS, ReplicasOfBoth
from tests.compat.kafka_cluster.written_records import WrittenRecords
from tests.compat.server_process import PYTHONPATH

pytestmark = pytest.mark.soak
need_kafka()
stock_java.need_java()

TEST_BENCH = Path(__file__).with_name("test_bench")
CODECS = "none", "gzip", "snappy", "lz4", "zstd"
TRUNCATIONS = 20
TURNS = 5


@pytest.fixture(scope="module")
def brokers(tmp_path_factory, zookeeper):
    env = {"PYTHONPATH": f"{PYTHONPATH}{os.pathsep}{TEST_BENCH}"}
    with ExitStack() as stack:
        brokers = ReplicasOfBoth(tmp_path_factory.mktemp("kafka-leads"), zookeeper.hosts, stack, env=env)
        yield brokers
        brokers.check_logs()


def test_our_logs_are_kafkas_after_each_truncation(brokers, java, name):
    """Kafka's broker and ours lead in turn, and broker 3, of ours, cuts its log behind each.

    Behind Kafka's leader, broker 2 cuts its log too. Kafka's broker dies when it has led, and cuts its own after that.
    """
    topic = brokers.create_copied(name, KAFKAS, 2, 3)
    written = WrittenRecords(brokers, topic, java)
    for number in range(TRUNCATIONS):
        written.write(f"kept-{number}", CODECS[number % len(CODECS)])
        brokers.await_equal(topic)
        if brokers.leader(topic) == KAFKAS:
            lost = written.lose(f"lost-{number}", 2, killed=(KAFKAS,))
        else:
            lost = written.lose(f"lost-{number}", KAFKAS)
        assert not brokers.await_equal(topic).startswith(lost), f"round {number}"
        written.check_by_librdkafka()
    written.write("last")
    brokers.await_equal(topic)
    written.check_by_librdkafka()


def test_nothing_acknowledged_is_lost_while_both_kinds_lead_in_turn(brokers, java):
    """Kafka's broker leads once both others are dead, and one of them once Kafka's is."""
    with loads_on_both(brokers, [Librdkafka(brokers.bootstrap), Java(java, brokers.bootstrap)]) as loads:
        for _ in range(TURNS):
            loads.kill_and_start(2, 3)
            loads.kill_and_start(KAFKAS)
