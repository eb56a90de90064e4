"""Streams and writes in Spark: format "flakelog" beside Spark's official connector, both on our broker, one task each.

A run of a stream is a whole query: a new checkpoint, AvailableNow, all messages in one batch. The rows of a write are
made by Spark.
"""

import time
from collections.abc import Callable, Iterator
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

FORMATS = {OURS: "flakelog", "Spark's connector": "kafka"}
MESSAGES = 2_000_000

Work = Callable[[Any, str, Peer, str, Shape, int], None]
"""spark, format, broker, topic, shape and number of messages"""


@contextmanager
def _row(work: Work, filled: bool, scale: Scale) -> Iterator[Contenders]:
    if not CONNECTOR.exists():
        raise Unavailable("Spark's connector is not there: `make bench` brings it where Maven (mvn) is installed")
    from spark_bridge.session import spark_session

    with brokers(scale) as peers, ExitStack() as stack:
        try:
            jars = CONNECTOR.read_text().strip().replace(":", ",")
            spark: Any = spark_session("bench", master="local[1]", spark__jars=jars)
        except JavaNotFound as error:
            raise Unavailable(str(error)) from None
        stack.callback(spark.stop)
        peer = peers[OURS]
        topics = Topics(peer.address)
        contenders: dict[str, Callable[[], Figures]] = {}
        for shape in (CONSTANT, VARIED):
            topic, count = stack.enter_context(topics.fresh()), scale.of(int(MESSAGES * shape.share))
            if filled:
                count = fill(peer, topic, shape, scale.of(MESSAGES), [1])
            contenders |= {
                f"{name}, {shape.about}": partial(_measured, work, spark, format, peer, topic, shape, count)
                for name, format in FORMATS.items()
            }
        yield contenders


def _measured(
    work: Work, spark: Any, format: str, peer: Peer, topic: str, shape: Shape, count: int
) -> Figures:
    before, began = cpu_seconds(peer.pid), time.perf_counter()
    work(spark, format, peer, topic, shape, count)
    return {"msg/s": count / (time.perf_counter() - began), "CPU s": cpu_seconds(peer.pid) - before}


def _stream(spark: Any, format: str, peer: Peer, topic: str, shape: Shape, count: int) -> None:
    options = {"kafka.bootstrap.servers": peer.address, "subscribe": topic, "startingOffsets": "earliest"}
    rows = spark.readStream.format(format).options(**options).load()
    with TemporaryDirectory(prefix="flakelog-bench-") as checkpoint:
        columns = ["key", "value"] if shape.has_keys else ["value"]
        writer = rows.select(*columns).writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        read = sum(progress["numInputRows"] for progress in query.recentProgress)
    if read < count:
        raise RuntimeError(f"{read} messages of {count} were read")


def _write(spark: Any, format: str, peer: Peer, topic: str, shape: Shape, count: int) -> None:
    rows = spark.range(0, count, 1, 1).selectExpr(*shape.columns())
    options = {"kafka.bootstrap.servers": peer.address, "topic": topic}
    rows.write.format(format).options(**options).mode("append").save()


KINDS = f"{CONSTANT.about}, and keys and values of {VARIED.about}"

ROWS = [
    Row("spark-stream", f"a Spark stream with AvailableNow, {KINDS}, one task", partial(_row, _stream, True)),
    Row("spark-write", f"a Spark write, {KINDS}, one task", partial(_row, _write, False)),
]
