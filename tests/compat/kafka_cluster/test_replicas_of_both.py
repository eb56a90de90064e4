"""A broker of Kafka 3.9.1 follows leaders of ours under our controller, and both kinds acknowledge records.

Each truncation is one that Kafka knows: a leader dies, or hands over, while it has records that one member of the ISR
lacks, and that member leads next.
"""

import json
from contextlib import ExitStack
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.compat import stock_java
from tests.compat.faults.replicated_loads import Java, Librdkafka, OwnClient
from tests.compat.kafka_cluster.kafka_broker import need_kafka
from tests.compat.kafka_cluster.loads_on_both import loads_on_both
from tests.compat.kafka_cluster.replicas_of_both import KAFKAS, ReplicasOfBoth
from tests.compat.kafka_cluster.written_records import WrittenRecords
from tests.patience import SECONDS, until

pytestmark = pytest.mark.soak
need_kafka()
stock_java.need_java()

CODECS = "none", "gzip", "snappy", "lz4", "zstd"
TRUNCATIONS = 20


@pytest.fixture(scope="module")
def brokers(tmp_path_factory, zookeeper):
    with ExitStack() as stack:
        brokers = ReplicasOfBoth(tmp_path_factory.mktemp("replicas-of-both"), zookeeper.hosts, stack)
        yield brokers
        brokers.check_logs()


def test_kafkas_log_is_ours_after_each_truncation(brokers, java, name):
    """Brokers 2 and 3 lead in turn. Broker 4, of Kafka, has copied records that the next leader lacks, and cuts them.

    In every fourth round it is killed too, so that it cuts its log after its start.
    """
    topic = brokers.create_copied(name, 2, 3, KAFKAS)
    written = WrittenRecords(brokers, topic, java)
    for number in range(TRUNCATIONS):
        written.write(f"kept-{number}", CODECS[number % len(CODECS)])
        brokers.await_equal(topic)
        cuts = brokers.kafkas_truncations(topic)
        if brokers.leader(topic) == 2:
            lost = written.lose(f"lost-{number}", 3, killed=(2, KAFKAS) if number % 4 else (2,))
        else:
            lost = written.lose(f"lost-{number}", 2)
        assert not brokers.await_equal(topic).startswith(lost)
        assert brokers.kafkas_truncations(topic) > cuts, f"round {number}"
    written.write("last")
    brokers.await_equal(topic)
    written.check()


KILLED = [(2,), (KAFKAS,), (3,), (3, KAFKAS), (2, KAFKAS)] * 2
"""Brokers that die at the same time. Without two of three, writers wait until one is back."""


def test_nothing_that_both_kinds_acknowledged_is_lost(brokers, java):
    writers = Librdkafka(brokers.bootstrap), OwnClient(brokers.bootstrap), Java(java, brokers.bootstrap)
    with loads_on_both(brokers, writers) as loads:
        for killed in KILLED:
            loads.kill_and_start(*killed)


def test_acks_all_waits_for_kafkas_copy(brokers, java, name):
    topic = brokers.create_copied(name, 2, KAFKAS)
    written = WrittenRecords(brokers, topic, java)
    brokers.pause(KAFKAS)
    written.write_to_leader(2, "first")  # it answers a fetch of Kafka's broker that waits already
    batch = written.begin("copied by both")
    written.write_to_leader(2, "last")
    assert not batch.acknowledged, "only the leader has them"
    brokers.resume(KAFKAS)
    written.note(batch)
    brokers.await_equal(topic)
    written.check()


def test_acks_all_is_refused_without_kafkas_copy(brokers, java, name):
    topic = brokers.create_copied(name, 2, KAFKAS)
    written = WrittenRecords(brokers, topic, java)
    written.write("with Kafka")
    brokers.kill(KAFKAS)
    brokers.await_isr_at(2, topic, [2])
    assert written.refusals("without Kafka") == {"NOT_ENOUGH_REPLICAS"}
    brokers.start(KAFKAS)
    brokers.await_in_sync(topic)
    written.write("with Kafka again")
    brokers.await_equal(topic)
    written.check()


def test_a_follower_of_ours_refuses_what_a_leader_of_kafka_wrote(brokers, java, name):
    """Records of a leader of Kafka have no ids, and only a record's leader gives it one (rule I2).

    With an ISR below min.insync.replicas, Kafka's leader would not move its high watermark, so the topic asks for one.
    """
    topic = brokers.create_copied(name, 2, KAFKAS, min_insync_replicas="1")
    written = WrittenRecords(brokers, topic, java)
    written.write("ours")
    brokers.kill(2)
    brokers.await_leader(topic, KAFKAS)
    written.check_by_librdkafka()
    written.write_to_leader(KAFKAS, "Kafka's")
    mark = brokers[2].mark()
    brokers.start(2)
    refusal = brokers[2].wait_for_log("is followed no more until it has another leader", mark)
    assert topic in refusal and "The leader must be a Flakelog broker" in refusal
    status, health = health_of(brokers[2])
    assert status == 503 and "there are no ids" in health["cluster"]["replication"]["failed"][f"{topic}-0"]
    assert brokers.state(topic)["isr"] == [KAFKAS]
    assert brokers.log_bytes(topic, KAFKAS).startswith(brokers.log_bytes(topic, 2))


def health_of(server):
    """Return the status and the JSON of a server's /health."""
    try:
        with urlopen(f"http://{server.http}/health", timeout=SECONDS) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def test_kafka_skips_the_elr_that_our_controller_sends(brokers, java, name):
    """A dead member of an ISR below min.insync.replicas is in the ELR (KIP-966), a tagged field of ours."""
    topic = brokers.create_copied(name, 2, 3, KAFKAS, min_insync_replicas="3")
    brokers.kill(3)
    until(lambda: brokers.state(topic)["flakelog"]["elr"] == [3], "an ELR")
    brokers.await_isr_at(KAFKAS, topic, [2, KAFKAS])
    brokers.start(3)
    brokers.await_in_sync(topic)
    written = WrittenRecords(brokers, topic, java)
    written.write("with all")
    brokers.await_equal(topic)
    written.check()
