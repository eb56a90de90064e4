"""Real Spark over a real server: streams and writes of format "flakelog".

The session is one that Spark's own builder makes: nothing registers the format, Spark finds pyspark_flakelog.
"""

import json
import sys
import uuid

import pytest
from kafka.partitioner.default import murmur2
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from broker.client.blocking import BlockingClient
from broker.record.records import Record, encode_batch
from coordination.java import find_java
from spark_bridge.session import java_home
from tests.compat.server_process import ROOT
from tests.patience import SECONDS

PARTITIONS = 2


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    """Run a session made by Spark's builder, with the checkout on the path of its workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(java_home(find_java(), tmp_path_factory.mktemp("java"))))
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("PYSPARK_PYTHON", sys.executable)  # by default it is the python3 on PATH
        builder = SparkSession.builder.appName("streams").master("local[2]").config("spark.ui.enabled", "false")
        session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()


@pytest.fixture
def servers(broker):
    return broker.address


@pytest.fixture
def topic(servers):
    return new_topic(servers)


def new_topic(servers, partitions=PARTITIONS):
    name = f"stream-{uuid.uuid4().hex[:8]}"
    with BlockingClient(servers) as client:
        client.create_topic(name, partitions=partitions)
    return name


def fill(servers, topic, count, start=0):
    """Append `count` records to each partition, with the values start, start + 1, ..."""
    with BlockingClient(servers) as client:
        for partition in range(PARTITIONS):
            records = [Record(n, 0, None, b"%d" % (start + n)) for n in range(count)]
            client.produce(topic, partition, encode_batch(records, base_timestamp_ms=1_700_000_000_000))


def source(spark, servers, topic, **options):
    options = {"startingOffsets": "earliest"} | options
    reader = spark.readStream.format("flakelog").option("kafka.bootstrap.servers", servers)
    return reader.option("subscribe", topic).options(**options).load()


def run(rows, checkpoint, each_batch):
    """Run a stream to the end of the log, and return the progress of its batches."""
    writer = rows.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(each_batch)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(SECONDS)
    assert not query.isActive
    if query.exception() is not None:
        raise query.exception()
    return [json.loads(each.json) for each in query.recentProgress]


def places(rows):
    return sorted((row["partition"], row["offset"]) for row in rows.select("partition", "offset").collect())


def test_a_stream_reads_limited_batches_to_the_end_and_goes_on_from_its_checkpoint(spark, servers, topic, tmp_path):
    batches = {}

    def keep(rows, number):
        batches[number] = places(rows)

    fill(servers, topic, 50)
    rows = source(spark, servers, topic, maxOffsetsPerTrigger="40")
    progress = run(rows, tmp_path / "checkpoint", keep)
    assert [len(batch) for batch in batches.values()] == [40, 40, 20]
    lag = [each["sources"][0]["latestOffset"] for each in progress]
    assert [each["maxOffsetsBehindLatest"] for each in lag] == [30, 10, 0]
    fill(servers, topic, 7)
    run(rows, tmp_path / "checkpoint", keep)
    assert len(batches[3]) == 14
    assert sorted(sum(batches.values(), [])) == [(p, offset) for p in range(PARTITIONS) for offset in range(57)]


def test_a_first_batch_that_failed_is_run_again_with_its_own_offsets(spark, servers, topic, tmp_path):
    """After a restart Spark asks for the start again, and now the answer is another (spark.md section 3)."""
    fill(servers, topic, 10)

    def fail(rows, number):
        raise RuntimeError("the driver dies in batch 0")

    with pytest.raises(StreamingQueryException, match="the driver dies"):
        run(source(spark, servers, topic), tmp_path / "checkpoint", fail)
    fill(servers, topic, 5)
    batches = {}
    restarted = source(spark, servers, topic, startingOffsets="latest")
    run(restarted, tmp_path / "checkpoint", lambda rows, number: batches.update({number: places(rows)}))
    assert batches == {
        0: [(p, offset) for p in range(PARTITIONS) for offset in range(10)],
        1: [(p, offset) for p in range(PARTITIONS) for offset in range(10, 15)],
    }


def test_rows_are_written_with_all_their_parts_and_keys_go_where_java_puts_them(spark, servers):
    topic = new_topic(servers, partitions=5)
    rows = spark.range(200).select(
        F.concat(F.lit("key-"), F.col("id")).alias("key"),
        F.when(F.col("id") != 7, F.col("id").cast("string").cast("binary")).alias("value"),
        F.when(F.col("id") % 2 == 0, F.array(F.struct(F.lit("h").alias("key"), F.lit(b"v").alias("value")))).alias(
            "headers"
        ),
        F.lit(topic).alias("topic"),
        F.when(F.col("id") >= 100, F.lit(3)).alias("partition"),
    )
    settings = {"kafka.bootstrap.servers": servers, "kafka.compression.type": "zstd", "kafka.acks": "all"}
    rows.write.format("flakelog").options(**settings).mode("append").save()
    read = spark.read.format("flakelog").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    found = read.option("includeHeaders", "true").load().collect()
    assert len(found) == 200
    for row in found:
        key = bytes(row["key"])
        number = int(key.removeprefix(b"key-"))
        assert row["value"] == (None if number == 7 else b"%d" % number)
        assert row["partition"] == (3 if number >= 100 else (murmur2(key) & 0x7FFFFFFF) % 5)
        headers = [(each["key"], bytes(each["value"])) for each in row["headers"] or ()]
        assert headers == ([("h", b"v")] if number % 2 == 0 else [])


def test_a_stream_is_written_to_the_topic_that_the_option_names(spark, servers, topic, tmp_path):
    """The rows of a read can be written as they are: their other columns are ignored."""
    fill(servers, topic, 20)
    copy = new_topic(servers)
    writer = source(spark, servers, topic).writeStream.format("flakelog").option("kafka.bootstrap.servers", servers)
    query = writer.option("topic", copy).option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    query.awaitTermination(SECONDS)
    assert query.exception() is None
    copied = spark.read.format("flakelog").option("kafka.bootstrap.servers", servers).option("subscribe", copy).load()
    assert sorted(bytes(row["value"]) for row in copied.collect()) == sorted(b"%d" % (n // 2) for n in range(40))


def first_line(error):
    """Return what Spark says before the traceback."""
    return str(error.value).split("\nThe above exception")[0].strip().splitlines()[-1]


def test_an_error_is_one_line_before_the_traceback(spark, servers, topic):
    rows = spark.range(1).selectExpr("cast(id as string) as value", "9 as partition")
    write = rows.write.format("flakelog").option("kafka.bootstrap.servers", servers).option("topic", topic)
    with pytest.raises(PythonException) as unknown_partition:
        write.mode("append").save()
    assert first_line(unknown_partition).startswith(f"flakelog: {topic}-9: Local: Unknown partition")
    with pytest.raises(AnalysisException) as overwrite:
        write.mode("overwrite").save()
    assert "flakelog: save mode overwrite is not possible" in first_line(overwrite)
    with pytest.raises(AnalysisException) as no_topic:
        source(spark, servers, "no-such-topic")
    assert first_line(no_topic).endswith("flakelog: there is no topic 'no-such-topic'")
