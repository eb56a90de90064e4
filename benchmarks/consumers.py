"""Reads by consumers that run in a JVM: Kafka's Java consumer, and Spark's official connector, which asks for the
partition's first and last offset with every 500 records. Apache Kafka gets the same job.
"""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.apache import Peer, kafka_command
from benchmarks.brokers import Topics, brokers
from benchmarks.bulk import produce
from benchmarks.measure import Contenders, Figures, Row, Scale, cpu_seconds
from benchmarks.native import Unavailable
from coordination.java import JavaNotFound

CONNECTOR = Path(__file__).parent / "connector" / "target" / "classpath"
MESSAGES = 1_000_000
VALUE_BYTES = 100
PERF_TEST = "org.apache.kafka.tools.ConsumerPerformance"
PERF_SECONDS = 120

Read = Callable[[Peer, str, int], Figures]


@contextmanager
def _read_row(open_reader: Callable[[ExitStack], Read], scale: Scale) -> Iterator[Contenders]:
    """Read a topic of one partition that was filled in bulk."""
    count = scale.of(MESSAGES)
    with brokers(scale) as peers, ExitStack() as stack:
        read = open_reader(stack)
        contenders = {}
        for who, peer in peers.items():
            topic = stack.enter_context(Topics(peer.address).fresh())
            produce(peer, topic, count, VALUE_BYTES, 1)
            contenders[who] = partial(read, peer, topic, count)
        yield contenders


def _java_consumer(_: ExitStack) -> Read:
    java = [*kafka_command(), PERF_TEST]

    def read(peer: Peer, topic: str, count: int) -> Figures:
        before = cpu_seconds(peer.pid)
        argv = [*java, "--bootstrap-server", peer.address, "--topic", topic, "--num-records", str(count)]
        done = subprocess.run([*argv, "--hide-header"], capture_output=True, text=True, timeout=PERF_SECONDS)
        if done.returncode:
            raise RuntimeError(f"{PERF_TEST}: {done.stderr.strip()}")
        # The columns: start, end, MB, MB/s, records, records/s, ms of rebalancing, ms of fetching, and MB/s and
        # records/s while fetching.
        *_, megabytes, records = done.stdout.strip().splitlines()[-1].split(", ")
        return {"MB/s": float(megabytes), "msg/s": float(records), "CPU s": cpu_seconds(peer.pid) - before}

    return read


def _spark_connector(stack: ExitStack) -> Read:
    if not CONNECTOR.exists():
        raise Unavailable("Spark's connector is not there: `make bench` brings it where Maven (mvn) is installed")
    from pyspark.sql import functions

    from spark_bridge.session import spark_session

    jars = CONNECTOR.read_text().strip().replace(":", ",")
    try:
        spark: Any = spark_session("bench", master="local[1]", spark__jars=jars)
    except JavaNotFound as error:
        raise Unavailable(str(error)) from None
    stack.callback(spark.stop)

    def read(peer: Peer, topic: str, count: int) -> Figures:
        before, began = cpu_seconds(peer.pid), time.perf_counter()
        source = spark.read.format("kafka").option("kafka.bootstrap.servers", peer.address).option("subscribe", topic)
        values = source.load().agg(functions.sum(functions.length("value"))).collect()[0][0]
        seconds = time.perf_counter() - began
        if values < count * VALUE_BYTES:
            raise RuntimeError(f"{values} bytes of {count * VALUE_BYTES} were read")
        return {"msg/s": count / seconds, "CPU s": cpu_seconds(peer.pid) - before}

    return read


ROWS = [
    Row("java-consumer", "Kafka's own consumer, 100 B, from the page cache", partial(_read_row, _java_consumer)),
    Row("spark-connector", "Spark's official connector, 100 B, one task", partial(_read_row, _spark_connector)),
]
