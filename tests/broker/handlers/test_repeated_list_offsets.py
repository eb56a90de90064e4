"""Fast path for a ListOffsets that repeats the previous one of the same partition. It answers like the slow path."""

import pytest

from broker.fault_injection.faulty_engine import FaultyEngine
from broker.wire import cold, tags
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import DELETE_TOPICS, FETCH, LIST_OFFSETS, WALL_MS, EngineBroker, fetch_request

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
VERSIONS = range(4, 12)  # the versions whose answers have a leader epoch


@pytest.fixture
def broker():
    broker = EngineBroker()
    broker.create("flights")
    broker.connect().produce("flights", b"a", b"b")
    return broker


def fields_of(timestamp, topic="flights", partition=0, isolation_level=0, **more):
    asked = {"partition_index": partition, "timestamp": timestamp} | more
    topics = [{"name": topic, "partitions": [asked]}]
    return {"replica_id": -1, "isolation_level": isolation_level, "topics": topics, "timeout": 30_000}


def ask(client, timestamp, topic="flights", version=7, **more):
    """Send ListOffsets for one partition; return (error, offset, timestamp, leader epoch)."""
    answer = client.ask(LIST_OFFSETS, version, fields_of(timestamp, topic, **more))
    ((each,),) = (found.partitions for found in answer.topics)
    assert answer.topics[0].name == topic
    return each.error_code, each.offset, getattr(each, "timestamp", None), each.leader_epoch


def goes_short(client, timestamp, version=7, **more):
    _, frame = client.frame(LIST_OFFSETS, version, fields_of(timestamp, **more))
    known = client.conn.known.get(LIST_OFFSETS)
    return known is not None and known.answer(memoryview(frame)[4:], client.broker.now) is not None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("place", [LATEST, EARLIEST, WALL_MS, WALL_MS + 1, MAX_TIMESTAMP])
def test_the_answer_is_that_of_the_long_way(broker, version, place):
    short, long = broker.connect(), broker.connect()
    ask(short, LATEST, version=version)
    assert goes_short(short, place, version) or (place == MAX_TIMESTAMP and version < 7)
    assert ask(short, place, version=version) == ask(long, place, version=version)


def test_it_sees_what_has_come_and_what_has_gone_since(broker):
    client = broker.connect()
    assert ask(client, LATEST)[1] == 2
    broker.connect().produce("flights", b"c")
    broker.services.log_of("flights", 0).advance_start(1)
    assert goes_short(client, LATEST)
    assert [ask(client, place)[1] for place in (LATEST, EARLIEST, LATEST)] == [3, 1, 3]


def test_what_stands_between_does_not_end_it(broker):
    client = broker.connect()
    ask(client, LATEST)
    assert client.fetch("flights") == [b"a", b"b"]
    assert goes_short(client, EARLIEST)


def test_another_question_is_not_mistaken_for_it(broker):
    broker.create("flightz", partitions=2)
    client = broker.connect()
    ask(client, LATEST)
    others = [{"topic": "flightz"}, {"topic": "flightz", "partition": 1}, {"version": 6}, {"isolation_level": 1}]
    assert [goes_short(client, LATEST, **each) for each in others] == [False] * 4
    assert [ask(client, LATEST, **each)[1] for each in others] == [0, 0, 2, 2]


def test_a_topic_that_was_deleted_or_made_anew_is_noticed(broker):
    client = broker.connect()
    ask(client, LATEST)
    client.ask(DELETE_TOPICS, 6, {"topics": [{"name": "flights"}], "timeout": 1_000})
    assert ask(client, LATEST)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    broker.create("flights")
    assert [ask(client, LATEST)[:2] for _ in range(2)] == [(0, 0)] * 2


def test_a_partition_that_went_offline_is_a_storage_error(broker):
    client = broker.connect()
    ask(client, LATEST)
    broker.services.log_of("flights", 0).offline = "its disk is gone"
    assert ask(client, LATEST)[0] == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_leader_epoch_that_is_over_is_told(broker):
    """The error is FENCED_LEADER_EPOCH (KIP-320)."""
    client = broker.connect()
    assert ask(client, LATEST, current_leader_epoch=0) == (0, 2, -1, 0)
    broker.services.log_of("flights", 0).start_leader_epoch(1)
    assert ask(client, LATEST, current_leader_epoch=0)[0] == ErrorCode.FENCED_LEADER_EPOCH
    assert [ask(client, place)[3] for place in (LATEST, EARLIEST, LATEST)] == [1, 0, 1]


def test_who_asks_by_ids_goes_the_long_way(broker):
    client = broker.connect()
    ask(client, LATEST)
    body = cold.encode(LIST_OFFSETS, 7, "request", fields_of(0), {tags.IDS: tags.REQUEST})
    correlation_id, frame = client.frame(LIST_OFFSETS, 7, fields_of(0))
    whole = frame[4 : len(frame) - len(cold.encode(LIST_OFFSETS, 7, "request", fields_of(0)))] + body
    client.feed(len(whole).to_bytes(4, "big") + whole)
    ((answered, answer),) = client.replies()
    assert answered == correlation_id and answer.topics[0].partitions[0].offset == 0
    assert LIST_OFFSETS not in client.conn.known


def test_it_is_answered_after_what_was_asked_before_it(broker):
    client = broker.connect()
    ask(client, LATEST)
    waits = client.send(FETCH, 12, fetch_request("flights", 2, max_wait_ms=500))
    asks = client.send(LIST_OFFSETS, 7, fields_of(LATEST))
    assert client.replies() == []
    broker.connect().produce("flights", b"c")
    assert [number for number, _ in client.replies()] == [waits, asks]


def test_a_failure_that_a_test_asked_for_is_not_gone_past():
    broker = EngineBroker(engine=FaultyEngine)
    broker.create("flights")
    client = broker.connect()
    ask(client, LATEST)
    broker.engine.fail(LIST_OFFSETS, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert [ask(client, LATEST)[0] for _ in range(2)] == [ErrorCode.NOT_LEADER_OR_FOLLOWER, 0]
