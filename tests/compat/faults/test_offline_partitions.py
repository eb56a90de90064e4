"""A partition that is offline because its files are damaged: real server, real clients.

In a topic of three partitions, partition 1 is offline. Each client names it, goes on with the others, and reads it when
it is served again.
"""

import asyncio
import re
from base64 import urlsafe_b64decode

import pytest
from confluent_kafka import Consumer as Librdkafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from benchmarks.apache import SHORT_LIVED, await_answer, start_kafka
from benchmarks.native import Unavailable
from broker.client.address import addresses_of
from broker.client.async_consumer import AsyncConsumer
from broker.client.blocking import Client
from broker.client.consumer import Consumer
from broker.client.errors import BrokerError, ProduceError
from broker.client.producer import Delivered, Producer
from flakelog.operations.partitions import replicas
from spark_bridge.reading.cluster import Cluster, Unreachable
from spark_bridge.reading.settings import Patience, ReadSettings
from tests.compat.numbers_topic import QUICK, SOON_MS, WAIT_MS, say
from tests.compat.server_process import ServerProcess
from tests.patience import SECONDS, until

TOPIC = "kept"
OFFLINE = "kept-1: LEADER_NOT_AVAILABLE"
METADATA_LOG = f"__cluster_metadata-0/{0:020}.log"  # Kafka's


class Damaged:
    """A server with partition 1 of the topic offline; `mend` restarts it with the right file."""

    def __init__(self, directory):
        self.server = ServerProcess(directory / "data").keep_ports()
        self._log = directory / "data" / "kept-1" / f"{0:020}.log"
        self._saved = directory / "saved"

    def __enter__(self):
        self.server.start()
        with Client(self.address) as client:
            client.create_topic(TOPIC, 3)
            for partition in range(3):
                say(client, TOPIC, partition, partition)
        self.server.stop()
        self._log.rename(self._saved)
        self._log.mkdir()
        self.server.start()
        return self

    def __exit__(self, *_):
        self.server.__exit__()

    @property
    def address(self):
        return self.server.address

    def mend(self):
        self.server.stop()
        self._log.rmdir()
        self._saved.rename(self._log)
        self.server.start()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with Damaged(tmp_path_factory.mktemp("damaged")) as damaged:
        yield damaged.address


def test_a_client_names_it_and_reads_the_others(address):
    with Client(address) as client:
        for ask in (
            lambda: client.fetch(TOPIC, 1, 0),
            lambda: client.find_offset(TOPIC, 1, -1),
            lambda: client.multifetch({(TOPIC, 0): 0, (TOPIC, 1): 0}),
            lambda: say(client, TOPIC, 1, 7),
        ):
            with pytest.raises(BrokerError, match=OFFLINE) as caught:
                ask()
            assert caught.value.retriable
        assert [record.value for record in client.fetch(TOPIC, 0, 0)[0]][:1] == [b"0"]
        assert [leader is None for leader in client.topic(TOPIC).leaders.values()] == [False, True, False]


def test_a_producer_names_it_and_writes_to_the_others(address):
    with Producer(address, queue_time_ms=0, timeout_ms=1_000) as producer:
        with pytest.raises(ProduceError, match="kept-1: not acknowledged within 1000 ms: the partition is offline"):
            producer.send_and_wait(TOPIC, "x", partition=1)
        assert producer.send_and_wait(TOPIC, "x", partition=2) == Delivered(TOPIC, 2, 1)


def test_a_plan_of_the_spark_bridge_names_it(address):
    settings = ReadSettings(patience=Patience(2, pause_ms=1))
    with Cluster.connect(addresses_of(address), settings) as cluster, pytest.raises(Unreachable, match=OFFLINE):
        cluster.latest(TOPIC)


def test_librdkafka_names_it(address):
    consumer = Librdkafka({"bootstrap.servers": address, "group.id": "g", "log_level": 0})
    found = consumer.list_topics(TOPIC, timeout=SECONDS).topics[TOPIC].partitions
    assert (found[1].leader, found[1].error.code()) == (-1, KafkaError.LEADER_NOT_AVAILABLE)
    assert (found[0].leader, found[0].error) == (1, None)
    with pytest.raises(KafkaException):  # at once, as "Unknown partition"
        consumer.get_watermark_offsets(TopicPartition(TOPIC, 1), timeout=SECONDS)
    consumer.close()


def test_kafkas_own_tool_lists_it_as_unavailable(address, java):
    """It reads DescribeTopicPartitions, and prints just this for Apache Kafka."""
    described = "--bootstrap-server", address, "--describe", "--unavailable-partitions"
    done = java.tool("org.apache.kafka.tools.TopicCommand", *described)
    assert (done.exit, done.stderr) == (0, ""), done
    line = done.stdout.strip().replace("\t", " ")
    assert line == "Topic: kept Partition: 1 Leader: none Replicas: 1 Isr:  Elr: 1 LastKnownElr: 1"


def test_consumers_read_the_others_and_then_it_when_it_is_served_again(tmp_path, caplog):
    def stock(records, wanted):
        """Poll librdkafka until the wanted partitions came."""
        while not wanted <= records.keys():
            message = theirs.poll(0.1)
            if message is not None and message.error() is None:
                records.setdefault(message.partition(), message.value())

    async def under_asyncio(damaged):
        async with AsyncConsumer(damaged.address, TOPIC, config=QUICK) as consumer:
            first = [await anext(consumer) for _ in range(2)]
            assert await consumer.poll(SOON_MS) == []
            await asyncio.to_thread(damaged.mend)
            async with asyncio.timeout(SECONDS):
                return {record.partition for record in first}, (await anext(consumer)).value

    with Damaged(tmp_path) as damaged:
        theirs = Librdkafka(
            {
                "bootstrap.servers": damaged.address,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": 500,
                "log_level": 0,
            }
        )
        theirs.assign([TopicPartition(TOPIC, partition, 0) for partition in range(3)])
        with Consumer(damaged.address, TOPIC, timeout_ms=WAIT_MS, config=QUICK) as ours:
            assert {next(ours).partition for _ in range(2)} == {0, 2}
            stock(records := {}, {0, 2})
            assert asyncio.run(under_asyncio(damaged)) == ({0, 2}, b"1")
            assert next(ours).value == b"1"
            stock(records, {1})
            assert records == {0: b"0", 1: b"1", 2: b"2"}
        theirs.close()
    assert OFFLINE in caplog.text


# --- as Apache Kafka -------------------------------------------------------------------------------------------------


def described(address):
    """Return for each partition whether it has a leader, and the numbers of its replicas and of those in sync."""
    with Client(address) as client:
        nodes = replicas(client, (TOPIC,))
    return {
        number: (each.leader >= 0, len(each.replicas), len(each.in_sync)) for (_, number), each in nodes.items()
    }


def id_of(directory):
    """Return the id by which Kafka's metadata name a log directory (KIP-858)."""
    (id,) = re.findall("directory.id=(.*)", (directory / "meta.properties").read_text())
    return urlsafe_b64decode(id + "==")


@pytest.mark.soak
def test_apache_kafka_describes_a_partition_in_a_failed_directory_the_same_way(tmp_path, address):
    directories = tmp_path / "one", tmp_path / "two"
    settings = {
        "log.dirs": ",".join(map(str, directories)),
        "metadata.log.dir": str(tmp_path / "metadata"),
        "replica.high.watermark.checkpoint.interval.ms": "500",  # it finds out by a write
    }
    try:
        _, process = start_kafka(tmp_path, settings, SHORT_LIVED)
    except Unavailable as error:
        pytest.skip(str(error))
    try:
        kafka = (tmp_path / "address").read_text()
        await_answer(kafka, process)
        with Client(kafka) as client:
            client.create_topic(TOPIC, 3)
            until(lambda: len([each for one in directories for each in one.glob(f"{TOPIC}-*")]) == 3)
            (failed,) = [each for each in directories if (each / f"{TOPIC}-1").exists()]
            gone = {int(each.name.rpartition("-")[2]) for each in failed.glob(f"{TOPIC}-*")}
            # The controller must know which directory has the partitions: the registration names it, and each of them.
            until(lambda: (tmp_path / "metadata" / METADATA_LOG).read_bytes().count(id_of(failed)) > len(gone))
            failed.rename(tmp_path / "gone")
            until(lambda: None in client.topic(TOPIC).leaders.values())
            for partition in gone:
                with pytest.raises(BrokerError, match="LEADER_NOT_AVAILABLE"):
                    client.fetch(TOPIC, partition, 0)
        ours, theirs = described(address), described(kafka)
        assert {theirs[partition] for partition in gone} == {ours[1]} == {(False, 1, 0)}
        assert {theirs[partition] for partition in {0, 1, 2} - gone} <= {ours[0]}
    finally:
        process.kill()
        process.wait()
