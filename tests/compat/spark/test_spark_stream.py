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

from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch
from coordination.java import find_java
from spark_bridge.session import java_home
from tests.compat.server_process import ROOT
from tests.compat.spark.spark_jars import SETTINGS
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
        session = builder.config(map=SETTINGS | {"spark.sql.shuffle.partitions": "2"}).getOrCreate()
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
    with Client(servers) as client:
        client.create_topic(name, partitions=partitions)
    return name


def fill(servers, topic, count, start=0):
    """Append `count` records to each partition, with the values start, start + 1, ..."""
    with Client(servers) as client:
        for partition in range(PARTITIONS):
            records = [BatchRecord(n, 0, None, b"%d" % (start + n)) for n in range(count)]
            client.produce(topic, partition, encode_batch(records, base_timestamp_ms=1_700_000_000_000))


def source(spark, servers, topic, **options):
    options = {"startingOffsets": "earliest"} | options
    reader = spark.readStream.format("flakelog").option("kafka.bootstrap.servers", servers)
    return reader.option("subscribe", topic).options(**options).load()


def run(writer, checkpoint):
    """Run a stream to the end of the log, and return the progress of its batches."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination(SECONDS)
    assert not query.isActive
    if query.exception() is not None:
        raise query.exception()
    return [json.loads(progress.json) for progress in query.recentProgress]


def positions(rows):
    return sorted((row["partition"], row["offset"]) for row in rows.select("partition", "offset").collect())


def test_a_stream_copies_a_topic_in_limited_batches_and_goes_on_from_its_checkpoint(spark, servers, topic, tmp_path):
    """The rows of a read are written as they are: the option topic overrides their column."""
    copy = new_topic(servers)
    writer = source(spark, servers, topic, maxOffsetsPerTrigger="60").writeStream.format("flakelog")
    writer = writer.option("kafka.bootstrap.servers", servers).option("topic", copy)
    fill(servers, topic, 50)
    progress = run(writer, tmp_path)
    assert [batch["numInputRows"] for batch in progress] == [60, 40]
    assert [batch["sources"][0]["latestOffset"]["maxOffsetsBehindLatest"] for batch in progress] == [20, 0]
    fill(servers, topic, 7, start=50)
    assert [batch["numInputRows"] for batch in run(writer, tmp_path)][-1] == 14
    copied = spark.read.format("flakelog").option("kafka.bootstrap.servers", servers).option("subscribe", copy).load()
    assert sorted(int(row["value"]) for row in copied.collect()) == sorted([*range(57)] * PARTITIONS)


def test_a_first_batch_that_failed_is_run_again_with_its_own_offsets(spark, servers, topic, tmp_path):
    """After a restart Spark asks for the start again, and now the answer is another."""
    fill(servers, topic, 10)

    def fail(rows, number):
        raise RuntimeError("the driver dies in batch 0")

    with pytest.raises(StreamingQueryException, match="the driver dies"):
        run(source(spark, servers, topic).writeStream.foreachBatch(fail), tmp_path)
    fill(servers, topic, 5)
    batches = {}
    restarted = source(spark, servers, topic, startingOffsets="latest").writeStream
    run(restarted.foreachBatch(lambda rows, number: batches.update({number: positions(rows)})), tmp_path)
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
    rows_read = read.option("includeHeaders", "true").load().collect()
    assert len(rows_read) == 200
    for row in rows_read:
        key = bytes(row["key"])
        number = int(key.removeprefix(b"key-"))
        assert row["value"] == (None if number == 7 else b"%d" % number)
        assert row["partition"] == (3 if number >= 100 else (murmur2(key) & 0x7FFFFFFF) % 5)
        headers = [(header["key"], bytes(header["value"])) for header in row["headers"] or ()]
        assert headers == ([("h", b"v")] if number % 2 == 0 else [])


def first_line(error):
    """Return what Spark says before the traceback."""
    return str(error.value).split("\nThe above exception")[0].strip().splitlines()[-1]


def test_an_error_is_one_line_before_the_traceback(spark, servers, topic):
    rows = spark.range(1).selectExpr("cast(id as string) as value", "9 as partition")
    write = rows.write.format("flakelog").option("kafka.bootstrap.servers", servers).option("topic", topic)
    for _ in ("by a delivery report", "at once, because the worker's producer knows the topic now"):
        with pytest.raises(PythonException) as unknown_partition:
            write.mode("append").save()
        assert first_line(unknown_partition).startswith(f"flakelog: {topic}-9: Local: Unknown partition")
    with pytest.raises(AnalysisException) as overwrite:
        write.mode("overwrite").save()
    assert "flakelog: save mode overwrite is not possible" in first_line(overwrite)
    with pytest.raises(AnalysisException) as no_topic:
        source(spark, servers, "no-such-topic")
    assert first_line(no_topic).endswith("flakelog: there is no topic 'no-such-topic'")
