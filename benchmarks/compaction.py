"""Compaction of a log by its cleaner, beside Apache Kafka's: the CPU time for the same records."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kafka import KafkaAdminClient

from benchmarks.apache import Peer
from benchmarks.brokers import Topics, brokers
from benchmarks.measure import Contenders, Figures, Row, Scale, cpu_seconds
from benchmarks.plan import SEED, VALUE_BYTES, VALUE_BYTES_MAX, VALUE_BYTES_MIN

RECORDS = 2_000_000
RECORDS_PER_KEY = 10
SEGMENT_BYTES, SEGMENT_BYTES_MIN = 16 << 20, 1 << 18
DIRTY_RATIO = "min.cleanable.dirty.ratio"
NEVER, AT_ONCE = "1.0", "0.01"
POLL_SECONDS = 0.2
STILL_SECONDS, STILL_SECONDS_MIN = 3.0, 0.5  # after which a log that became smaller counts as cleaned
WAIT_SECONDS = 180


def _fill(peer: Peer, topic: str, records: int, sizes: tuple[int, int]) -> None:
    """Produce records with random keys, each written ten times on average."""
    chance = random.Random(SEED)
    keys = max(records // RECORDS_PER_KEY, 1)
    values = [chance.randbytes(chance.randint(*sizes)) for _ in range(1_000)]
    settings = {"bootstrap.servers": peer.address, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000}
    producer = Producer(settings)
    for _ in range(records):
        key, value = b"%012d" % chance.randrange(keys), values[chance.randrange(len(values))]
        while True:
            try:
                producer.produce(topic, value, key, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(WAIT_SECONDS) == 0


def _clean_from_now(peer: Peer, topic: str) -> None:
    entry = ConfigEntry(DIRTY_RATIO, AT_ONCE, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": peer.address, "log_level": 0})
    admin.incremental_alter_configs([resource])[resource].result()


def _log_bytes(admin: KafkaAdminClient, topic: str) -> int:
    directories = [directory for broker in admin.describe_log_dirs() for directory in broker["log_dirs"]]
    topics = [each for directory in directories for each in directory["topics"] if each["name"] == topic]
    return sum(partition["partition_size"] for each in topics for partition in each["partitions"])


def _run(peer: Peer, records: int, sizes: tuple[int, int], scale: Scale) -> Figures:
    segment_bytes = scale.of(SEGMENT_BYTES, SEGMENT_BYTES_MIN)
    still = max(STILL_SECONDS * scale.share, STILL_SECONDS_MIN)
    config = {"cleanup_policy": "compact", "segment_bytes": str(segment_bytes), DIRTY_RATIO.replace(".", "_"): NEVER}
    with Topics(peer.address).fresh(**config) as topic:
        _fill(peer, topic, records, sizes)
        admin = KafkaAdminClient(bootstrap_servers=peer.address)
        try:
            whole = last = _log_bytes(admin, topic)
            before, began = cpu_seconds(peer.pid), time.monotonic()
            cpu, changed = before, began
            _clean_from_now(peer, topic)
            while last > whole / 2 or time.monotonic() < changed + still:
                if time.monotonic() > began + WAIT_SECONDS:
                    raise RuntimeError(f"not cleaned after {WAIT_SECONDS} s: {last} of {whole} bytes")
                time.sleep(POLL_SECONDS)
                now = _log_bytes(admin, topic)
                if now != last:
                    last, changed, cpu = now, time.monotonic(), cpu_seconds(peer.pid)
        finally:
            admin.close()
    return {"CPU s": cpu - before, "CPU us/record": (cpu - before) / records * 1e6, "MB left": last / 1e6}


@contextmanager
def _row(sizes: tuple[int, int], scale: Scale) -> Iterator[Contenders]:
    records = scale.of(RECORDS, 20_000)
    with brokers(scale) as peers:
        yield {name: partial(_run, peer, records, sizes, scale) for name, peer in peers.items()}


ROWS = [
    Row("compaction", "the cleaner on 2 million records of 100 B", partial(_row, (VALUE_BYTES, VALUE_BYTES))),
    Row(
        "compaction-mixed",
        f"the same with values of {VALUE_BYTES_MIN} to {VALUE_BYTES_MAX} B",
        partial(_row, (VALUE_BYTES_MIN, VALUE_BYTES_MAX)),
    ),
]
