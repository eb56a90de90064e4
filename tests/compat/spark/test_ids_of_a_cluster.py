"""Ids of a cluster: the id told at produce is the id read, and a range by id has the same rows as on one broker."""

import time
from contextlib import ExitStack

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from broker.client.blocking import Client
from broker.client.errors import BrokerError
from broker.record.records import BatchRecord, encode_batch
from flakelog.cli import main
from idgen.layout import Layout
from spark_bridge.output.storage import Storage
from spark_bridge.replay.arrow_job import replay
from spark_bridge.replay.job import make_manifest
from spark_bridge.session import spark_session
from tests.compat.cluster_servers import PARTITIONS, Servers
from tests.compat.spark.spark_jars import FOR_SESSION
from tests.patience import until

BATCHES, RECORDS = 4, 5
CLOCKS_MS = 20  # the clocks of two brokers differ by less


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, zookeeper):
    with ExitStack() as stack:
        yield Servers(tmp_path_factory.mktemp("cluster"), f"{zookeeper.hosts}/ids", stack)


def fill(servers, topic):
    """Produce batches to each partition by turns; return the ids told, by (partition, offset).

    Brokers order the ids of one millisecond by their worker numbers. Here a batch comes milliseconds after the one
    before, so that ids rise from batch to batch on every broker.
    """
    ids = {}
    with Client(servers) as client:
        client.create_topic(topic, partitions=len(PARTITIONS))
        until(lambda: read_if_led(servers, topic) == {}, "leaders that all brokers know")
        for number in range(BATCHES):
            for partition in PARTITIONS:
                records = [BatchRecord(n, n, None, b"%d of %d" % (n, number)) for n in range(RECORDS)]
                result = client.produce(topic, partition, encode_batch(records, base_timestamp_ms=1))
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
    for (partition, offset), id in list(ids.items())[:: len(ids) // 6]:
        result = CliRunner().invoke(main, ["id", "find", str(id), "--servers", cluster.bootstrap])
        assert result.exit_code == 0
        words = [line.split() for line in result.output.splitlines()[:3]]
        assert words == [["topic:", "told"], ["partition:", str(partition)], ["offset:", str(offset)]]


def test_a_range_by_id_has_the_same_rows_on_one_broker_and_on_three(cluster, broker, tmp_path):
    spark = spark_session("ids", master="local[2]", **FOR_SESSION)
    rows = []
    for name, servers in (("one", broker.address), ("three", cluster.bootstrap)):
        ids = fill(servers, "ranges")
        start, end = ids[(0, RECORDS + 2)], ids[(3, 3 * RECORDS + 1)]
        within = {at: id for at, id in ids.items() if start <= id < end}
        options = {"kafka.bootstrap.servers": servers, "subscribe": "ranges"}
        options |= {"startingId": str(start), "endingId": str(end)}
        by_spark = spark.read.format("flakelog").options(**options).load().select("partition", "offset", "id", "value")
        by_spark = {(row[0], row[1]): (row[2], bytes(row[3])) for row in by_spark.collect()}
        assert {at: id for at, (id, _) in by_spark.items()} == within
        storage = Storage.at(tmp_path / name)
        receipt = replay(servers, make_manifest(options), storage)
        tables = [pq.read_table(storage.open(name)) for name in receipt.files]
        columns = ("partition", "offset", "id", "value")
        by_replay = {
            row[:2]: row[2:] for table in tables for row in zip(*(table[column].to_pylist() for column in columns))
        }
        assert by_replay == by_spark
        rows.append({at: value for at, (_, value) in by_spark.items()})
    spark.stop()
    assert rows[0] == rows[1] and rows[0]
