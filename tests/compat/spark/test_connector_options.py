"""Each option of Spark's Kafka connector has the same meaning in ours: both read one log, and the rows are equal.

The cases are the options of the Structured Streaming + Kafka Integration Guide. Each runs with format("kafka") and with
format("flakelog"), on a Flakelog broker and, in `make soak`, on Apache Kafka. All quick reads of a format are one Spark
job, and the others another, because a job for each would take minutes.
"""

import json
import re
from contextlib import contextmanager
from functools import reduce
from typing import NamedTuple

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from benchmarks.consumers import CONNECTOR
from idgen.layout import Layout
from spark_bridge.selection.options import OptionError, parse
from spark_bridge.session import spark_session
from spark_bridge.source.datasource import pin_now
from tests.compat.server_process import ServerProcess
from tests.compat.spark.spark_jars import FOR_SESSION
from tests.patience import SECONDS

T0 = 1_700_000_000_000
OURS, CONNECTORS = "flakelog", "kafka"
COLUMNS = ("topic", "partition", "offset", "key", "value", "timestamp", "timestampType", "headers")
RAISED = (PySparkException, Py4JJavaError)  # the second is an error of the JVM that pyspark has no name for


class Read(NamedTuple):
    """Options, and the offsets that they read: {"topic-partition": offsets}."""

    name: str
    options: dict[str, str]
    reads: dict[str, object]
    quick: bool = False


class Refusal(NamedTuple):
    """Options that both formats refuse, and what our error says."""

    name: str
    options: dict[str, str]
    says: str


def given(**topics):
    """Return JSON with a value for each partition."""
    return json.dumps({topic: {str(p): value for p, value in enumerate(values)} for topic, values in topics.items()})


A, OLD, TXN = ({"subscribe": topic} for topic in ("a", "old", "txn"))
ALL_OF_A = {"a-0": range(20), "a-1": range(10)}
COMMITTED = {"kafka.isolation.level": "read_committed"}
LOSING = {"failOnDataLoss": "false"}
QUICK = {"kafkaConsumer.pollTimeoutMs": "2000", "fetchOffset.retryIntervalMs": "10"}

READS = [
    Read("one topic", A, ALL_OF_A, quick=True),
    Read("two topics", {"subscribe": "a, b"}, ALL_OF_A | {"b-0": range(5)}),
    Read("assigned partitions", {"assign": '{"a": [1], "b": [0]}'}, {"a-1": range(10), "b-0": range(5)}),
    Read("a pattern", {"subscribePattern": "a|b"}, ALL_OF_A | {"b-0": range(5)}),
    Read("a pattern found in a name", {"subscribePattern": "ol"}, {"old-0": range(4, 10)}, quick=True),
    Read("a pattern that matches nothing", {"subscribePattern": "^ol$"}, {}),
    Read("words of any case", A | {"startingOffsets": "EARLIEST", "endingOffsets": "Latest"}, ALL_OF_A),
    Read(
        "offsets with marks",
        A | {"startingOffsets": given(a=[5, -2]), "endingOffsets": given(a=[9, -1])},
        {"a-0": range(5, 9), "a-1": range(10)},
        quick=True,
    ),
    Read("a starting time", A | {"startingTimestamp": str(T0 + 150)}, {"a-0": range(15, 20), "a-1": range(5, 10)}),
    Read("an ending time", A | {"endingTimestamp": str(T0 + 150)}, {"a-0": range(15), "a-1": range(5)}),
    Read("an ending time after all", A | {"endingTimestamp": str(T0 + 1000)}, ALL_OF_A),
    Read(
        "a starting time after a partition, strategy latest",
        A | {"startingTimestamp": str(T0 + 185), "startingOffsetsByTimestampStrategy": "LATEST"},
        {"a-0": range(19, 20), "a-1": range(9, 10)},
    ),
    Read(
        "times of each partition",
        A
        | {
            "startingOffsetsByTimestamp": given(a=[T0 + 50, T0 + 120]),
            "endingOffsetsByTimestamp": given(a=[T0 + 100, T0 + 1000]),
        },
        {"a-0": range(5, 10), "a-1": range(2, 10)},
        quick=True,
    ),
    Read(
        "a time after one partition, strategy latest",
        A
        | {
            "startingOffsetsByTimestamp": given(a=[T0 + 50, T0 + 1000]),
            "startingOffsetsByTimestampStrategy": "latest",
        },
        {"a-0": range(5, 20)},
    ),
    Read(
        "one time before times of each partition, and these before offsets, at the start",
        A
        | {
            "startingTimestamp": str(T0 + 150),
            "startingOffsetsByTimestamp": given(a=[T0, T0]),
            "startingOffsets": "latest",
        },
        {"a-0": range(15, 20), "a-1": range(5, 10)},
        quick=True,
    ),
    Read(
        "times of each partition before offsets, at the start",
        A | {"startingOffsetsByTimestamp": given(a=[T0 + 150, T0 + 150]), "startingOffsets": "latest"},
        {"a-0": range(15, 20), "a-1": range(5, 10)},
    ),
    Read(
        "one time before times of each partition, and these before offsets, at the end",
        A
        | {
            "endingTimestamp": str(T0 + 150),
            "endingOffsetsByTimestamp": given(a=[T0, T0]),
            "endingOffsets": "earliest",
        },
        {"a-0": range(15), "a-1": range(5)},
    ),
    Read(
        "from a time to offsets",
        A | {"startingTimestamp": str(T0 + 50), "endingOffsets": given(a=[10, 5])},
        {"a-0": range(5, 10), "a-1": range(5)},
        quick=True,
    ),
    Read(
        "from offsets to a time",
        A | {"startingOffsets": given(a=[3, 1]), "endingTimestamp": str(T0 + 150)},
        {"a-0": range(3, 15), "a-1": range(1, 5)},
    ),
    Read("a log whose beginning was deleted", OLD, {"old-0": range(4, 10)}),
    Read(
        "lost offsets at the start",
        OLD | LOSING | {"startingOffsets": given(old=[2])},
        {"old-0": range(4, 10)},
        quick=True,
    ),
    Read(
        "only lost offsets", OLD | LOSING | {"startingOffsets": given(old=[1]), "endingOffsets": given(old=[3])}, {}
    ),
    Read(
        "offsets past the end, as lost ones",
        A | LOSING | QUICK | {"endingOffsets": given(a=[30, 5])},
        {"a-0": range(20), "a-1": range(5)},
    ),
    Read("transactions", TXN, {"txn-0": [0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13]}),
    Read("committed transactions", TXN | COMMITTED, {"txn-0": [0, 1, 2, 8, 9, 10]}, quick=True),
    Read("committed, up to an offset", TXN | COMMITTED | {"endingOffsets": given(txn=[6])}, {"txn-0": [0, 1, 2]}),
    Read("more tasks", A | {"minPartitions": "7"}, ALL_OF_A),
    Read("smaller tasks", A | {"maxRecordsPerPartition": "4", "minPartitions": "2"}, ALL_OF_A),
    Read("a consumer group", A | {"groupIdPrefix": "x", "kafka.group.id": "g {address}"}, ALL_OF_A),
    Read("limits of triggers", A | {"maxOffsetsPerTrigger": "5", "maxTriggerDelay": "1m"}, ALL_OF_A),
    Read("retries", A | QUICK | {"fetchOffset.numRetries": "5"}, ALL_OF_A),
    Read(
        "settings of a consumer",
        A
        | {
            "kafka.client.id": "me",
            "kafka.request.timeout.ms": "5000",
            "kafka.fetch.max.bytes": "1000",
            "kafka.max.partition.fetch.bytes": "1000",
            "kafka.fetch.max.wait.ms": "10",
            "kafka.fetch.min.bytes": "5",
            "kafka.max.poll.records": "10",
            "kafka.no.such.setting": "5",
            "kafka.key.serializer": "x",
        },
        ALL_OF_A,
        quick=True,
    ),
]

REFUSALS = [
    Refusal("no topics", {}, "exactly one of subscribe, assign, subscribePattern is needed"),
    Refusal("topics in two ways", A | {"assign": '{"a": [0]}'}, "exactly one of subscribe, assign, subscribePattern"),
    Refusal("no topic", {"subscribe": " ,"}, "subscribe names no topic"),
    Refusal("an empty pattern", {"subscribePattern": " "}, "subscribePattern is empty"),
    Refusal("assign without JSON", {"assign": "[]"}, "assign is JSON like"),
    Refusal("partitions that are no numbers", {"assign": '{"a": ["0"]}'}, "assign is JSON like"),
    Refusal("a start at latest", A | {"startingOffsets": "latest"}, "a batch read cannot start at latest"),
    Refusal("an end at earliest", A | {"endingOffsets": "earliest"}, "a batch read cannot end at earliest"),
    Refusal("a start at -1", A | {"startingOffsets": given(a=[-1, 0])}, "the starting offset of a-0 is -1, latest"),
    Refusal("an end at -2", A | {"endingOffsets": given(a=[-2, 0])}, "the ending offset of a-0 is -2, earliest"),
    Refusal("an offset that is true", A | {"startingOffsets": given(a=[True, 0])}, "startingOffsets is earliest"),
    Refusal("an offset that is text", A | {"startingOffsets": given(a=["1", 0])}, "startingOffsets is earliest"),
    Refusal("an unknown word", A | {"startingOffsets": "newest"}, "startingOffsets is no JSON"),
    Refusal("a time that is no number", A | {"startingTimestamp": "x"}, "startingTimestamp is a whole number"),
    Refusal("an unknown strategy", A | {"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "x"}, "latest"),
    Refusal(
        "times backwards",
        A
        | {
            "startingOffsetsByTimestamp": given(a=[T0 + 50, T0]),
            "endingOffsetsByTimestamp": given(a=[T0 + 40, T0]),
        },
        "of a-0: the end lies before the start",
    ),
    Refusal("no tasks", A | {"minPartitions": "0"}, "minPartitions is a whole number from 1"),
    Refusal("tasks of nothing", A | {"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition is a whole number from 1"),
    Refusal("a flag that is none", A | {"includeHeaders": "yes"}, "includeHeaders is true or false"),
    Refusal(
        "limits of triggers backwards",
        A | {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "9"},
        "minOffsetsPerTrigger is 9, more than maxOffsetsPerTrigger, which is 5",
    ),
    *[
        Refusal(name, A | {f"kafka.{name}": "x"}, f"kafka.{name} is refused for a batch read")
        for name in (
            "auto.offset.reset", "enable.auto.commit", "interceptor.classes", "key.deserializer", "value.deserializer",
        )
    ],
]  # fmt: skip

REFUSED_BY_THE_LOG = [
    Refusal("a topic that is not there", {"subscribe": "nosuch"}, "there is no topic 'nosuch'"),
    Refusal(
        "offsets for a topic that is not read",
        A | {"startingOffsets": given(a=[0, 0], b=[0])},
        "offsets or times are given for b; the topics of this read are: a",
    ),
    Refusal("offsets for some partitions", A | {"startingOffsets": given(a=[0])}, r"offsets are given for \[0\]; give"),
    Refusal(
        "times for some partitions", A | {"startingOffsetsByTimestamp": given(a=[T0])}, r"times are given for \[0\]"
    ),
    Refusal(
        "a time after a partition",
        A | {"startingOffsetsByTimestamp": given(a=[T0, T0 + 1000])},
        "a-1 has no record with a timestamp",
    ),
    Refusal("offsets below zero", A | {"startingOffsets": given(a=[-3, 0])}, "the offset of a-0 is -3"),
    Refusal(
        "offsets backwards",
        A | {"startingOffsets": given(a=[7, 0]), "endingOffsets": given(a=[6, 5])},
        "a-0 has offsets 0 to 20; the end 6 lies before the start 7",
    ),
    Refusal(
        "a time after the end offsets",
        A | {"startingTimestamp": str(T0 + 150), "endingOffsets": given(a=[10, 5])},
        "a-0 has offsets 0 to 20; the end 10 lies before the start 15",
    ),
    Refusal("offsets past the end", A | QUICK | {"endingOffsets": given(a=[30, 5])}, "a-0 has offsets 0 to 20"),
    Refusal("deleted offsets", OLD | {"startingOffsets": given(old=[2])}, "old-0 has offsets 4 to 10"),
    Refusal(
        "lost offsets from past the end",
        OLD | LOSING | {"startingOffsets": given(old=[12])},
        "the end 10 lies before the start 12",
    ),
    Refusal("an unknown isolation", TXN | {"kafka.isolation.level": "serial"}, "kafka.isolation.level is read_commit"),
    Refusal(
        "committed past the last stable offset",
        TXN | COMMITTED | QUICK | {"endingOffsets": given(txn=[14])},
        "txn-0 has offsets 0 to 12",
    ),
]


# --- the logs ----------------------------------------------------------------------------------------------------


@contextmanager
def filled(address):
    """Fill the topics, and keep a transaction open."""
    admin = AdminClient({"bootstrap.servers": address})
    forever = {"retention.ms": "-1"}  # the records have old timestamps
    topics = [NewTopic(name, 2 if name == "a" else 1, 1, config=forever) for name in ("a", "b", "old", "txn")]
    for done in admin.create_topics(topics).values():
        done.result(SECONDS)
    producer = Producer({"bootstrap.servers": address})
    for n in range(20):
        headers = [("h", b"%d" % n), ("none", None)] if n % 2 else None
        key = b"k%d" % n if n % 3 else None
        producer.produce("a", b"v%d" % n, key, 0, timestamp=T0 + 10 * n, headers=headers)
    for n in range(10):
        producer.produce("a", None if n == 4 else b"w%d" % n, b"k", 1, timestamp=T0 + 100 + 10 * n)
        producer.produce("old", b"o%d" % n, None, 0, timestamp=T0 + n)
    for n in range(5):
        producer.produce("b", b"b%d" % n, None, 0, timestamp=T0 + n)
    producer.flush(SECONDS)
    for done in admin.delete_records([TopicPartition("old", 0, 4)]).values():
        done.result(SECONDS)
    settings = {"bootstrap.servers": address, "transactional.id": "t", "transaction.timeout.ms": 600_000}
    transactional = Producer(settings)
    transactional.init_transactions(SECONDS)
    for end in (transactional.commit_transaction, transactional.abort_transaction, transactional.commit_transaction):
        _transaction(transactional, 3)
        end(SECONDS)
    _transaction(transactional, 2)
    yield address
    transactional.abort_transaction(SECONDS)


def _transaction(producer, count):
    producer.begin_transaction()
    for n in range(count):
        producer.produce("txn", b"%d" % n, None, 0, timestamp=T0 + n)
    producer.flush(SECONDS)


@pytest.fixture(scope="module")
def spark():
    session = spark_session("tests", master="local[2]", **FOR_SESSION)
    yield session
    session.stop()


@pytest.fixture(scope="module", params=["a Flakelog broker", pytest.param("Apache Kafka", marks=pytest.mark.soak)])
def log(request, tmp_path_factory, spark):
    """Yield a filled Log; its ids have a layout that is not the default."""
    if request.param == "Apache Kafka":
        address, layout = request.getfixturevalue("kafka"), None
    else:
        layout = Layout(39, 5, 5, 14, epoch_ms=1_600_000_000_000)
        fields = {"time": layout.time_bits, "sequence": layout.sequence_bits}
        settings = {f"flakelog.ids.{name}.bits": str(bits) for name, bits in fields.items()}
        settings["flakelog.ids.epoch.ms"] = str(layout.epoch_ms)
        server = ServerProcess(tmp_path_factory.mktemp("log") / "data", settings).start()
        request.addfinalizer(server.kill)
        address = server.address
    with filled(address):
        yield Log(spark, address, layout)


class Log:
    """A filled log, and what the two formats read of it."""

    def __init__(self, spark, address, layout):
        self.spark, self.address, self.layout = spark, address, layout
        self._rows = {}

    def load(self, format, options):
        if format == CONNECTORS and not CONNECTOR.exists():
            pytest.skip("Spark's connector is not there: `make stock` brings it where Maven (mvn) is installed")
        reader = self.spark.read.format(format).option("kafka.bootstrap.servers", self.address)
        # The connector keeps consumers by group and partition, and fails on one of the same group at another address.
        here = {name: value.replace("{address}", self.address) for name, value in options.items()}
        return reader.options(**{"includeHeaders": "true"} | here).load()

    def rows(self, format, read):
        """Return the rows of a Read, sorted by offset."""
        if (format, read.name) not in self._rows:
            together = [other for other in READS if other.quick == read.quick]
            frames = [self.load(format, other.options).select(F.lit(other.name), *COLUMNS) for other in together]
            collected = reduce(lambda left, right: left.union(right), frames).collect()
            self._rows |= {(format, other.name): [] for other in together}
            for name, *row in collected:
                self._rows[format, name].append(tuple(row))
        return sorted(self._rows[format, read.name], key=lambda row: row[:3])


# --- what they have in common ------------------------------------------------------------------------------------


READ_BY_READ = [pytest.param(read, id=read.name, marks=() if read.quick else pytest.mark.soak) for read in READS]


@pytest.mark.parametrize("read", READ_BY_READ)
def test_options_read_what_they_name(log, read):
    expected = [(*name.split("-"), offset) for name, offsets in sorted(read.reads.items()) for offset in offsets]
    positions = [(topic, str(partition), offset) for topic, partition, offset, *_ in log.rows(OURS, read)]
    assert positions == expected


@pytest.mark.parametrize("read", READ_BY_READ)
def test_the_connector_reads_the_same_rows(log, read):
    assert log.rows(CONNECTORS, read) == log.rows(OURS, read)


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.name)
def test_both_refuse(log, refusal):
    with pytest.raises(OptionError, match=refusal.says):
        parse({"kafka.bootstrap.servers": log.address} | refusal.options)
    with pytest.raises(RAISED):
        log.load(CONNECTORS, refusal.options).collect()


@pytest.mark.soak
@pytest.mark.parametrize("refusal", REFUSED_BY_THE_LOG, ids=lambda refusal: refusal.name)
def test_both_refuse_what_the_log_does_not_have(log, refusal):
    assert re.search(refusal.says, first_line(log, refusal.options))
    with pytest.raises(RAISED):
        log.load(CONNECTORS, refusal.options).collect()


# --- ours --------------------------------------------------------------------------------------------------------


def first_line(log, options):
    with pytest.raises(PySparkException) as raised:
        log.load(OURS, options).collect()
    return str(raised.value).splitlines()[0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (A | {"starting": "earliest"}, "option starting is not known; is startingId meant?"),
        (OLD | {"startingOffsets": given(old=[2])}, "old-0 has offsets 4 to 10; asked for 2 to 10"),
        ({"subscribe": "nosuch"}, "there is no topic 'nosuch'"),
    ],
)
def test_the_first_line_of_an_error_is_its_message(log, options, says):
    """What an analyst sees before any traceback."""
    first = first_line(log, options)
    assert first.startswith("[PYTHON_DATA_SOURCE_ERROR] Failed to ") and first.endswith(f": flakelog: {says}")


def test_the_time_of_an_id_is_when_the_broker_made_it(log):
    """The driver asks the broker for the layout of its ids. Apache Kafka keeps none, so the column is null."""
    rows = log.load(OURS, {"subscribe": "b", "columns": "id, id_time"}).collect()
    parts = [None if row["id"] is None else log.layout.unpack(row["id"]).time_ms for row in rows]
    assert [None if row["id_time"] is None else round(row["id_time"].timestamp() * 1000) for row in rows] == parts
    assert len(parts) == 5 and (None in parts) == (log.layout is None)


def test_lost_offsets_are_named_and_counted_in_a_warning(log, caplog):
    options = {"kafka.bootstrap.servers": log.address, "startingOffsets": given(old=[2])}
    pin_now(parse(options | OLD | LOSING))
    assert caplog.messages == [
        "flakelog: lost 2 offsets, old-0[2, 4), because failOnDataLoss=false: old-0 has offsets 4 to 10; asked for "
        "2 to 10"
    ]


def test_what_is_deleted_after_the_plan_is_left_out_only_if_the_reader_allows_it(log):
    """The ranges are fixed at load(), and retention goes on before the tasks read them."""
    admin, producer = new_topic(log, "shrinking")
    for n in range(6):
        producer.produce("shrinking", b"%d" % n)
        producer.flush(SECONDS)  # a batch each, because a deletion keeps the rest of a batch in the log
    strict, losing = (log.load(OURS, {"subscribe": "shrinking"} | more) for more in ({}, LOSING))
    admin.delete_records([TopicPartition("shrinking", 0, 4)])[TopicPartition("shrinking", 0, 4)].result(SECONDS)
    assert sorted(row["offset"] for row in losing.collect()) == [4, 5]
    with pytest.raises(PySparkException, match=r"shrinking-0 does not have offset 0 .* its log starts at 4"):
        strict.collect()


def new_topic(log, name):
    admin = AdminClient({"bootstrap.servers": log.address})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(SECONDS)
    return admin, Producer({"bootstrap.servers": log.address})


def test_late_binding_reads_more_after_an_append(log):
    """The connector asks for latest at each action; ours does so with flakelog.binding=late."""
    name = "late"
    admin, producer = new_topic(log, name)
    pinned, late = (log.load(OURS, {"subscribe": name, "flakelog.binding": binding}) for binding in ("pinned", "late"))
    for count in (1, 2):
        producer.produce(name, b"one more")
        producer.flush(SECONDS)
        assert (pinned.count(), late.count()) == (0, count)
    admin.create_partitions([NewPartitions(name, 2)])[name].result(SECONDS)
    producer = Producer({"bootstrap.servers": log.address})  # which knows the new partition
    producer.produce(name, b"in a new partition", partition=1)
    producer.flush(SECONDS)
    assert (pinned.count(), late.count()) == (0, 3)


def test_a_column_named_like_a_shuffle_is_none(log):
    from spark_bridge.replay.job import ReplayError, _refuse_shuffle

    rows = log.load(OURS, A)
    _refuse_shuffle(rows.withColumnRenamed("value", "\n+- Exchange hashpartitioning(key)"))
    for shuffled in (rows.repartition(3), rows.groupBy("key").count().select("key"), rows.distinct().cache()):
        with pytest.raises(ReplayError, match="without a shuffle"):
            _refuse_shuffle(shuffled)
