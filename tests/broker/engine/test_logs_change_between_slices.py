"""Logs change between two slices of a Fetch or a ListOffsets: each partition is answered as it was when it was read."""

import pytest

from broker.channel import partition_budget
from broker.handlers import fetch, list_offsets
from broker.services import fetch_reading
from broker.wire.errors import ErrorCode
from broker.wire.fetch import FetchPartition, FetchRequest
from tests.broker.engine_client import (
    DELETE_RECORDS,
    DELETE_TOPICS,
    FETCH,
    LIST_OFFSETS,
    PRODUCE,
    EngineBroker,
    produce_request,
)

SLICE, LAST = 10, 19  # two slices; the first partition is read in the first, the last in the second
VALUE = b"x" * 100_000
RETENTION_MS = 100_000


@pytest.fixture
def broker(monkeypatch):
    """A broker whose first and last partitions have three batches of 100 kB, and which reads ten partitions a slice."""
    for module in (fetch, list_offsets, partition_budget):
        monkeypatch.setattr(module, "PARTITIONS_AT_ONCE", SLICE)
    broker = EngineBroker(log_retention_check_interval_ms=1_000)
    broker.create("flights", LAST + 1, retention_ms=RETENTION_MS)
    client = broker.connect()
    for partition in (0, LAST):
        for _ in range(3):
            client.produce("flights", VALUE, partition=partition)
    return broker


@pytest.fixture
def slices(monkeypatch):
    """The number of slices that were read."""
    read = []

    def counted(function):
        def count(*arguments):
            read.append(1)
            return function(*arguments)

        return count

    monkeypatch.setattr(fetch, "collect", counted(fetch_reading.collect))
    monkeypatch.setattr(list_offsets, "_find_offsets", counted(list_offsets._find_offsets))
    return read


def delete_records(broker):
    parts = [{"partition_index": number, "offset": -1} for number in (0, LAST)]
    topics = [{"name": "flights", "partitions": parts}]
    broker.connect().send(DELETE_RECORDS, 2, {"topics": topics, "timeout": 1_000})


def delete_topic(broker):
    broker.connect().send(DELETE_TOPICS, 1, {"topic_names": ["flights"], "timeout": 1_000})


def make_topic_again(broker):
    broker.delete("flights")
    broker.create("flights", LAST + 1)


def retention(broker):
    broker.now_ms += 2 * RETENTION_MS
    broker.engine.tick(broker.now)


def roll(broker, partitions=(0, LAST)):
    for number in partitions:
        broker.services.log_of("flights", number).roll()
        broker.connect().send(PRODUCE, 9, produce_request("flights", b"new", partition=number))


def lose_disk(broker):
    for number in (0, LAST):
        broker.services.log_of("flights", number).take_offline("its disk is gone")


CHANGES = {
    "records are deleted": (delete_records, {ErrorCode.OFFSET_OUT_OF_RANGE}),
    "the topic is deleted": (delete_topic, {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
    "the topic is made again": (make_topic_again, {ErrorCode.NONE}),
    "retention deletes all records": (retention, {ErrorCode.OFFSET_OUT_OF_RANGE}),
    "new segments begin": (roll, {ErrorCode.NONE}),
    "the disk is lost": (lose_disk, {ErrorCode.KAFKA_STORAGE_ERROR}),
}


def answer_of(broker, slices, change, *request):
    """Send a request that is read in two slices, and change the logs between them. Return the answer."""
    client = broker.connect()
    slices.clear()
    with broker.turn():
        broker.services.partition_budget.left = 0
        client.send(*request)
        while not slices:
            broker.execute()
        assert len(slices) == 1
        change(broker)
    assert client.closed is None
    ((_, answer),) = client.replies()
    return answer


def fetching(max_bytes, **more):
    parts = [FetchPartition("flights", number, 0, max_bytes) for number in range(LAST + 1)]
    return FETCH, 12, FetchRequest(more.pop("max_wait_ms", 0), more.pop("min_bytes", 1), max_bytes, parts, **more)


@pytest.mark.parametrize("event", CHANGES)
def test_a_fetch_answers_each_partition_as_it_was_when_it_was_read(broker, slices, event):
    change, errors = CHANGES[event]
    before = broker.services.log_of("flights", 0)
    region = before.segments.active.log
    records = bytes(region.read(0, region.size))
    answer = answer_of(broker, slices, change, *fetching(250_000))
    first, last = answer.partitions[0], answer.partitions[LAST]
    assert (first.error_code, first.log_start_offset, first.high_watermark) == (0, 0, 3)
    assert 200_000 <= first.size <= 250_000 and records.startswith(bytes(first.records))
    assert last.error_code in errors


@pytest.mark.parametrize("timestamp", [0, -1, -2, -3])
@pytest.mark.parametrize("event", CHANGES)
def test_list_offsets_answers_each_partition_as_it_was_when_it_was_read(broker, slices, event, timestamp):
    change, errors = CHANGES[event]
    parts = [{"partition_index": n, "timestamp": timestamp, "current_leader_epoch": -1} for n in range(LAST + 1)]
    topics = [{"name": "flights", "partitions": parts}]
    fields = {"replica_id": -1, "isolation_level": 0, "topics": topics}
    answer = answer_of(broker, slices, change, LIST_OFFSETS, 7, fields)
    last = answer.topics[0].partitions[LAST]
    assert last.error_code in errors - {ErrorCode.OFFSET_OUT_OF_RANGE} | {ErrorCode.NONE}


def test_a_fetch_whose_records_lie_in_an_older_segment_by_now_is_answered_at_once(broker, slices):
    request = fetching(10_000_000, min_bytes=9_000_000, max_wait_ms=1_000)
    answer = answer_of(broker, slices, lambda broker: roll(broker, [0]), *request)
    assert [answer.partitions[number].high_watermark for number in (0, LAST)] == [4, 3]
