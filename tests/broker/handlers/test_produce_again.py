"""A Produce that repeats the one before it goes a short way. Nobody can tell: its answers, and what is in the log, are
those of the long way."""

import pytest

from broker.record.records import Record, encode_batch
from broker.wire.errors import ErrorCode
from broker.wire.produce import PartitionRecords, ProduceRequest
from tests.broker.engine_client import FETCH, PRODUCE, EngineBroker, fetch_request, produce_request

VERSIONS = range(5, 13)  # those that name topics by name and answer with the log start offset


@pytest.fixture
def broker():
    broker = EngineBroker()
    broker.create("flights")
    return broker


def repeats(client):
    return client.conn.again is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_the_answer_is_that_of_the_long_way(broker, version):
    short, long = broker.connect(), broker.connect()
    short.produce("flights", b"first", version=version)
    assert repeats(short)
    by_short = short.produce("flights", b"one", b"two", version=version)
    assert repeats(short)
    long.conn.again = None
    by_long = long.produce("flights", b"one", b"two", version=version)
    by_short.base_offset += 2
    assert by_short == by_long
    assert long.fetch("flights") == [b"first", b"one", b"two", b"one", b"two"]


@pytest.mark.parametrize("version", [9, 12])
@pytest.mark.parametrize("size", [1, 20, 100, 16_000, 500_000])
def test_records_may_have_any_size(broker, version, size):
    client = broker.connect()
    client.produce("flights", b"first", version=version)
    client.produce("flights", bytes(size), version=version)
    assert repeats(client)
    assert [len(value) for value in client.fetch("flights", max_bytes=10**7)] == [5, size]


def test_a_topic_named_by_its_id_too(broker):
    client = broker.connect()
    topic = broker.services.metadata.topic("flights").id
    for value in (b"one", b"two", b"three"):
        assert client.produce(topic, value, version=13).error_code == 0
    assert repeats(client)
    assert client.fetch("flights") == [b"one", b"two", b"three"]


def test_another_partition_client_or_version_in_between_is_not_mistaken_for_it(broker):
    broker.create("trains", partitions=2)
    client = broker.connect()
    for version in (9, 10):
        client.produce("flights", b"f", version=version)
        client.produce("flights", b"f", version=version)
        client.produce("trains", b"0", version=version)
        client.produce("trains", b"1", partition=1, version=version)
        client.produce("trains", b"1", partition=1, version=version)
    assert client.fetch("flights") == [b"f"] * 4
    assert client.fetch("trains") == [b"0"] * 2
    assert client.fetch("trains", partition=1) == [b"1"] * 4


def test_who_asks_for_ids_gets_them_after_requests_that_did_not(broker):
    client = broker.connect()
    client.produce("flights", b"one")
    client.produce("flights", b"two")
    assert client.produce("flights", b"three", wants_ids=True).runs
    assert not client.produce("flights", b"four").runs


def test_a_request_without_acks_has_no_answer_after_ones_with(broker):
    client = broker.connect()
    client.produce("flights", b"one")
    client.produce("flights", b"two")
    client.send(PRODUCE, 9, produce_request("flights", b"three", acks=0))
    assert client.replies() == []
    assert client.fetch("flights") == [b"one", b"two", b"three"]


def test_a_topic_deleted_and_made_again_is_another_log(broker):
    client = broker.connect()
    client.produce("flights", b"one")
    client.produce("flights", b"two")
    broker.services.delete_topic(broker.services.metadata.topic("flights"), broker.now)
    assert client.produce("flights", b"three").error_code == 3
    broker.create("flights")
    assert client.produce("flights", b"four").base_offset == 0
    assert client.fetch("flights") == [b"four"]


def test_a_corrupt_batch_is_refused_and_the_next_one_is_not(broker):
    client = broker.connect()
    client.produce("flights", b"one")
    bad = bytearray(encode_batch([Record(0, 0, None, b"two", ())], base_timestamp_ms=1))
    bad[-1] ^= 1
    request = ProduceRequest(None, 1, 1000, [PartitionRecords("flights", 0, memoryview(bad))], False)
    assert client.ask(PRODUCE, 9, request)[0].error_code == 2
    assert client.produce("flights", b"three").base_offset == 1


def test_a_disk_that_becomes_full_is_answered_as_such(broker):
    """The short way has tried to append by then: the batch must come to the long one as it was sent."""
    client = broker.connect()
    client.produce("flights", b"one")
    client.produce("flights", b"two")
    broker.storage.free_bytes = 0
    assert client.produce("flights", b"three").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    broker.storage.free_bytes = None
    assert client.produce("flights", b"four").base_offset == 2


def test_an_answer_waits_its_turn_behind_a_request_that_waits(broker):
    client = broker.connect()
    client.produce("flights", b"one")
    client.produce("flights", b"two")
    waiting = client.send(FETCH, 12, fetch_request("flights", 2, max_wait_ms=500))
    produced = client.send(PRODUCE, 9, produce_request("flights", b"three"))
    assert [correlation_id for correlation_id, _ in client.replies()] == [waiting, produced]


@pytest.mark.parametrize("version", [9, 5])
def test_every_cut_of_a_repeated_frame_is_refused_like_the_first_one(broker, version):
    """The short way must not read past a frame, nor take half of one."""
    client = broker.connect()
    client.produce("flights", b"one", version=version)
    _, whole = client.frame(PRODUCE, version, produce_request("flights", b"two"))
    for end in range(len(whole) - 1, 8, -1):
        each = broker.connect()
        each.produce("flights", b"x", version=version)
        before = broker.services.logs.get("flights", 0).log_end_offset
        cut = whole[4:end]
        each.feed(len(cut).to_bytes(4, "big") + cut)
        assert broker.services.logs.get("flights", 0).log_end_offset == before


@pytest.mark.parametrize("acks", [2, -2])
def test_acks_that_there_are_not_are_refused_each_time(broker, acks):
    client = broker.connect()
    for _ in range(3):
        assert client.produce("flights", b"one", acks=acks).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert client.fetch("flights") == []
