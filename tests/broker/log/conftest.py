"""Fixtures: a log in memory, an id worker at a fixed time, and batches to append."""

from uuid import UUID

import pytest

from broker.log import log_appender
from broker.log.recovery.recovery import open_log
from broker.log.storage.memory_storage import MemoryStorage
from broker.log.validation.batch import validate
from broker.now import Now
from broker.record.batch import walk
from broker.record.records import BatchRecord, encode_batch
from broker.settings.config import BrokerConfig, TopicConfig
from idgen.layout import Layout
from idgen.worker import IdWorker

START_MS = 1_700_000_000_000
NOW = Now(ms=1_000, wall_ms=START_MS)
BROKER = BrokerConfig(disk_full_bytes=0)  # no reserve, so that the jobs are those that a test expects


def new_worker(start_ms=START_MS, number=1):
    return IdWorker(Layout(), number, start_ms=start_ms, limit_ms=start_ms + 86_400_000)


def batch_of(*values, timestamp_ms=START_MS, **fields):
    records = [BatchRecord(i, 0, None, value) for i, value in enumerate(values)]
    return bytearray(encode_batch(records, base_timestamp_ms=timestamp_ms, **fields))


def append(log, *values, worker, now=NOW, **fields):
    batch = memoryview(batch_of(*values, **fields))
    return log_appender.append(log, batch, validate(batch, log.config, BROKER), worker, now)


def validated(log, *batches):
    """Return batches with their headers, as `append_batches` takes them."""
    views = [memoryview(batch) for batch in batches]
    return [(view, validate(view, log.config, BROKER)) for view in views]


def append_batches(log, *batches, worker, now=NOW):
    """Append batches of the given values with one write; return their first and last offsets."""
    validated_batches = validated(log, *(batch_of(*values) for values in batches))
    offsets, _ = log_appender.append_batches(log, validated_batches, worker, now)
    return offsets


def uuid_of(number):
    return UUID(int=number)


def mend(log):
    """Sync the log after a write that was undone, as the log manager does, so that the log accepts batches again."""
    for segment in log.unflushed_segments():
        for file in segment.files:
            file.sync()
    log.durability.mending = False


def reopen(storage, checkpointed=None, config=TopicConfig(), **more):
    return open_log(storage, "flights", 0, config, BROKER, checkpointed, **more)


def in_epochs(*epochs):
    """Return a storage whose log has a batch in each of these leader epochs, the batches' positions, and the epochs."""
    storage, worker = MemoryStorage(), new_worker()
    log, _ = reopen(storage)
    for epoch in epochs:
        log.start_leader_epoch(epoch)
        append(log, b"a", worker=worker)
    data = storage.files[f"flights-0/{0:020d}.log"].data
    return storage, [position for position, _ in walk(bytes(data))], log.epochs


@pytest.fixture
def storage():
    return MemoryStorage()


@pytest.fixture
def worker():
    return new_worker()


@pytest.fixture
def log(storage):
    return reopen(storage)[0]
