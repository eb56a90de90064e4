"""One partition read as Arrow, and the bytes of its values added up: by `flakelog.read`, by Spark, and by a plain loop
of confluent-kafka's consumer that makes Arrow arrays of what it gets.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

import flakelog
from benchmarks.apache import Peer
from benchmarks.brokers import Topics, brokers
from benchmarks.bulk import produce
from benchmarks.measure import Contenders, Figures, Row, Scale, cpu_seconds
from coordination.java import JavaNotFound

MESSAGES = 2_000_000
VALUE_BYTES = 100
BATCH_MESSAGES = 10_000
CONSUME_SECONDS = 10.0

SumOfLengths = Callable[[str, str, int], int]
"""Read a topic's values from a broker's address; return the sum of their lengths."""


@contextmanager
def _open(scale: Scale) -> Iterator[Contenders]:
    count = scale.of(MESSAGES)
    with brokers(scale) as peers, ExitStack() as stack:
        readers: dict[str, SumOfLengths] = {"flakelog.read": _by_flakelog, "confluent-kafka, Arrow": _by_librdkafka}
        try:
            readers["Spark, local[1]"] = _by_spark(stack)
        except JavaNotFound:
            pass  # the others are measured without it
        contenders = {}
        for who, peer in peers.items():
            topic = stack.enter_context(Topics(peer.address).fresh())
            produce(peer, topic, count, VALUE_BYTES, 1)
            for how, read in readers.items():
                contenders[f"{how} from {who}"] = partial(_measured, read, peer, topic, count)
        yield contenders


def _measured(read: SumOfLengths, peer: Peer, topic: str, count: int) -> Figures:
    before, began = cpu_seconds(peer.pid), time.perf_counter()
    total_bytes = read(peer.address, topic, count)
    seconds = time.perf_counter() - began
    if total_bytes < count * VALUE_BYTES:  # the topic has a message more, which showed that it is there
        raise RuntimeError(f"{total_bytes} bytes of {count * VALUE_BYTES} were read")
    return {"msg/s": count / seconds, "broker CPU s": cpu_seconds(peer.pid) - before}


def _by_flakelog(address: str, topic: str, count: int) -> int:
    with flakelog.read(address, topic, columns=["value"]) as reader:
        return sum(_lengths(batch.column(0)) for batch in reader)


def _by_librdkafka(address: str, topic: str, count: int) -> int:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "arrow-read", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        total = seen = 0
        while seen < count:
            messages = consumer.consume(BATCH_MESSAGES, CONSUME_SECONDS)
            if not messages:
                raise RuntimeError(f"{seen} of {count} messages came")
            seen += len(messages)
            total += _lengths(pa.array([message.value() for message in messages], pa.binary()))
        return total
    finally:
        consumer.close()


def _by_spark(stack: ExitStack) -> SumOfLengths:
    from pyspark.sql import functions

    from spark_bridge.session import spark_session

    spark: Any = spark_session("bench", master="local[1]")
    stack.callback(spark.stop)

    def read(address: str, topic: str, count: int) -> int:
        source = spark.read.format("flakelog").option("kafka.bootstrap.servers", address).option("subscribe", topic)
        rows = source.option("columns", "value").load()
        return int(rows.agg(functions.sum(functions.length("value"))).collect()[0][0])

    return read


def _lengths(values: Any) -> int:
    return int(pc.sum(pc.binary_length(values)).as_py())


ROWS = [Row("arrow-read", "100 B as Arrow, one partition: without Spark, by Spark, by confluent-kafka", _open)]
