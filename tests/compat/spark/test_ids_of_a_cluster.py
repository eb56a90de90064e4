"""Ids of a cluster: the id told at produce is the id read, and a range by id has the same rows as on one broker.

Topics have one copy unless a test says otherwise.
"""

import json
import time
from contextlib import ExitStack

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from broker.client.blocking import Client
from broker.client.consumer import Consumer
from broker.client.errors import BrokerError
from broker.client.offset_spec import AtId
from broker.record.records import BatchRecord, encode_batch
from flakelog.cli import main
from idgen.layout import Layout
from spark_bridge.output.storage import Storage
from spark_bridge.replay.arrow_job import replay
from spark_bridge.replay.job import make_manifest
from spark_bridge.session import spark_session
from tests.compat.cluster_servers import PARTITIONS
from tests.compat.faults.replicated_brokers import NUMBERS, ReplicatedServers
from tests.compat.spark.spark_jars import FOR_SESSION
from tests.patience import MS, until

BATCHES, RECORDS = 4, 5
CLOCKS_MS = 20  # the clocks of two brokers differ by less


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, zookeeper):
    with ExitStack() as stack:
        settings = {"default.replication.factor": "1"}
        yield ReplicatedServers(tmp_path_factory.mktemp("cluster"), f"{zookeeper.hosts}/ids", stack, settings=settings)


@pytest.fixture(scope="module")
def spark():
    session = spark_session("ids", master="local[2]", **FOR_SESSION)
    yield session
    session.stop()


def fill(servers, topic):
    """Create a topic and produce to it; return the ids told, by (partition, offset)."""
    with Client(servers) as client:
        client.create_topic(topic, partitions=len(PARTITIONS))
    until(lambda: read_if_led(servers, topic) == {}, "leaders that all brokers know")
    return write(servers, topic)


def write(servers, topic):
    """Produce batches to each partition by turns; return the ids told, by (partition, offset).

    Brokers order the ids of one millisecond by their worker numbers. Here a batch comes milliseconds after the one
    before, so that ids rise from batch to batch on every broker. The timestamp of a record is its offset and 1.
    """
    ids = {}
    with Client(servers) as client:
        for number in range(BATCHES):
            for partition in PARTITIONS:
                records = [BatchRecord(n, n, None, b"%d of %d" % (n, number)) for n in range(RECORDS)]
                batch = encode_batch(records, base_timestamp_ms=1 + number * RECORDS)
                result = client.retry(lambda: client.core.produce(topic, partition, batch), timeout_ms=MS)
                of_batch = [first + n for first, count in result.runs for n in range(count)]
                ids |= {(partition, result.base_offset + n): id for n, id in enumerate(of_batch)}
                next_ms = Layout().unpack(of_batch[-1]).time_ms + CLOCKS_MS
                until(lambda: time.time() * 1000 > next_ms, "the time of the next batch")
    return ids


def read(servers, topic):
    """Return the ids that a reader of each partition gets, by (partition, offset)."""
    ids = {}
    with Client(servers) as client:
        for partition in PARTITIONS:
            offset, records = 0, [None]
            while records:
                records, offset = client.fetch(topic, partition, offset, max_wait_ms=0)
                ids |= {(partition, record.offset): record.id for record in records}
    return ids


def read_if_led(servers, topic):
    """Do as `read` does; return None while a partition has no leader."""
    try:
        return read(servers, topic)
    except BrokerError:
        return None


def check_finds(servers, topic, ids):
    """Check that `flakelog id find` finds messages by some of these ids."""
    for (partition, offset), id in list(ids.items())[:: len(ids) // 6]:
        result = CliRunner().invoke(main, ["id", "find", str(id), "--servers", servers])
        assert result.exit_code == 0, result.output
        words = [line.split() for line in result.output.splitlines()[:3]]
        assert words == [["topic:", topic], ["partition:", str(partition)], ["offset:", str(offset)]]


def test_the_id_told_is_read_also_after_a_restart_and_from_another_controller(cluster):
    ids = fill(cluster.bootstrap, "told")
    assert len(ids) == len(set(ids.values())) == BATCHES * RECORDS * len(PARTITIONS)
    assert read(cluster.bootstrap, "told") == ids
    before = cluster.controller
    cluster[before].kill()
    until(lambda: cluster.controller not in (-1, before), "another controller")
    cluster[before].start()
    assert until(lambda: read_if_led(cluster.bootstrap, "told")) == ids
    later = fill(cluster.bootstrap, "later")
    assert not set(later.values()) & set(ids.values())
    check_finds(cluster.bootstrap, "told", ids)


COLUMNS = "partition", "offset", "id", "value"


def spark_rows(spark, options):
    """Return the DataFrame of a read."""
    return spark.read.format("flakelog").options(**options).load().select(*COLUMNS)


def by_place(rows):
    """Return (id, value) of rows, by (partition, offset)."""
    return {(partition, offset): (id, bytes(value)) for partition, offset, id, value in rows}


def rows_of(receipt, storage):
    """Return (id, value) of the rows of a replay, by (partition, offset)."""
    tables = [pq.read_table(storage.open(name)) for name in receipt.files]
    return by_place(row for table in tables for row in zip(*(table[column].to_pylist() for column in COLUMNS)))


def test_a_range_by_id_has_the_same_rows_on_one_broker_and_on_three(cluster, broker, spark, tmp_path):
    rows = []
    for name, servers in (("one", broker.address), ("three", cluster.bootstrap)):
        ids = fill(servers, "ranges")
        start, end = ids[(0, RECORDS + 2)], ids[(3, 3 * RECORDS + 1)]
        within = {at: id for at, id in ids.items() if start <= id < end}
        options = {"kafka.bootstrap.servers": servers, "subscribe": "ranges"}
        options |= {"startingId": str(start), "endingId": str(end)}
        by_spark = by_place(spark_rows(spark, options).collect())
        assert {at: id for at, (id, _) in by_spark.items()} == within
        storage = Storage.at(tmp_path / name)
        assert rows_of(replay(servers, make_manifest(options), storage), storage) == by_spark
        rows.append({at: value for at, (_, value) in by_spark.items()})
    assert rows[0] == rows[1] and rows[0]


def selections(servers, topic, ids):
    """Return the options of a read by offset, by time and by id, and its rows: (options, ids by place) by name."""
    first, end = RECORDS + 2, 3 * RECORDS + 1
    first_id, end_id = ids[(0, first)], ids[(3, end)]
    options = {
        "offset": {name: json.dumps({topic: dict.fromkeys(map(str, PARTITIONS), offset)})
                   for name, offset in (("startingOffsets", first), ("endingOffsets", end))},
        "time": {"startingTimestamp": str(1 + first), "endingTimestamp": str(1 + end)},
        "id": {"startingId": str(first_id), "endingId": str(end_id)},
    }  # fmt: skip
    by_offset = {at: id for at, id in ids.items() if first <= at[1] < end}
    by_id = {at: id for at, id in ids.items() if first_id <= id < end_id}
    common = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    rows = {"offset": by_offset, "time": by_offset, "id": by_id}
    return {name: (common | options[name], rows[name]) for name in options}


class Reader:
    """A consumer that began at an id."""

    def __init__(self, consumer):
        self._consumer = consumer
        self._ids = {}

    def check(self, expected):
        """Read until there are as many records as expected, and compare their ids by (partition, offset)."""
        while len(self._ids) < len(expected):
            for record in self._consumer.poll(timeout_ms=MS):
                self._ids[record.partition, record.offset] = record.id
        assert self._ids == expected


def await_copies(cluster, topic):
    """Wait until all three copies of each partition are in sync."""

    def in_sync():
        return all(len(partition.isrs) == len(NUMBERS) for partition in cluster.topics[topic].partitions.values())

    until(in_sync, "three copies in sync")


def test_reads_begun_before_a_failover_get_the_same_rows_after_it(cluster, spark, tmp_path):
    """The topic has three copies. A leader dies once a replay by id has written the first of its files."""
    topic, servers = "failover", cluster.bootstrap
    cluster.ask_for(topic, len(PARTITIONS))
    await_copies(cluster, topic)
    ids = write(servers, topic)
    reads = selections(servers, topic, ids)
    rows = {name: by_place(spark_rows(spark, options).collect()) for name, (options, _) in reads.items()}
    for name, (_, expected) in reads.items():
        assert {at: id for at, (id, _) in rows[name].items()} == expected
    start = min(reads["id"][1].values())
    ids_read = {at: id for at, id in ids.items() if id >= start}
    with Consumer(servers, [topic], start=AtId(start)) as consumer:
        reader = Reader(consumer)
        reader.check(ids_read)
        begun = {name: spark_rows(spark, options).toLocalIterator() for name, (options, _) in reads.items()}
        first = {name: next(iterator) for name, iterator in begun.items()}
        manifests = {name: make_manifest(options) for name, (options, _) in reads.items()}
        killed = cluster.leaders(topic)[0]

        def kill(*_):
            cluster.kill(killed)

        for name in ("id", "offset", "time"):
            storage = Storage.at(tmp_path / name)
            assert rows_of(replay(servers, manifests[name], storage, threads=1, on_written=kill), storage) == rows[name]
        assert killed not in cluster.leaders(topic).values()
        for name, (options, _) in reads.items():
            assert by_place([first[name], *begun[name]]) == rows[name]
            assert by_place(spark_rows(spark, options).collect()) == rows[name]
        check_finds(servers, topic, ids)
        more = write(servers, topic)
        reader.check(ids_read | more)
    cluster.start(killed)
    await_copies(cluster, topic)
    assert read(servers, topic) == ids | more
    assert len(set((ids | more).values())) == len(ids) + len(more)
