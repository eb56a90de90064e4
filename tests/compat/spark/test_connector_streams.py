"""Streams and writes of Spark's Kafka connector and of format "flakelog", on one broker: equal rows and batches."""

import json
import uuid

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from benchmarks.consumers import CONNECTOR
from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch
from spark_bridge.session import spark_session
from tests.compat.server_process import ROOT
from tests.compat.spark.spark_jars import FOR_SESSION
from tests.patience import SECONDS

pytestmark = pytest.mark.soak
FORMATS = ("flakelog", "kafka")
COLUMNS = ("topic", "partition", "offset", "key", "value", "timestamp", "timestampType", "headers")


@pytest.fixture(scope="module")
def spark():
    if not CONNECTOR.exists():
        pytest.skip("Spark's connector is not there: `make stock` brings it where Maven (mvn) is installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        session = spark_session("compare", **FOR_SESSION)
        yield session
        session.stop()


@pytest.fixture(params=["flakelog", "apache"])
def servers(request):
    """Run each comparison on a Flakelog broker and on Apache Kafka."""
    if request.param == "apache":
        return request.getfixturevalue("kafka")
    return request.getfixturevalue("broker").address


def new_topic(servers, partitions=3):
    name = f"both-{uuid.uuid4().hex[:8]}"
    with Client(servers) as client:
        client.create_topic(name, partitions=partitions, configs={"retention.ms": "-1"})  # the records are old
    return name


def fill(servers, topic, counts):
    with Client(servers) as client:
        for partition, count in enumerate(counts):
            records = [BatchRecord(n, n, b"k%d" % n, b"v%d" % n, (("h", b"x"),)) for n in range(count)]
            if records:
                batch = encode_batch(records, base_timestamp_ms=1_700_000_000_000)
                # Apache Kafka's partitions have their leaders a moment after the topic was created.
                client.retry(lambda p=partition, b=batch: client.core.produce(topic, p, b))


def stream(spark, format, servers, topic, checkpoint, **options):
    """Run a stream to the end of the log. Return its batches: rows read, and the end offsets that Spark's log has."""
    given = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"} | options
    rows = spark.readStream.format(format).options(**given).load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(SECONDS)
    if query.exception() is not None:
        raise query.exception()
    batches = []
    for progress in query.recentProgress:
        (source,) = json.loads(progress.json)["sources"]
        end = source["endOffset"]
        batches.append((source["numInputRows"], end if format == "kafka" else end["end"]))
    return [batch for batch in batches if batch[0]]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"maxOffsetsPerTrigger": "50"},
        {"maxOffsetsPerTrigger": "2"},
        {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "100", "maxTriggerDelay": "1s"},
        {"startingTimestamp": "1700000000050", "startingOffsetsByTimestampStrategy": "latest"},
        {"startingOffsets": '{"TOPIC": {"0": 5, "1": -1, "2": -2}}'},
        {"minPartitions": "7"},
        {"kafka.isolation.level": "read_committed"},
        {"failOnDataLoss": "false", "includeHeaders": "true"},
    ],
    ids=str,
)
def test_both_read_the_same_batches(spark, servers, options, tmp_path):
    topic = new_topic(servers)
    fill(servers, topic, (120, 30, 4) if options.get("maxOffsetsPerTrigger") != "2" else (6, 3, 1))
    given = {name: value.replace("TOPIC", topic) for name, value in options.items()}
    ours, theirs = (stream(spark, format, servers, topic, tmp_path / format, **given) for format in FORMATS)
    assert ours == theirs
    fill(servers, topic, (10, 0, 0))
    ours, theirs = (stream(spark, format, servers, topic, tmp_path / format, **given) for format in FORMATS)
    assert ours == theirs


def test_a_query_of_the_connector_goes_on_with_format_flakelog(spark, servers, tmp_path):
    """Only the word kafka changes; the checkpoint stays."""
    topic = new_topic(servers)
    fill(servers, topic, (20, 10, 0))
    assert [rows for rows, _ in stream(spark, "kafka", servers, topic, tmp_path)] == [30]
    fill(servers, topic, (5, 0, 2))
    ends = {topic: {"0": 25, "1": 10, "2": 2}}
    assert stream(spark, "flakelog", servers, topic, tmp_path) == [(7, ends)]


def test_both_write_the_same_messages_to_the_same_partitions(spark, servers):
    """Rows with a key or a partition; rows without either go to partitions by chance."""
    rows = spark.range(300).select(
        F.when(F.col("id") % 30 == 1, F.lit(""))
        .when(F.col("id") % 3 != 0, F.concat(F.lit("key-"), F.col("id")))
        .alias("key"),
        F.col("id").cast("string").alias("value"),
        F.when(F.col("id") % 3 == 0, (F.col("id") % 2).cast("int")).alias("partition"),
        F.when(F.col("id") % 5 == 0, F.array(F.struct(F.lit("h").alias("key"), F.lit(b"v").alias("value")))).alias(
            "headers"
        ),
        F.lit("ignored").alias("other"),
    )
    written = {}
    for format in FORMATS:
        topic = new_topic(servers)
        options = {"kafka.bootstrap.servers": servers, "topic": topic, "kafka.compression.type": "lz4"}
        rows.write.format(format).options(**options).mode("append").save()
        read = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
        stored = read.option("includeHeaders", "true").load().select("partition", "key", "value", "headers").collect()
        written[format] = sorted(str(row) for row in stored)
    assert len(written["kafka"]) == 300
    assert written["flakelog"] == written["kafka"]


@pytest.mark.parametrize(
    ("rows", "options", "says"),
    [
        ("id as value", {}, "value attribute unsupported type"),
        ("'a' as key", {}, "ttribute 'value' not found"),
        ("'a' as value, 1L as partition", {}, "partition attribute unsupported type"),
        ("'a' as value, cast(null as string) as topic", {"topic": None}, "null topic"),
        ("'a' as value", {"topic": None}, "topic option required when no 'topic' attribute is present"),
        ("'a' as value", {"kafka.key.serializer": "x"}, "key.serializer"),
    ],
)
def test_both_refuse_the_same_rows(spark, servers, rows, options, says):
    given = {"kafka.bootstrap.servers": servers, "topic": new_topic(servers)} | options
    for format in FORMATS:
        writer = spark.range(1).selectExpr(*rows.split(", ")).write.format(format)
        for name, value in given.items():
            writer = writer if value is None else writer.option(name, value)
        with pytest.raises(Exception, match=says) as refused:
            writer.mode("append").save()
        assert isinstance(refused.value, PySparkException) or "Py4J" in type(refused.value).__name__


def test_both_refuse_an_end_of_a_stream(spark, servers, tmp_path):
    topic = new_topic(servers)
    ends = json.dumps({topic: {"0": 0, "1": 0, "2": 0}})
    for format in FORMATS:
        for option in ("endingOffsets", "endingOffsetsByTimestamp"):
            with pytest.raises(Exception, match="(?i)ending"):
                stream(spark, format, servers, topic, tmp_path / format, **{option: ends})
