"""Batch reads in Spark: format "flakelog" beside Spark's official connector, on our broker, in the same session.

The connector is also measured with `kafka.max.poll.records=10000`, because its default of 500 costs it much; ours also
with `columns=value`, because Spark does not prune the columns of a Python data source.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.apache import Peer
from benchmarks.brokers import Topics, brokers
from benchmarks.consumers import CONNECTOR, VALUE_BYTES
from benchmarks.measure import OURS, Contenders, Figures, Row, Scale, cpu_seconds
from benchmarks.native import Unavailable
from broker.client.blocking import Client
from broker.record.records import Record, encode_batch
from coordination.java import JavaNotFound

MESSAGES = 10_000_000
SMALL_PARTITIONS = 1_000
BATCH_MESSAGES = 1_000
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

Work = Callable[[Any, int], None]
"""Rows of a DataFrame, and how many there must be."""


@contextmanager
def _one_task(scale: Scale) -> Iterator[Contenders]:
    with _opened(scale, "local[1]") as (spark, peer, topics):
        topic = topics(1)
        count = _fill(peer, topic, scale.of(MESSAGES), [1])
        yield {
            f"{what}, {reader}": partial(_measured, work, spark, reader, {}, peer, topic, count)
            for what, work in (("sum", _sum), ("count", _count))
            for reader in READERS
        }


@contextmanager
def _two_tasks(scale: Scale) -> Iterator[Contenders]:
    with _opened(scale, "local[2]") as (spark, peer, topics):
        even, uneven, small = topics(4), topics(4), topics(scale.of(SMALL_PARTITIONS, 10))
        splits = {"minPartitions": str(SPLITS)}
        jobs: list[tuple[str, Work, str, dict[str, str], int]] = [
            ("sum", _sum, even, {}, count := _fill(peer, even, scale.of(MESSAGES), [1] * 4)),
            ("Parquet", _parquet, even, {}, count),
            ("small partitions", _count, small, {}, _fill(peer, small, 0, [1] * scale.of(SMALL_PARTITIONS, 10))),
            ("8 splits", _sum, even, splits, count),
            ("8 uneven splits", _sum, uneven, splits, _fill(peer, uneven, scale.of(MESSAGES), [10, 1, 1, 1])),
        ]
        yield {
            f"{what}, {reader}": partial(_measured, work, spark, reader, options, peer, topic, messages)
            for what, work, topic, options, messages in jobs
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


def _fill(peer: Peer, topic: str, messages: int, shares: Sequence[int]) -> int:
    """Fill a topic with batches, and return the number of messages."""
    value = b"x" * VALUE_BYTES
    batch = encode_batch(
        [Record(n, n, None, value) for n in range(BATCH_MESSAGES)], base_timestamp_ms=time.time_ns() // 1_000_000
    )
    batches = [max(messages * share // sum(shares) // BATCH_MESSAGES, 1) for share in shares]
    with Client(peer.address) as client:
        for partition, number in enumerate(batches):
            for _ in range(number):
                client.produce(topic, partition, batch, acks=1)
    return sum(batches) * BATCH_MESSAGES


def _measured(
    work: Work, spark: Any, reader: str, options: dict[str, str], peer: Peer, topic: str, count: int
) -> Figures:
    format, own = READERS[reader]
    before, began = cpu_seconds(peer.pid), time.perf_counter()
    rows = spark.read.format(format).option("kafka.bootstrap.servers", peer.address).option("subscribe", topic)
    work(rows.options(**own, **options).load(), count)
    return {"msg/s": count / (time.perf_counter() - began), "CPU s": cpu_seconds(peer.pid) - before}


def _sum(rows: Any, count: int) -> None:
    from pyspark.sql import functions

    found = rows.agg(functions.sum(functions.length("value"))).collect()[0][0]
    if found < count * VALUE_BYTES:
        raise RuntimeError(f"{found} bytes of {count * VALUE_BYTES} were read")


def _count(rows: Any, count: int) -> None:
    found = rows.count()
    if found < count:
        raise RuntimeError(f"{found} of {count} messages were read")


def _parquet(rows: Any, count: int) -> None:
    with TemporaryDirectory(prefix="flakelog-bench-") as directory:
        rows.write.option("compression", "snappy").parquet(f"{directory}/out")


ROWS = [
    Row("spark-one-task", "batch reads in Spark, 10 M x 100 B, one partition, one task", _one_task),
    Row("spark-two-tasks", "batch reads in Spark, 10 M x 100 B, two tasks at once", _two_tasks),
]
