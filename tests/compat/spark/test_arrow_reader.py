"""`flakelog.read` on a real server: exact ranges as Arrow, without Spark, and an end that leaves nothing open."""

import gc
import os
import subprocess
import sys
import threading
import uuid
from datetime import UTC, datetime

import duckdb
import polars
import pyarrow as pa
import pytest

import flakelog
from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch
from flakelog.operations.topics import delete_records
from spark_bridge.selection import manifest as manifests
from spark_bridge.selection.options import OptionError
from spark_bridge.selection.selector import SelectionError
from tests.poison import PASSES_LENGTHS, RECORDS

T0 = 1_700_000_000_000
ROWS = 100  # in each of two partitions


@pytest.fixture
def servers(broker):
    return broker.address


@pytest.fixture
def topic(servers):
    """Return a topic of two partitions; each has the offsets 0 to 99, in batches of ten."""
    name = f"flights-{uuid.uuid4().hex[:8]}"
    with Client(servers) as client:
        client.create_topic(name, partitions=2, configs={"retention.ms": "-1"})
        for partition in (0, 1):
            append(client, name, partition, range(0, ROWS, 10))
    return name


def append(client, topic, partition, firsts):
    for first in firsts:
        records = [BatchRecord(n, 0, b"k", b"%d" % (first + n), (("h", b"1"),)) for n in range(10)]
        client.produce(topic, partition, encode_batch(records, base_timestamp_ms=T0 + first))


def offsets_of(table):
    """Return {partition: its offsets in the order of the rows}."""
    offsets = {}
    for partition, offset in zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True):
        offsets.setdefault(partition, []).append(offset)
    return offsets


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "flakelog-read"]


def sockets():
    targets = []
    for number in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            pass
    return {target for target in targets if target.startswith("socket:")}


def test_all_rows_come_in_the_order_of_their_offsets(servers, topic):
    with flakelog.read(servers, topic, headers=True) as reader:
        table = reader.read_all()
    assert offsets_of(table) == {0: list(range(ROWS)), 1: list(range(ROWS))}
    row = table.slice(7, 1).to_pylist()[0]
    assert (row["key"], row["value"], row["headers"]) == (b"k", b"7", [{"key": "h", "value": b"1"}])
    assert table["id"].null_count == 0


def test_the_end_is_fixed_at_the_call(servers, topic):
    reader = flakelog.read(servers, topic, columns=["offset"])
    with Client(servers) as client:
        append(client, topic, 0, [ROWS])
    assert reader.read_all().num_rows == 2 * ROWS
    assert flakelog.read(servers, topic, columns=["offset"]).read_all().num_rows == 2 * ROWS + 10


def test_ranges_are_half_open(servers, topic):
    ids = sorted(flakelog.read(servers, topic, columns=["id"]).read_all()["id"].to_pylist())
    selected = flakelog.read(servers, topic, ids=(ids[10], ids[90])).read_all()["id"].to_pylist()
    assert sorted(selected) == ids[10:90]
    by_offset = flakelog.read(servers, topic, offsets={0: (5, 10), 1: (95, None)}).read_all()
    assert offsets_of(by_offset) == {0: [5, 6, 7, 8, 9], 1: [95, 96, 97, 98, 99]}
    whole = flakelog.read(servers, topic, offsets={topic: {1: (None, 3)}}).read_all()
    assert offsets_of(whole) == {1: [0, 1, 2]}
    start = datetime.fromtimestamp(T0 / 1000 + 0.010, UTC)
    by_time = flakelog.read(servers, topic, times=(start, T0 + 30)).read_all()
    assert offsets_of(by_time) == {0: list(range(10, 30)), 1: list(range(10, 30))}
    assert flakelog.read(servers, topic, times=(T0 + 10**9, None)).read_all().num_rows == 0


def test_options_name_topics_and_manifests_as_the_connectors_do(servers, topic, tmp_path):
    """docs/spark.md lists subscribePattern, assign and manifest as options of every read."""
    by_pattern = flakelog.read(servers, options={"subscribePattern": topic[:-1] + "."}, times=(T0 + 90, None))
    manifest = tmp_path / "manifest.json"
    manifest.write_bytes(by_pattern.schema.metadata[b"flakelog.manifest"])
    assert offsets_of(by_pattern.read_all()) == {0: list(range(90, 100)), 1: list(range(90, 100))}
    by_manifest = flakelog.read(servers, options={"Manifest": str(manifest)}).read_all()
    assert offsets_of(by_manifest) == {0: list(range(90, 100)), 1: list(range(90, 100))}
    assigned = flakelog.read(servers, options={"assign": f'{{"{topic}": [1]}}', "onPoison": "skip"}).read_all()
    assert offsets_of(assigned) == {1: list(range(ROWS))}
    with pytest.raises(OptionError, match="a read needs topics"):
        flakelog.read(servers)
    with pytest.raises(OptionError, match="topics are given twice"):
        flakelog.read(servers, topic, options={"subscribePattern": ".*"})


def test_the_manifest_is_in_the_schema_and_gives_the_same_rows_again(servers, topic):
    first = flakelog.read(servers, topic, columns=["offset", "partition"])
    text = first.schema.metadata[b"flakelog.manifest"]
    assert manifests.load(text).offsets == 2 * ROWS
    with Client(servers) as client:
        append(client, topic, 0, [ROWS])
    again = flakelog.read(servers, manifest=text)
    assert again.schema == first.schema
    assert offsets_of(again.read_all()) == offsets_of(first.read_all())


def test_a_reader_that_is_closed_or_forgotten_leaves_no_thread_and_no_socket(servers, topic):
    options = {"maxRecordsPerPartition": "10", "kafka.max.partition.fetch.bytes": "100"}
    before = sockets()
    with flakelog.read(servers, topic, options=options, threads=3) as reader:
        reader.read_next_batch()
        assert len(threads()) == 3
    assert (threads(), sockets() - before) == ([], set())
    forgotten = flakelog.read(servers, topic, options=options, threads=3)
    forgotten.read_next_batch()
    del forgotten
    gc.collect()
    assert (threads(), sockets() - before) == ([], set())


def test_closing_ends_a_read_that_waits_for_an_answer(servers, topic, broker):
    """The broker is stopped, so the threads wait in their sockets. Closing does not wait for their timeouts."""
    options = {"maxRecordsPerPartition": "10", "kafka.request.timeout.ms": "600000"}
    with flakelog.read(servers, topic, options=options, threads=2) as reader:
        reader.read_next_batch()
        os.kill(broker.pid, 19)  # SIGSTOP
        try:
            reader.close()
            assert threads() == []
        finally:
            os.kill(broker.pid, 18)  # SIGCONT


def test_batches_that_cannot_be_decoded_fail_the_read_or_are_left_out(servers, topic):
    with Client(servers) as client:
        client.produce(topic, 1, PASSES_LENGTHS)
        append(client, topic, 1, [ROWS + RECORDS])
    with pytest.raises(pa.ArrowInvalid, match="CorruptBatch: .*onPoison=skip leaves such batches out"):
        flakelog.read(servers, topic).read_all()
    assert flakelog.read(servers, topic, on_poison="skip").read_all().num_rows == 2 * ROWS + 10


def test_lost_offsets_and_ignored_options_are_warned_about(servers, topic, caplog):
    with Client(servers) as client:
        delete_records(client, {(topic, 0): 30})
    options = {"failOnDataLoss": "false", "kafka.max.poll.records": "9"}
    reader = flakelog.read(servers, topic, offsets={0: (10, 50)}, options=options)
    assert caplog.messages == [
        "flakelog: option kafka.max.poll.records is ignored: a task reads whole fetches",
        f"flakelog: lost 20 offsets, {topic}-0[10, 30), because failOnDataLoss=false: {topic}-0 has offsets 30 to 100; "
        "asked for 10 to 50",
    ]
    assert offsets_of(reader.read_all()) == {0: list(range(30, 50))}


def test_what_cannot_be_read_is_refused_at_the_call(servers, topic):
    for wrong, says in (
        ({"ids": (1, 2), "times": (1, 2)}, "one range"),
        ({"ids": 5}, r"a pair \(first, end\)"),
        ({"columns": ["valeu"]}, "valeu"),
        ({"threads": 0}, "threads is 1 or more"),
        ({"options": {"kafka.auto.offset.reset": "latest"}}, "auto.offset.reset is refused"),
        ({"manifest": b"{}"}, "no topics"),
        ({"offsets": {}}, "offsets are"),
    ):
        with pytest.raises(OptionError, match=says):
            flakelog.read(servers, topic, **wrong)
    with pytest.raises(SelectionError, match=f"{topic}-0 has offsets 0 to 100"):
        flakelog.read(servers, topic, offsets={0: (0, 101)})


def test_several_topics_are_one_read(servers, topic):
    other = f"{topic}-b"
    with Client(servers) as client:
        client.create_topic(other, partitions=1)
        append(client, other, 0, range(0, 30, 10))
    names = flakelog.read(servers, [topic, other], columns=["topic"]).read_all()["topic"].to_pylist()
    assert {name: names.count(name) for name in names} == {topic: 2 * ROWS, other: 30}


def test_pandas_polars_and_duckdb_read_it(servers, topic):
    assert len(flakelog.read(servers, topic).read_pandas()) == 2 * ROWS
    assert polars.from_arrow(flakelog.read(servers, topic))["offset"].sum() == 2 * sum(range(ROWS))
    reader = flakelog.read(servers, topic, columns=["offset"])  # noqa: F841  (duckdb finds it by its name)
    assert duckdb.sql("SELECT count(*), max(\"offset\") FROM reader").fetchall() == [(2 * ROWS, ROWS - 1)]


def test_importing_flakelog_loads_no_arrow_and_a_missing_one_is_named():
    code = (
        "import sys, flakelog; assert 'pyarrow' not in sys.modules and 'numpy' not in sys.modules\n"
        "sys.modules['pyarrow'] = None\n"
        "try: flakelog.read\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'flakelog[arrow]'" in done.stdout


def test_a_read_loads_neither_spark_nor_twisted():
    code = "import sys; from flakelog import read; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "pyarrow" in loaded
    assert not {"pyspark", "twisted", "kazoo", "confluent_kafka", "pandas"} & set(loaded)
