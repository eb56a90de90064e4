"""DeleteRecords through the wire (https://kafka.apache.org/protocol#The_Messages_DeleteRecords; KIP-107)."""

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import (
    DELETE_RECORDS,
    FETCH,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    PRODUCE,
    WALL_MS,
    EngineBroker,
    batch_of,
    fetch_request,
    produce_request,
)


@pytest.fixture
def broker():
    broker = EngineBroker()
    broker.create("flights", 2)
    return broker


@pytest.fixture
def client(broker):
    client = broker.connect()
    client.produce("flights", b"a", b"b", b"c")
    return client


def delete(client, offset, topic="flights", partition=0, version=2):
    """Delete records of one partition; return its (error code, first offset)."""
    partitions = [{"partition_index": partition, "offset": offset}]
    topics = [{"name": topic, "partitions": partitions}]
    answer = client.ask(DELETE_RECORDS, version, {"topics": topics, "timeout": 1_000})
    (result,) = answer.topics[0].partitions
    return result.error_code, result.low_watermark


def earliest(client):
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -2}
    fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "flights", "partitions": [partition]}]}
    return client.ask(LIST_OFFSETS, 5, fields).topics[0].partitions[0].offset


@pytest.mark.parametrize("version", range(3))
def test_records_below_the_offset_cannot_be_read_any_more(client, version):
    assert delete(client, 2, version=version) == (ErrorCode.NONE, 2)
    assert earliest(client) == 2
    answer = client.ask(FETCH, 12, fetch_request("flights", 1))
    assert answer.partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_newest_record_is_looked_for_among_those_that_are_left(client):
    """The newest record is found with ListOffsets and timestamp -3 (KIP-734)."""
    for time_ms in (9, 5):
        client.ask(PRODUCE, 9, produce_request("flights", batch=batch_of(b"x", timestamp_ms=WALL_MS + time_ms)))
    partition = {"partition_index": 0, "timestamp": -3}
    fields = {"replica_id": -1, "topics": [{"name": "flights", "partitions": [partition]}]}
    for start, offset, time_ms in ((3, 3, 9), (4, 4, 5)):
        delete(client, start)
        result = client.ask(LIST_OFFSETS, 7, fields).topics[0].partitions[0]
        assert (result.offset, result.timestamp) == (offset, WALL_MS + time_ms)


def test_minus_one_is_the_high_watermark(client):
    assert delete(client, -1) == (ErrorCode.NONE, 3)
    assert client.produce("flights", b"d").base_offset == 3, "no offset is given twice"


def test_what_is_deleted_already_is_answered_with_the_start(client):
    delete(client, 2)
    assert delete(client, 1) == (ErrorCode.NONE, 2)


@pytest.mark.parametrize("offset", (4, -2))
def test_an_offset_that_is_not_there_is_refused(client, offset):
    assert delete(client, offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert earliest(client) == 0


def test_partitions_that_are_not_there_are_refused(client):
    assert delete(client, 0, topic="nowhere")[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert delete(client, 0, partition=2)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_that_is_only_compacted_is_not_deleted_from(broker, client):
    broker.create("keys", cleanup_policy="compact")
    broker.create("both", cleanup_policy="compact,delete")
    broker.create("neither", cleanup_policy="")
    assert delete(client, 0, topic="neither") == (0, 0)
    assert delete(client, 0, topic="keys") == (ErrorCode.POLICY_VIOLATION, -1)
    assert delete(client, 0, topic="both") == (ErrorCode.NONE, 0)


def test_the_brokers_own_topics_are_not_deleted_from(client):
    client.ask(FIND_COORDINATOR, 1, {"key": "g", "key_type": 0})
    assert delete(client, -1, topic="__consumer_offsets") == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)


def test_an_offline_partition_says_so(broker, client):
    broker.services.log_of("flights", 0).offline = "its disk is gone"
    assert delete(client, 1) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


def test_a_kill_soon_after_does_not_bring_them_back(broker, client):
    """The new start is stored within two seconds, earlier than the next checkpoint, which is written every minute."""
    delete(client, 2)
    broker.at(broker.now_ms + 2_000)
    client = broker.restarted(clean=False).connect()
    assert earliest(client) == 2 and client.fetch("flights", 2) == [b"a", b"b", b"c"], "the batch comes whole"


def test_an_idempotent_producer_goes_on_after_its_records_are_deleted(broker, client):
    """A producer's state outlives its records, as in Kafka."""
    def send(sequence):
        batch = batch_of(b"x", producer_id=7, producer_epoch=0, base_sequence=sequence)
        return client.ask(PRODUCE, 9, produce_request("flights", batch=batch))[0]

    assert send(0).base_offset == 3
    delete(client, -1)
    assert send(0).base_offset == 3, "a duplicate still"
    assert send(1).base_offset == 4
    assert send(3).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
