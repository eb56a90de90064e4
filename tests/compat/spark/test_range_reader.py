"""A range reader as a Spark task has it: what it imports, and its reads from real brokers."""

import re
import subprocess
import sys
from urllib.request import urlopen
from uuid import uuid4

import pytest

from broker.client.blocking import Client
from broker.client.errors import TryAgain
from broker.client.transaction import TransactionalProducer
from broker.record.records import BatchRecord, encode_batch
from flakelog.operations.topics import delete_records
from spark_bridge.reading import range_reader
from spark_bridge.reading.cluster import Cluster
from spark_bridge.reading.network import addresses
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.range_reader import read_range
from spark_bridge.reading.settings import ReadSettings
from spark_bridge.selection.options import parse
from spark_bridge.selection.pinned import pin
from tests.compat.server_process import ServerProcess
from tests.patience import SECONDS, until


def test_a_task_imports_nothing_of_the_servers_and_no_spark():
    """A Spark task loads neither server modules nor Spark.

    import-linter checks the imports; this test checks the modules that they load.
    """
    code = f"import {range_reader.__name__}, sys; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"numpy", "pyarrow", "crc32c", "cramjam", "kio"} <= set(loaded)
    assert not {"twisted", "kazoo", "klein", "confluent_kafka", "pyspark", "pandas", "idgen"} & set(loaded)


# --- real brokers -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["flakelog", "kafka"])
def address(request):
    if request.param == "kafka":
        return request.getfixturevalue("kafka")
    return request.getfixturevalue("broker").address


@pytest.fixture
def topic(address):
    name = f"read-{uuid4().hex[:8]}"
    with Client(address) as client:
        client.create_topic(name)
    return name


def persist(client, operation):
    """Carry out an operation until it stops asking to be called again."""

    def done():
        try:
            client.run(operation())
        except TryAgain:
            return False
        return True

    until(done, operation.__name__)


def transaction(client, producer, topic, *values, end):
    """Write values in a transaction, which `end` commits or aborts; None leaves it open."""
    persist(client, producer.begin)
    producer.add(topic, 0, [BatchRecord(n, 0, None, value) for n, value in enumerate(values)], 1_000)
    persist(client, producer.flush)
    if end is not None:
        persist(client, end)


def values(address, topic, start, end, **settings):
    within = OffsetRange(topic, 0, start, end)
    batches = read_range(within, ("offset", "value"), addresses(address), ReadSettings(**settings))
    return [(row["offset"], row["value"]) for batch in batches for row in batch.to_pylist()]


def test_a_read_of_committed_records_leaves_out_aborted_and_open_transactions(address, topic):
    """Markers and aborted records use up offsets, so the range ends by position (KIP-98)."""
    with Client(address) as client, Cluster.connect(addresses(address)) as cluster:
        producer = TransactionalProducer(client.core, f"t-{topic}")
        other = TransactionalProducer(client.core, f"o-{topic}")
        transaction(client, producer, topic, b"a", b"b", end=producer.commit)
        transaction(client, producer, topic, b"x", b"y", end=producer.abort)
        transaction(client, producer, topic, b"c", end=producer.commit)
        end = 8
        until(lambda: cluster.latest(topic, committed=True)[0] == end, "the marker that Kafka writes after its answer")
        transaction(client, other, topic, b"open", end=None)
        assert (cluster.latest(topic)[0], cluster.latest(topic, committed=True)[0]) == (9, end)
        committed = [(0, b"a"), (1, b"b"), (6, b"c")]
        assert values(address, topic, 0, end, read_committed=True) == committed
        assert values(address, topic, 1, 7, read_committed=True) == committed[1:]
        assert values(address, topic, 4, 6, read_committed=True) == []
        everything = [(0, b"a"), (1, b"b"), (3, b"x"), (4, b"y"), (6, b"c"), (8, b"open")]
        assert values(address, topic, 0, 9) == everything
        persist(client, other.abort)


def test_offsets_that_were_deleted_are_reported_and_the_rest_is_read(address, topic):
    with Client(address) as client:
        for n in range(10):
            client.produce(topic, 0, encode_batch([BatchRecord(0, 0, None, b"%d" % n)], base_timestamp_ms=1))
        delete_records(client, {(topic, 0): 4})
    lost = []
    batches = read_range(
        OffsetRange(topic, 0, 2, 10),
        ("offset",),
        addresses(address),
        ReadSettings(fail_on_data_loss=False),
        on_lost=lambda within, reason: lost.append(((within.start, within.end), reason)),
    )
    assert [row["offset"] for batch in batches for row in batch.to_pylist()] == [4, 5, 6, 7, 8, 9]
    ((within, reason),) = lost
    assert within == (2, 4) and "its log starts at 4 and ends at 10" in reason


def connections_opened(server):
    with urlopen(f"http://{server.http}/metrics", timeout=SECONDS) as answer:
        match = re.search(r"^flakelog_connections_opened(?:_total)? ([\d.]+)", answer.read().decode(), re.MULTILINE)
    return float(match.group(1))


def test_a_plan_takes_one_connection_to_the_broker(tmp_path):
    """A pattern of 40 topics opened 383 connections."""
    with ServerProcess(tmp_path / "data") as server:
        with Client(server.address) as client:
            for n in range(40):
                client.create_topic(f"many-{n}", 3)
        before = connections_opened(server)
        options = parse({"kafka.bootstrap.servers": server.address, "subscribePattern": "many-.*"})
        with Cluster.connect(options.servers, options.driver_settings) as cluster:
            pinned = pin(options, cluster, None, "0.1.0")
        assert len(pinned.manifest.topic_ids) == 40
        assert connections_opened(server) - before == 1


def test_the_ranges_of_a_process_take_one_connection_also_after_the_broker_has_restarted(tmp_path):
    """Each of 1,000 small tasks opened its own."""
    server = ServerProcess(tmp_path / "data")
    server.keep_ports()
    with server:
        with Client(server.address) as client:
            client.create_topic("small", 20)
            for partition in range(20):
                client.produce("small", partition, encode_batch([BatchRecord(0, 0, None, b"v")], base_timestamp_ms=1))
        for _ in ("at first", "after a restart"):
            before = connections_opened(server)
            ranges = [OffsetRange("small", partition, 0, 1) for partition in range(20)]
            at = addresses(server.address)
            assert [batch.num_rows for span in ranges for batch in read_range(span, ("value",), at)] == [1] * 20
            assert connections_opened(server) - before == 1
            server.restart()
