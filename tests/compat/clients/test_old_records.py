"""Retention, DeleteRecords and compaction as stock clients see them, on a real disk, with kill -9.

https://kafka.apache.org/documentation/#compaction and #topicconfigs: the remaining records keep their offsets, and a
consumer whose next record was removed continues where its `auto.offset.reset` says.
"""

import os
import pickle
from contextlib import suppress
from functools import partial
from itertools import count

import pyarrow as pa
import pytest
from click.testing import CliRunner
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from kafka import KafkaAdminClient
from kafka import TopicPartition as PythonPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

import flakelog
from flakelog.cli import main
from flakelog.commands.exit_codes import LOST_DATA
from spark_bridge.source.datasource import FlakelogDataSource
from tests.compat.cluster_servers import one_or_three
from tests.compat.server_process import ServerProcess
from tests.compat.stock_clients import CLIENTS, QUIET
from tests.patience import SECONDS, until

SETTINGS = {
    "log.retention.check.interval.ms": 200,
    "log.cleaner.backoff.ms": 100,
    "log.flush.offset.checkpoint.interval.ms": 200,
    "log.segment.delete.delay.ms": 100,
}
SEGMENT = {"segment.bytes": "20000"}
COMPACT = SEGMENT | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}

_numbers = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with one_or_three(tmp_path_factory.mktemp("old"), SETTINGS) as server:
        yield server


def make_topic(server, config):
    name = f"old-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": server.address, **QUIET})
    admin.create_topics([NewTopic(name, 1, config=config)])[name].result(SECONDS)
    return name


def produce(server, topic, records, **config):
    """Produce (key, value) pairs, and return {offset: (key, value)} as acknowledged."""
    produced = {}

    def acknowledged(error, message):
        assert error is None, error
        produced[message.offset()] = message.key(), message.value()

    settings = {"bootstrap.servers": server.address, "batch.num.messages": 20, "linger.ms": 1, **QUIET}
    producer = Producer(settings | config)
    for key, value in records:
        producer.produce(topic, value, key, on_delivery=acknowledged)
        producer.poll(0)
    assert producer.flush(SECONDS) == 0
    return produced


def read(server, topic, **config):
    """Return {offset: (key, value)} of all records, from the beginning to the end."""
    settings = {"bootstrap.servers": server.address, "group.id": "reader", "enable.partition.eof": True, **config}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    records = {}
    try:
        while True:
            message = consumer.poll(SECONDS)
            assert message is not None, "neither a record nor the end"
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                return records
            records[message.offset()] = message.key(), message.value()
    finally:
        consumer.close()


def size_of(server, topic):
    size = 0
    for path in server.directory_of(f"{topic}-0").glob("*.log"):
        with suppress(FileNotFoundError):  # it was removed meanwhile
            size += path.stat().st_size
    return size


def close_segment(server, topic):
    """Produce a record that does not fit into the active segment, so that the earlier records can be cleaned.

    Its bytes are random, so that no codec makes it smaller.
    """
    return produce(server, topic, [(b"end", os.urandom(30_000))])


def latest(records):
    last_values = dict(records[offset] for offset in sorted(records))
    return {key: value for key, value in last_values.items() if value is not None}


def compacted(server, topic, keys):
    """Wait for full compaction, which leaves the last record of each key and the closing record, and return these."""
    return until(lambda: len(remaining := read(server, topic)) <= keys + 1 and remaining, what="compaction")


def updates(number, keys, say="value"):
    return [(b"key-%d" % (n % keys), f"{say} {n} ".encode() * 8) for n in range(number)]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_compacted_topic_is_read_back_with_the_last_of_each_key(server, codec):
    topic = make_topic(server, COMPACT)
    sent = produce(server, topic, updates(5000, 50), **{"compression.type": codec})
    sent |= close_segment(server, topic)
    remaining = compacted(server, topic, 50)
    assert latest(remaining) == latest(sent) and remaining.items() <= sent.items()
    assert size_of(server, topic) < 30_000 + 60 * 1000


def test_every_client_reads_a_compacted_topic(server):
    topic = make_topic(server, COMPACT)
    sent = produce(server, topic, updates(3000, 30))
    close_segment(server, topic)
    remaining = compacted(server, topic, 30)
    for client in CLIENTS.values():
        messages = client.read(server.address, topic, len(remaining))
        assert [(message.key, message.value) for message in messages] == list(remaining.values()), client.name
    assert latest(remaining).items() >= latest(sent).items()


def test_a_tombstone_takes_its_key_away_and_goes_itself(server):
    topic = make_topic(server, COMPACT | {"delete.retention.ms": "0"})
    produce(server, topic, [(b"a", b"1"), (b"b", b"1"), (b"a", None)])

    def tombstone_is_gone():
        produce(server, topic, [(b"more", b"x" * 15_000)])
        return {b"a"}.isdisjoint(key for key, _ in read(server, topic).values())

    until(tombstone_is_gone, what="the tombstone's going")
    assert latest(read(server, topic))[b"b"] == b"1"


def test_compaction_under_kill_9_loses_no_key(tmp_path):
    """After a kill at any point of a cleaning, each acknowledged key exists and each record keeps its offset."""
    with ServerProcess(tmp_path / "data", SETTINGS).keep_ports() as server:
        topic = make_topic(server, COMPACT)
        sent = {}
        for round in range(3):
            sent |= produce(server, topic, updates(3000, 40, f"round {round}"))
            for _ in range(round):
                read(server, topic)  # the cleaner works meanwhile
            mark = server.mark()
            server.restart()
            remaining = read(server, topic)
            assert latest(remaining) == latest(sent) and remaining.items() <= sent.items()
            assert "offline" not in server.log_since(mark) and "not cleaned" not in server.log_since(mark)


def test_old_records_go_and_a_reader_of_them_goes_on_at_the_earliest_there_is(server):
    topic = make_topic(server, SEGMENT | {"retention.ms": "1500"})
    settings = {"bootstrap.servers": server.address, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    produce(server, topic, updates(1000, 10))
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    until(lambda: consumer.get_watermark_offsets(TopicPartition(topic, 0), SECONDS) == (1000, 1000), what="retention")
    for_ever = ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("topic", topic, incremental_configs=[for_ever])
    admin = AdminClient({"bootstrap.servers": server.address, **QUIET})
    admin.incremental_alter_configs([resource])[resource].result(SECONDS)
    (offset,) = produce(server, topic, [(b"new", b"new")])
    assert offset == 1000, "an emptied log goes on where it was"
    consumer.assign([TopicPartition(topic, 0, 1)])
    message = consumer.poll(SECONDS)
    assert (message.offset(), message.value()) == (1000, b"new")
    consumer.close()


def test_a_topic_keeps_about_as_many_bytes_as_it_may(server):
    topic = make_topic(server, SEGMENT | {"retention.bytes": "50000"})
    sent = produce(server, topic, updates(3000, 10))
    until(lambda: size_of(server, topic) < 75_000, what="retention")
    remaining = read(server, topic)
    assert (
        remaining.items() <= sent.items()
        and max(remaining) == 2999
        and min(remaining) > 0
        and size_of(server, topic) >= 50_000
    )


def low(server, topic):
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": "low"})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), SECONDS)[0]
    finally:
        consumer.close()


def test_records_are_deleted_by_stock_admin_clients(server):
    topic = make_topic(server, SEGMENT)
    produce(server, topic, updates(1000, 10))
    admin = AdminClient({"bootstrap.servers": server.address, **QUIET})
    partition = TopicPartition(topic, 0, 400)
    assert admin.delete_records([partition])[partition].result(SECONDS).low_watermark == 400
    assert low(server, topic) == 400 and min(read(server, topic)) == 400
    python = KafkaAdminClient(bootstrap_servers=server.address)
    deleted = next(iter(python.delete_records({PythonPartition(topic, 0): 700})))
    assert deleted.topic == topic and low(server, topic) == 700
    python.close()
    with pytest.raises(KafkaException) as refused:
        admin.delete_records([TopicPartition(topic, 0, 1001)])[TopicPartition(topic, 0, 1001)].result(SECONDS)
    assert refused.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE
    until(lambda: len(list(server.directory_of(f"{topic}-0").glob("*.log"))) < 6, what="the files' going")


def test_what_was_deleted_stays_so_after_kill_9(tmp_path):
    with ServerProcess(tmp_path / "data").keep_ports() as server:
        topic = make_topic(server, SEGMENT)
        produce(server, topic, updates(1000, 10))
        admin = AdminClient({"bootstrap.servers": server.address, **QUIET})
        partition = TopicPartition(topic, 0, -1)
        admin.delete_records([partition])[partition].result(SECONDS)
        checkpoint = server.data_dir / "checkpoint"
        until(lambda: checkpoint.exists() and b'"log_start_offset": 1000' in checkpoint.read_bytes(), what="it")
        server.restart()
        assert low(server, topic) == 1000
        assert list(produce(server, topic, [(b"a", b"1")])) == [1000]


def commit(server, topic, group, *offsets):
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": group})
    for offset in offsets:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def committed(server, topic, group):
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": group})
    (partition,) = consumer.committed([TopicPartition(topic, 0)], SECONDS)
    consumer.close()
    return partition.offset


def test_offsets_of_groups_survive_compaction_and_restarts(tmp_path):
    """`__consumer_offsets` is compacted too, and each group finds its last committed offset."""
    settings = SETTINGS | {"offsets.topic.num.partitions": 1, "log.cleaner.min.cleanable.ratio": 0.01}
    with ServerProcess(tmp_path / "data", settings).keep_ports() as server:
        topic = make_topic(server, {})
        produce(server, topic, updates(10, 10))
        commit(server, topic, "old", 7)
        admin = AdminClient({"bootstrap.servers": server.address, **QUIET})
        small = ConfigEntry("segment.bytes", "10000", incremental_operation=AlterConfigOpType.SET)
        offsets = ConfigResource("topic", "__consumer_offsets", incremental_configs=[small])
        admin.incremental_alter_configs([offsets])[offsets].result(SECONDS)
        commit(server, topic, "new", *range(300), 8)
        until(lambda: size_of(server, "__consumer_offsets") < 15_000, what="compaction")
        server.restart()
        for group, offset in (("old", 7), ("new", 8)):
            assert committed(server, topic, group) == offset


# --- the bridge --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table(server):
    """Return a compacted topic and its records."""
    topic = make_topic(server, COMPACT)
    produce(server, topic, updates(500, 10))
    close_segment(server, topic)
    return topic, compacted(server, topic, 10)


def test_reads_replays_and_loads_take_what_compaction_left(server, table, tmp_path):
    """No option is needed, as with the connector: the topic's cleanup.policy says that offsets may be missing."""
    topic, remaining = table
    assert sorted(flakelog.read(server.address, topic).read_all()["offset"].to_pylist()) == sorted(remaining)
    with pytest.raises(pa.ArrowInvalid, match="DataLoss: .*if the topic was compacted once, read it with compacted="):
        flakelog.read(server.address, topic, options={"compacted": "false"}).read_all()
    run = CliRunner()
    for command in ("replay", "load"):
        option = "--out" if command == "replay" else "--to"
        done = run.invoke(main, [command, topic, "--servers", server.address, option, str(tmp_path / command)])
        assert done.exit_code == 0, done.output
        assert done.stdout.startswith(f"{len(remaining)} messages in 1 file")


def test_a_topic_that_was_compacted_once_needs_the_word_of_the_user(server, tmp_path):
    topic = make_topic(server, COMPACT)
    produce(server, topic, updates(500, 10))
    close_segment(server, topic)
    remaining = compacted(server, topic, 10)
    delete = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
    altered = ConfigResource("topic", topic, incremental_configs=[delete])
    admin = AdminClient({"bootstrap.servers": server.address, **QUIET})
    admin.incremental_alter_configs([altered])[altered].result(SECONDS)
    run = partial(CliRunner().invoke, main)
    for command, option in (("replay", "--out"), ("load", "--to")):
        argv = [command, topic, "--servers", server.address, option, str(tmp_path / command)]
        refused = run(argv)
        assert refused.exit_code == LOST_DATA
        assert "if the topic was compacted once, read it with compacted=true, or --compacted" in refused.stderr
        done = run([*argv, "--compacted"])
        assert done.exit_code == 0, done.output
        assert done.stdout.startswith(f"{len(remaining)} messages in 1 file")


def test_batches_and_streams_of_spark_take_what_compaction_left(server, table):
    """The test calls the methods that Spark calls in its Python processes, without a JVM."""
    topic, remaining = table
    options = {"kafka.bootstrap.servers": server.address, "subscribe": topic, "startingOffsets": "earliest"}
    source = FlakelogDataSource(options)
    source.schema()
    batch, stream = source.reader(StructType()), source.streamReader(StructType())
    start = stream.initialOffset()
    planned = stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))
    for reader, partitions in ((batch, batch.partitions()), (stream, planned)):
        (partition,) = partitions
        rows = pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(partition)))
        assert sorted(
            offset for record_batch in rows for offset in record_batch.column("offset").to_pylist()
        ) == sorted(remaining)
    stream.stop()
