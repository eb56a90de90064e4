"""Brokers whose files are damaged between a stop and a start, and what their clients then see.

Whatever is damaged, each partition's answer is the original data, a clear refusal, or the partition is offline by name.
"""

import random
from functools import cache

from broker.client.errors import ClientError
from broker.client.records import read_records
from broker.log import log_appender
from broker.log.checkpoint import CheckpointDamaged
from broker.log.segment import LOG
from broker.log.storage.memory_storage import MemoryStorage
from broker.log.storage.port import StorageError
from broker.metadata.document import MetadataDamaged
from broker.record.batch import CorruptBatch, walk
from broker.record.control import Marker
from broker.wire.errors import ApiError
from broker.wire.fetch import READ_COMMITTED
from tests.broker.engine_client import FETCH, LIST_OFFSETS, WALL_MS, EngineBroker, batch_of, fetch_request
from tests.broker.log.conftest import validated

TOPICS = "plain", "aborted", "compacted", "durable"
MINUTE_MS = 60_000
FETCHES_MAX = 500
EPOCH_AT = 12  # of the leader epoch in a batch
REFUSALS = (MetadataDamaged, CheckpointDamaged, StorageError, ApiError)


class Refused(Exception):
    """A clear refusal: of the start, or an error code of an answer."""


def append(broker, topic, *values, key=None, step_ms=1_000, **fields):
    """Append a batch to the first partition of a topic."""
    broker.now_ms += step_ms
    log = broker.services.log_of(topic, 0)
    batch = batch_of(*values, timestamp_ms=WALL_MS + broker.now_ms, **fields)
    ((view, header),) = validated(log, batch)
    log_appender.append(log, view, header, broker.worker, broker.now)
    broker.services.appended(log, broker.now)


def abort(broker, topic, producer, *values, sequence, commit=False):
    """Append a transaction, and the marker that ends it."""
    append(
        broker, topic, *values, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True
    )
    log = broker.services.log_of(topic, 0)
    log_appender.append_marker(log, producer, 0, Marker(commit, 0), broker.worker, broker.now)
    broker.services.appended(log, broker.now)


def filled(broker):
    """Append to all topics: several segments each, with small indexes."""
    for n in range(12):
        append(broker, "plain", b"p%d" % n, b"x" * 300)
        append(broker, "durable", b"d%d" % n, b"y" * 300)
        append(broker, "compacted", b"c%d" % n, b"z" * 200)
        abort(broker, "aborted", 7, b"gone %d" % n, b"w" * 150, sequence=2 * n)
        append(broker, "aborted", b"kept %d" % n)
    broker.pump()


def made():
    broker = EngineBroker()
    small = {"segment_bytes": 1024, "index_interval_bytes": 0}
    for topic in TOPICS:
        broker.create(topic, **small, **({"flakelog.durable.acks": "true"} if topic == "durable" else {}))
    filled(broker)
    return broker


@cache
def stopped(clean):
    """Return (storage, time, what clients see) of a broker that stopped cleanly, or was killed."""
    broker = made()
    if not clean:
        broker = broker.restarted()
        for topic in TOPICS:
            append(broker, topic, b"after the start", b"v" * 100)
        broker.services.logs.syncs.start_round()
        broker.pump()
        for topic in TOPICS:
            append(broker, topic, b"after the checkpoint")
        broker.pump()
    else:
        broker.services.logs.close()
    return broker.storage, broker.now_ms, Seen(EngineBroker(copy_of(broker.storage), broker.now_ms + 10_000))


def copy_of(storage):
    """Return a copy of the storage with the same files, all of them on the disk."""
    other = MemoryStorage()
    other.directories = set(storage.directories)
    for path, content in storage.files.items():
        other.replace(path, bytes(content.data))
    return other


class Seen:
    """What clients see of a broker: by topic the records of both isolation levels and lookups, or why they see none."""

    def __init__(self, broker):
        self.reported = broker.reported
        self.offline = set(broker.services.logs.offline)
        self.topics = {topic: self._all_of(broker, topic) for topic in TOPICS}
        self.offline |= set(broker.services.logs.offline)

    def _all_of(self, broker, topic):
        return {
            "records": refused_or(lambda: records_of(broker, topic, 0)),
            "committed": refused_or(lambda: records_of(broker, topic, READ_COMMITTED)),
            **{
                f"from {second} s": refused_or(lambda: offset_at(broker, topic, second))  # noqa: B023
                for second in (2, 9, 33, 60, 90)
            },
        }


def refused_or(read):
    try:
        return read()
    except (Refused, ClientError, CorruptBatch) as refusal:
        return refusal


def records_of(broker, topic, isolation):
    """Read a topic from its beginning, as a client of ids does."""
    client, offset, contents = broker.connect(), 0, []
    for _ in range(FETCHES_MAX):
        request = fetch_request(topic, offset, wants_ids=True, max_bytes=2_000)._replace(isolation_level=isolation)
        answer = client.ask(FETCH, 12, request)
        (partition,) = answer.partitions
        if partition.error_code:
            raise Refused(f"Fetch: error {partition.error_code}")
        if offset >= partition.last_stable_offset:
            return contents
        records, following, skipped, _ = read_records(partition, offset)
        if skipped:
            raise Refused(f"{skipped} cannot be decoded")
        contents += [(header.base_offset, header.leader_epoch) for _, header in walk(bytes(partition.records))]
        assert following > offset, f"the reader of {topic} stands still at {offset}"
        contents += records
        offset = following
    raise AssertionError(f"{topic} has no end")


def offset_at(broker, topic, second):
    partitions = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": WALL_MS + second * 1_000}]
    fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": partitions}]}
    answer = broker.connect().ask(LIST_OFFSETS, 7, fields)
    (result,) = answer.topics[0].partitions
    if result.error_code:
        raise Refused(f"ListOffsets: error {result.error_code}")
    return result.offset, result.timestamp


def mutate(storage, chance):
    """Damage one file; return a description."""
    suffixes = sorted({path.rpartition("/")[2].lstrip("0123456789") for path in storage.files})
    suffix = chance.choice(suffixes)
    path = chance.choice(sorted(path for path in storage.files if path.endswith(suffix)))
    data = bytearray(storage.files[path].data)
    how = chance.choice(("flip", "flip", "flip", "cut", "zero", "delete", "double", "epoch"))
    at = chance.randrange(len(data)) if data else 0
    size = chance.choice((1, 8, 20, 34, 61, 100))
    if how == "epoch" and path.endswith(LOG) and data:
        bit = chance.randrange(10, 32)  # lower ones may stand for a later leader
        at = chance.choice([position for position, _ in walk(bytes(data))]) + EPOCH_AT + 3 - bit // 8
        data[at] ^= 1 << bit % 8
    elif how == "flip" and data:
        data[at] ^= 1 << chance.randrange(8)
    elif how == "cut":
        del data[at:]
    elif how == "zero":
        data[at : at + size] = bytes(len(data[at : at + size]))
    elif how == "double":
        data[at:at] = data[at : at + size]
    if how == "delete":
        storage.remove(path)
    else:
        storage.replace(path, bytes(data))
    return f"{how} at byte {at} ({size} bytes) of {path}"


def damage_and_read(seed):
    """Damage one file by this seed, start, and read. Return what was done, and how the start or the reads ended."""
    chance = random.Random(seed)
    clean = chance.random() < 0.5
    storage, now_ms, before = stopped(clean)
    damaged = copy_of(storage)
    done = ("after a clean stop: " if clean else "after a kill: ") + mutate(damaged, chance)
    try:
        broker = EngineBroker(damaged, now_ms + 10_000)
    except REFUSALS as refusal:
        return done, f"refused: {refusal}"
    after = Seen(broker)
    ends = {outcome_of(topic, before, after, done) for topic in TOPICS}
    return done, ", ".join(sorted(ends))


def outcome_of(topic, before, after, done):
    """Return how reads of one topic ended. Raise AssertionError if a client sees other data than before."""
    was, now = before.topics[topic], after.topics[topic]
    end = "as before"
    for query, value in was.items():
        if now[query] == value:
            continue
        if isinstance(now[query], Exception):
            end = "offline" if f"{topic}-0" in after.offline else "refused"
            continue
        is_cut = any(f"{topic}-0 recovered" in line and "cut" in line for line in after.reported)
        if is_cut and not isinstance(value, Exception):
            end = "cut past the checkpoint, and said so"
            continue
        raise AssertionError(f"{done}: {topic}, {query}:\n  was {value}\n  now {now[query]}\n  {after.reported}")
    return end
