"""Batch reads in Spark: format "flakelog" beside Spark's official connector, on our broker, in the same session.

The connector is also measured with `kafka.max.poll.records=10000`, because its default of 500 costs it much; ours also
with `columns=value`, because Spark does not prune the columns of a Python data source.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.apache import Peer
from benchmarks.brokers import Topics, brokers
from benchmarks.consumers import CONNECTOR
from benchmarks.measure import OURS, Contenders, Figures, Row, Scale, cpu_seconds
from benchmarks.native import Unavailable
from benchmarks.spark_messages import CONSTANT, VARIED, Shape, fill
from coordination.java import JavaNotFound

MESSAGES = 10_000_000
SMALL_PARTITIONS = 1_000
SPLITS = 8
"""Tasks of 4 partitions, also where one has 10 times the messages of the others."""

CONNECTORS = "Spark's connector"
READERS: Mapping[str, tuple[str, dict[str, str]]] = {
    OURS: ("flakelog", {}),
    f"{OURS}, columns=value": ("flakelog", {"columns": "value"}),
    CONNECTORS: ("kafka", {}),
    f"{CONNECTORS}, 10,000 a poll": ("kafka", {"kafka.max.poll.records": "10000"}),
}
"""The format and the options of each contender."""

Work = Callable[[Any, Shape, int], None]
"""Rows of a DataFrame, their shape, and how many there must be."""


@contextmanager
def _one_task(scale: Scale) -> Iterator[Contenders]:
    with _opened(scale, "local[1]") as (spark, peer, topics):
        contenders: dict[str, Callable[[], Figures]] = {}
        for shape in (CONSTANT, VARIED):
            topic = topics(1)
            count = fill(peer, topic, shape, scale.of(MESSAGES), [1])
            contenders |= {
                f"{what} of {shape.about}, {reader}": partial(
                    _measured, work, spark, reader, {}, peer, topic, shape, count
                )
                for what, work in (("sum", _sum), ("count", _count))
                for reader in READERS
            }
        yield contenders


@contextmanager
def _two_tasks(scale: Scale) -> Iterator[Contenders]:
    with _opened(scale, "local[2]") as (spark, peer, topics):
        partitions = scale.of(SMALL_PARTITIONS, 10)
        even, varied, uneven, small = topics(4), topics(4), topics(4), topics(partitions)
        splits = {"minPartitions": str(SPLITS)}
        messages = scale.of(MESSAGES)
        count = fill(peer, even, CONSTANT, messages, [1] * 4)
        jobs: list[tuple[str, Work, str, dict[str, str], Shape, int]] = [
            ("sum", _sum, even, {}, CONSTANT, count),
            ("sum", _sum, varied, {}, VARIED, fill(peer, varied, VARIED, messages, [1] * 4)),
            ("Parquet", _parquet, even, {}, CONSTANT, count),
            ("small partitions", _count, small, {}, CONSTANT, fill(peer, small, CONSTANT, 0, [1] * partitions)),
            ("8 splits", _sum, even, splits, CONSTANT, count),
            ("8 uneven splits", _sum, uneven, splits, CONSTANT, fill(peer, uneven, CONSTANT, messages, [10, 1, 1, 1])),
        ]
        yield {
            f"{what} of {shape.about}, {reader}": partial(
                _measured, work, spark, reader, options, peer, topic, shape, number
            )
            for what, work, topic, options, shape, number in jobs
            for reader in (OURS, CONNECTORS)
        }


@contextmanager
def _opened(scale: Scale, master: str) -> Iterator[tuple[Any, Peer, Callable[[int], str]]]:
    """Yield a session, our broker, and a function that makes a topic with a number of partitions."""
    with brokers(scale._replace(kafka=False)) as peers, ExitStack() as stack:
        spark, peer = _session(stack, master), peers[OURS]
        made = Topics(peer.address)
        yield spark, peer, lambda partitions: stack.enter_context(made.fresh(partitions))


def _session(stack: ExitStack, master: str) -> Any:
    if not CONNECTOR.exists():
        raise Unavailable("Spark's connector is not there: `make bench` brings it where Maven (mvn) is installed")
    from spark_bridge.session import spark_session

    try:
        spark: Any = spark_session("bench", master=master, spark__jars=CONNECTOR.read_text().strip().replace(":", ","))
    except JavaNotFound as error:
        raise Unavailable(str(error)) from None
    stack.callback(spark.stop)
    return spark


def _measured(
    work: Work, spark: Any, reader: str, options: dict[str, str], peer: Peer, topic: str, shape: Shape, count: int
) -> Figures:
    format, own = READERS[reader]
    before, began = cpu_seconds(peer.pid), time.perf_counter()
    rows = spark.read.format(format).option("kafka.bootstrap.servers", peer.address).option("subscribe", topic)
    work(rows.options(**own, **options).load(), shape, count)
    return {"msg/s": count / (time.perf_counter() - began), "CPU s": cpu_seconds(peer.pid) - before}


def _sum(rows: Any, shape: Shape, count: int) -> None:
    from pyspark.sql import functions

    total_bytes = rows.agg(functions.sum(functions.length("value"))).collect()[0][0]
    if total_bytes < shape.value_bytes(count):
        raise RuntimeError(f"{total_bytes} bytes of {shape.value_bytes(count)} were read")


def _count(rows: Any, shape: Shape, count: int) -> None:
    row_count = rows.count()
    if row_count < count:
        raise RuntimeError(f"{row_count} of {count} messages were read")


def _parquet(rows: Any, shape: Shape, count: int) -> None:
    with TemporaryDirectory(prefix="flakelog-bench-") as directory:
        rows.write.option("compression", "snappy").parquet(f"{directory}/out")


ROWS = [
    Row(
        "spark-one-task",
        "batch reads in Spark, 10 M x 100 B, and 5 M keys and values of 20 to 180 B, one partition, one task",
        _one_task,
    ),
    Row("spark-two-tasks", "batch reads in Spark, the same messages, two tasks at once", _two_tasks),
]
