"""The file of high watermarks: Kafka's text, and what a start makes of it (rule R4)."""

import pytest

from broker.log.log_appender import append
from broker.log.recovery.recovery import open_log
from broker.log.storage.memory_storage import MemoryStorage
from broker.log.validation.batch import validate
from broker.metadata.topic import PartitionState
from broker.now import Now
from broker.record.records import BatchRecord, encode_batch
from broker.replication.offset_checkpoint import FILE, OffsetCheckpointDamaged, decode, encode, restore
from broker.replication.partition import Partition
from broker.settings.config import BrokerConfig, TopicConfig
from idgen.layout import Layout
from idgen.worker import IdWorker

NOW = Now(1_000, 1_700_000_000_000)


def log_of(partition=0, records=0):
    """Return a log with these records."""
    log, _ = open_log(MemoryStorage(), "flights", partition, TopicConfig(), BrokerConfig(), None)
    ids = IdWorker(Layout(), 1, start_ms=NOW.wall_ms, limit_ms=NOW.wall_ms + 10_000)
    for _ in range(records):
        batch = memoryview(bytearray(encode_batch([BatchRecord(0, 0, None, b"a")], base_timestamp_ms=0)))
        append(log, batch, validate(batch, log.config, BrokerConfig()), ids, NOW)
    return log


def test_the_file_is_kafkas_and_sorted():
    first, second = log_of(0, records=5), log_of(1, records=5)
    first.move_replicated_to(3)
    data = encode([second, first])
    assert data == b"0\n2\nflights 0 3\nflights 1 5\n"
    assert decode(data) == {("flights", 0): 3, ("flights", 1): 5}
    assert decode(encode([])) == {}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"0\n",
        b"1\n0\n",
        b"0\n2\nflights 0 3\n",
        b"0\n1\nflights 0\n",
        b"0\n1\nflights 0 3 4\n",
        b"0\n1\nflights 0 -3\n",
        b"0\n1\nflights zero 3\n",
        b"0\n2\nflights 0 3\nflights 0 4\n",
        b"0\n1\n\xff 0 3\n",
        b"\x00\x00\x00\x00",
    ],
)
def test_a_damaged_file_is_named_with_what_to_do(data):
    with pytest.raises(OffsetCheckpointDamaged, match=f"{FILE} is damaged: .*written anew"):
        decode(data)


@pytest.mark.parametrize("stored, high_watermark", [(3, 3), (9, 5), (1, 2), (None, 2)])
def test_r4_a_start_takes_the_offset_at_most_the_end_and_at_least_the_start(stored, high_watermark):
    log = log_of(records=5)
    log.advance_start(2)
    restore(log, {} if stored is None else {("flights", 0): stored})
    assert log.high_watermark == high_watermark


def test_a_log_without_other_replicas_gets_its_end_back_when_it_is_led():
    log = log_of(records=5)
    restore(log, {})
    assert Partition(log, 1).lead(PartitionState(1, 1, (1,), (1,)), NOW)
    assert log.high_watermark == 5
