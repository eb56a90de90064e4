"""A log whose other replicas lack its newest records: consumers, searches and the cleaner end before these."""

import pytest

from broker.log import log_appender, log_reader
from broker.log.compaction import cleaner_plan
from broker.log.retention import expired
from broker.record.batch import walk
from broker.record.control import Marker
from broker.record.records import LONG_MAX
from broker.settings.config import TopicConfig
from broker.wire.errors import ApiError, ErrorCode
from tests.broker.engine_client import DELETE_RECORDS, LIST_OFFSETS, EngineBroker
from tests.broker.log.compaction.cleaner_world import CleanerWorld
from tests.broker.log.conftest import NOW, START_MS, append, reopen

DAY_MS = 86_400_000


def bases(log, offset=0, **options):
    """Return the base offsets of the batches that a read from an offset returns."""
    records = log_reader.read(log, offset, 1 << 20, True, **options).records
    data = records.file.read(records.position, records.length) if records else b""
    return [header.base_offset for _, header in walk(data)]


def three_batches(log, worker):
    """Append three batches of two records, of which other replicas have two batches."""
    for n in range(3):
        append(log, b"a", b"b", worker=worker, timestamp_ms=START_MS + n)
    log.move_replicated_to(4)


def test_a_log_without_other_replicas_ends_at_its_own_end(log, worker):
    append(log, b"a", worker=worker)
    assert (log.replicated_to, log.high_watermark, log.last_stable_offset) == (LONG_MAX, 1, 1)


def test_consumers_read_up_to_the_end_that_all_replicas_in_sync_have(log, worker):
    three_batches(log, worker)
    assert (log.high_watermark, log.last_stable_offset) == (4, 4)
    assert bases(log) == bases(log, committed=True) == [0, 2]
    assert bases(log, 4) == bases(log, 6) == [], "an offset that the log has is no error"
    log.move_replicated_to(6)
    assert bases(log) == [0, 2, 4]


def test_followers_read_up_to_the_logs_end(log, worker):
    three_batches(log, worker)
    assert bases(log, upto=log.log_end_offset) == [0, 2, 4]
    assert bases(log, 4, upto=log.log_end_offset) == [4]
    assert bases(log, 6, upto=log.log_end_offset) == []


def test_followers_get_batches_that_the_cleaner_emptied():
    """Such a batch tells the producer's last sequence. Consumers get the next batch with a record."""
    world = CleanerWorld()
    world.put(("a", "1"), producer_id=7, producer_epoch=0, base_sequence=0)
    world.put(("a", "2"))
    world.roll()
    world.put(("b", "1"))
    world.clean()
    assert bases(world.log) == [1] and bases(world.log, upto=world.log.log_end_offset) == [0, 1]


def test_the_high_watermark_is_at_most_the_logs_own_end(storage, worker):
    """Rule R1: the leader's own end is the durable one where the topic asks for it."""
    log, _ = reopen(storage, config=TopicConfig(visible_after_flush=True))
    append(log, b"a", worker=worker)
    log.move_replicated_to(1)
    assert log.high_watermark == 0
    log.synced(log.position())
    assert log.high_watermark == 1
    log.move_replicated_to(9)
    assert log.high_watermark == log.last_stable_offset == 1


def test_a_stored_high_watermark_below_the_logs_start_is_the_start(log, worker):
    three_batches(log, worker)
    log.advance_start(3)
    log.move_replicated_to(1)
    assert log.high_watermark == 3
    assert bases(log, 3) == []


def test_a_transaction_is_stable_once_all_replicas_have_its_marker(log, worker):
    sent = {"producer_epoch": 0, "base_sequence": 0, "transactional": True}
    append(log, b"a", worker=worker, producer_id=7, **sent)
    append(log, b"b", worker=worker, producer_id=8, **sent)
    log.move_replicated_to(2)
    log_appender.append_marker(log, 8, 0, Marker(True, 0), worker, NOW)
    log_appender.append_marker(log, 7, 0, Marker(False, 0), worker, NOW)
    assert log.last_stable_offset == 0
    log.move_replicated_to(3)
    assert log.last_stable_offset == 0, "the marker of the transaction at 0 is at 3"
    log.move_replicated_to(4)
    assert log.last_stable_offset == 4


def test_a_batch_past_the_high_watermark_is_not_read_in_place_of_compacted_ones():
    """A follower copies the gaps that its leader's cleaner left, and its high watermark may lie in one."""
    world = CleanerWorld()
    world.put(("a", "1"))
    for n in range(5):
        world.put(("b", str(n)))
    world.roll()
    world.put(("c", "1"))
    world.clean()
    log = world.log
    assert bases(log) == [0, 5] and bases(log, 6) == [6]
    log.move_replicated_to(3)
    assert bases(log) == [0] and bases(log, 1) == bases(log, 2, committed=True) == []


def test_retention_keeps_segments_that_other_replicas_lack(storage, worker):
    log, _ = reopen(storage)
    for _ in range(3):
        append(log, b"a", worker=worker)
        log.roll()
    log.move_replicated_to(2)
    config = TopicConfig(retention_ms=1)
    number = expired(log.segments.all, log.segments.size, config, 0, log.high_watermark, START_MS + DAY_MS)
    assert number == 2


def test_the_cleaner_keeps_segments_that_other_replicas_lack():
    """A record past the high watermark may be truncated, and then the older one of its key is the last one."""
    world = CleanerWorld()
    for n in range(3):
        world.put(("a", str(n)))
        world.roll()
    world.log.move_replicated_to(2)
    plan = cleaner_plan.plan(world.log, START_MS)
    assert plan is not None and plan.end == 2


def test_records_above_the_high_watermark_cannot_be_deleted(log, worker):
    three_batches(log, worker)
    with pytest.raises(ApiError) as refused:
        log.advance_start(5)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE and log.log_start_offset == 0
    assert log.advance_start(4)


def test_a_search_by_id_ends_at_the_high_watermark(log, worker):
    three_batches(log, worker)
    (first, length), *_ = log_reader.ids_of(log, 4, 6)
    assert log_reader.offset_of_id(log, first + 1) == log_reader.offset_of_id(log, first + 100) == 4
    log.move_replicated_to(6)
    assert log_reader.offset_of_id(log, first + 1) == 5


# --- through the wire ------------------------------------------------------------------------------------------------


@pytest.fixture
def broker():
    broker = EngineBroker()
    broker.create("flights")
    return broker


@pytest.fixture
def client(broker):
    """Return a client of a broker whose log has three batches of a record, the last not on all replicas."""
    client = broker.connect()
    for value in (b"a", b"b", b"c"):
        client.produce("flights", value)
    broker.engine.services.logs.get("flights", 0).move_replicated_to(2)
    return client


LATEST, MAX_TIMESTAMP = -1, -3


def list_offset(client, timestamp, isolation_level=0):
    partition = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
    fields = {"replica_id": -1, "isolation_level": isolation_level}
    fields["topics"] = [{"name": "flights", "partitions": [partition]}]
    return client.ask(LIST_OFFSETS, 7, fields).topics[0].partitions[0].offset


def test_the_latest_offset_is_the_high_watermark(client):
    assert list_offset(client, LATEST) == list_offset(client, LATEST, isolation_level=1) == 2


def test_a_time_is_found_below_the_high_watermark_only(broker, client):
    log = broker.engine.services.logs.get("flights", 0)
    log.move_replicated_to(0)
    assert list_offset(client, MAX_TIMESTAMP) == -1 == list_offset(client, 0)
    log.move_replicated_to(1)
    assert list_offset(client, MAX_TIMESTAMP) == 0 == list_offset(client, 0)


def test_records_are_deleted_up_to_the_high_watermark(client):
    partition = {"partition_index": 0, "offset": -1}
    fields = {"topics": [{"name": "flights", "partitions": [partition]}], "timeout": 1_000}
    answer = client.ask(DELETE_RECORDS, 2, fields).topics[0].partitions[0]
    assert (answer.error_code, answer.low_watermark) == (0, 2)
    fields["topics"][0]["partitions"][0]["offset"] = 3
    answer = client.ask(DELETE_RECORDS, 2, fields).topics[0].partitions[0]
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
