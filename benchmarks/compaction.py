"""Compaction of a log by its cleaner, beside Apache Kafka's: the CPU time for the same records.

A row stands for users: the sizes of their keys and values, how often a key repeats, and the batches they send.
"""

import json
import random
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kafka import KafkaAdminClient

from benchmarks.apache import Peer
from benchmarks.brokers import Topics, brokers
from benchmarks.measure import Contenders, Figures, Row, Scale, cpu_seconds
from benchmarks.plan import SEED, VALUE_BYTES, VALUE_BYTES_MAX, VALUE_BYTES_MIN

MANY_RECORDS, RECORDS, RECORDS_MIN = 2_000_000, 500_000, 20_000
SEGMENT_BYTES, SMALL, SEGMENT_BYTES_MIN = 16 << 20, 2 << 20, 1 << 16
BATCHES_MIN = 20
DIRTY_RATIO = "min.cleanable.dirty.ratio"
NEVER, AT_ONCE = "1.0", "0.01"
POLL_SECONDS = 0.2
STILL_SECONDS, STILL_SECONDS_MIN = 3.0, 0.5  # after which a log that became smaller counts as cleaned
WAIT_SECONDS = 180
VALUES = 1_000  # different ones


class Shape(NamedTuple):
    """The records of a log. A pair of sizes has the least and the most bytes."""

    value: tuple[int, int] = (VALUE_BYTES_MIN, VALUE_BYTES_MAX)
    key: tuple[int, int] = (12, 12)
    uuids: bool = False
    """Whether keys are UUIDs as text."""
    records_per_key: float = 10
    """How often a key is written, on average; keys are random."""
    tombstones: float = 0
    """The share of records without a value."""
    traced: bool = False
    """Whether each record has a header, as tracing adds it."""
    codec: str = "none"
    """With a codec, values are JSON."""
    batch_records: tuple[int, ...] = (10_000,)
    """Records in a batch at most; of several numbers, each has a producer and the same number of batches."""
    partitions: int = 1
    segment_bytes: int = SEGMENT_BYTES
    """The size of a segment. The newest one is not cleaned, so a log needs several."""
    records: int = RECORDS
    left: float = 0.5
    """The cleaner leaves a smaller share of the bytes than this."""
    again: bool = False
    """Whether the log was cleaned before: the cleaner meets as many old records as new ones."""


def _values(shape: Shape, chance: random.Random) -> list[bytes]:
    sizes = [chance.randint(*shape.value) for _ in range(VALUES)]
    if shape.codec == "none":
        return [chance.randbytes(size) for size in sizes]
    values = []
    for size in sizes:
        fields = {"id": chance.randrange(10**9), "state": chance.choice(("new", "paid")), "sum": chance.random()}
        values.append((json.dumps(fields) * (size // 40 + 1))[:size].encode())
    return values


def _keys(shape: Shape, chance: random.Random, records: int) -> list[bytes]:
    numbers = range(max(int(records / shape.records_per_key), 1))
    if shape.uuids:
        return [str(uuid.UUID(int=chance.getrandbits(128))).encode() for _ in numbers]
    return [b"%0*d" % (chance.randint(*shape.key), number) for number in numbers]


def _fill(peer: Peer, topic: str, shape: Shape, records: int) -> None:
    """Produce records with random keys, each key to one partition."""
    chance = random.Random(SEED)
    keys, values = _keys(shape, chance, records), _values(shape, chance)
    headers = [("traceparent", b"00-%032x-%016x-01" % (chance.getrandbits(128), chance.getrandbits(64)))]
    settings = {
        "bootstrap.servers": peer.address,
        "linger.ms": 50,
        "queue.buffering.max.messages": 1_000_000,
        "compression.type": shape.codec,
    }
    for most in shape.batch_records:
        most_of_all = records // shape.partitions // BATCHES_MIN  # so that there are several segments
        producer = Producer(settings | {"batch.num.messages": min(most, most_of_all)})
        for _ in range(records * most // sum(shape.batch_records)):
            number = chance.randrange(len(keys))
            value = None if chance.random() < shape.tombstones else values[chance.randrange(VALUES)]
            options = {"partition": number % shape.partitions} | ({"headers": headers} if shape.traced else {})
            while True:
                try:
                    producer.produce(topic, value, keys[number], **options)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(WAIT_SECONDS) == 0


def _set_dirty_ratio(peer: Peer, topic: str, ratio: str) -> None:
    entry = ConfigEntry(DIRTY_RATIO, ratio, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": peer.address, "log_level": 0})
    admin.incremental_alter_configs([resource])[resource].result()


def _log_bytes(admin: KafkaAdminClient, topic: str) -> int:
    directories = [directory for broker in admin.describe_log_dirs() for directory in broker["log_dirs"]]
    topics = [
        topic_fields
        for directory in directories
        for topic_fields in directory["topics"]
        if topic_fields["name"] == topic
    ]
    return sum(partition["partition_size"] for topic_fields in topics for partition in topic_fields["partitions"])


def _clean(peer: Peer, topic: str, left: float, still_seconds: float) -> Figures:
    """Have the log cleaned, and wait until it is."""
    admin = KafkaAdminClient(bootstrap_servers=peer.address)
    try:
        whole = last = _log_bytes(admin, topic)
        before, began = cpu_seconds(peer.pid), time.monotonic()
        cpu, changed = before, began
        _set_dirty_ratio(peer, topic, AT_ONCE)
        while last > whole * left or time.monotonic() < changed + still_seconds:
            if time.monotonic() > began + WAIT_SECONDS:
                raise RuntimeError(f"not cleaned after {WAIT_SECONDS} s: {last} of {whole} bytes")
            time.sleep(POLL_SECONDS)
            now = _log_bytes(admin, topic)
            if now != last:
                last, changed, cpu = now, time.monotonic(), cpu_seconds(peer.pid)
    finally:
        admin.close()
    return {"CPU s": cpu - before, "MB left": last / 1e6}


def _run(peer: Peer, shape: Shape, scale: Scale) -> Figures:
    segment_bytes = scale.of(shape.segment_bytes, SEGMENT_BYTES_MIN)
    still_seconds = max(STILL_SECONDS * scale.share, STILL_SECONDS_MIN)
    records = scale.of(shape.records, RECORDS_MIN)
    config = {"cleanup_policy": "compact", "segment_bytes": str(segment_bytes), DIRTY_RATIO.replace(".", "_"): NEVER}
    with Topics(peer.address).fresh(shape.partitions, **config) as topic:
        _fill(peer, topic, shape, records)
        figures = _clean(peer, topic, shape.left, still_seconds)
        if shape.again:
            _set_dirty_ratio(peer, topic, NEVER)
            old = round(records / shape.records_per_key)
            _fill(peer, topic, shape, old)
            figures, records = _clean(peer, topic, shape.left, still_seconds), 2 * old
    return {"CPU us/record": figures["CPU s"] / records * 1e6} | figures


@contextmanager
def _row(shape: Shape, scale: Scale) -> Iterator[Contenders]:
    with brokers(scale) as peers:
        yield {name: partial(_run, peer, shape, scale) for name, peer in peers.items()}


SHAPES = {
    "": ("values of 100 B, 2 million records", Shape((VALUE_BYTES, VALUE_BYTES), records=MANY_RECORDS)),
    "-mixed": (f"values of {VALUE_BYTES_MIN} to {VALUE_BYTES_MAX} B, 2 million records", Shape(records=MANY_RECORDS)),
    "-keys": ("the same with keys of 8 to 60 B", Shape(key=(8, 60))),
    "-uuids": ("the same with UUIDs as keys", Shape(uuids=True)),
    "-rare": ("nearly every key written once", Shape(records_per_key=1.1, left=0.8)),
    "-often": ("500 keys written a thousand times", Shape(records_per_key=1000)),
    "-tombstones": ("every tenth record without a value", Shape(tombstones=0.1)),
    "-headers": ("records with a header for tracing", Shape(traced=True)),
    "-lz4": ("JSON in lz4", Shape(codec="lz4", segment_bytes=SMALL)),
    "-zstd": ("JSON in zstd", Shape(codec="zstd", segment_bytes=SMALL)),
    "-batches": ("batches of 1, 10, 100 and 1,000 records", Shape(batch_records=(1, 10, 100, 1000))),
    "-small-batches": (
        "batches of at most 10 records",
        Shape(batch_records=(10,), records=RECORDS // 2, segment_bytes=SMALL),
    ),
    "-single": ("batches of one record", Shape(batch_records=(1,), records=RECORDS // 5, segment_bytes=SMALL)),
    "-partitions": ("eight partitions", Shape(partitions=8, segment_bytes=SMALL)),
    "-again": ("as many new records as the cleaner left before", Shape(records_per_key=3, left=0.7, again=True)),
}

ROWS = [
    Row(f"compaction{name}", f"the cleaner: {about}", partial(_row, shape)) for name, (about, shape) in SHAPES.items()
]
