"""ListOffsets that repeat an earlier one: each answer shows the broker's state at that time."""

from itertools import count

import pytest

from broker.engine.engine import Engine
from broker.fault_injection.faulty_engine import FaultyEngine
from broker.metadata.change import Change
from broker.metadata.staged import Staged
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
    partition_fields = {"partition_index": partition, "timestamp": timestamp} | more
    topics = [{"name": topic, "partitions": [partition_fields]}]
    return {"replica_id": -1, "isolation_level": isolation_level, "topics": topics, "timeout": 30_000}


def ask(client, timestamp, topic="flights", version=7, **more):
    """Send ListOffsets for one partition; return (error, offset, timestamp, leader epoch)."""
    answer = client.ask(LIST_OFFSETS, version, fields_of(timestamp, topic, **more))
    ((result,),) = (topic_answer.partitions for topic_answer in answer.topics)
    assert answer.topics[0].name == topic
    return result.error_code, result.offset, getattr(result, "timestamp", None), result.leader_epoch


def answered(client, frame):
    """Feed a whole frame and return the whole answer."""
    client.feed(frame)
    answer = bytes(client.received)
    client.received.clear()
    return answer


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("timestamp", [LATEST, EARLIEST, WALL_MS, WALL_MS + 1, MAX_TIMESTAMP])
def test_a_repeated_request_has_the_answer_of_the_first(broker, version, timestamp):
    """The first is decoded and its answer encoded in full; the others may have a template
    (broker.wire.list_offsets_template)."""
    client = broker.connect()
    _, frame = client.frame(LIST_OFFSETS, version, fields_of(timestamp))
    first = answered(client, frame)
    assert first != b"" and [answered(client, frame) for _ in range(2)] == [first] * 2


def test_it_sees_what_has_come_and_what_has_gone_since(broker):
    client = broker.connect()
    assert ask(client, LATEST)[1] == 2
    broker.connect().produce("flights", b"c")
    broker.services.log_of("flights", 0).advance_start(1)
    assert [ask(client, timestamp)[1] for timestamp in (LATEST, EARLIEST, LATEST)] == [3, 1, 3]


def test_what_stands_between_does_not_end_it(broker):
    client = broker.connect()
    ask(client, LATEST)
    assert client.fetch("flights") == [b"a", b"b"]
    assert [ask(client, timestamp)[1] for timestamp in (LATEST, EARLIEST)] == [2, 0]


def test_another_question_is_not_mistaken_for_it(broker):
    broker.create("flightz", partitions=2)
    client = broker.connect()
    ask(client, LATEST)
    others = [{"topic": "flightz"}, {"topic": "flightz", "partition": 1}, {"version": 6}, {"isolation_level": 1}]
    for _ in range(2):
        assert [ask(client, LATEST, **question)[1] for question in others] == [0, 0, 2, 2]


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
    assert [ask(client, timestamp)[3] for timestamp in (LATEST, EARLIEST, LATEST)] == [1, 0, 1]


def test_a_request_by_ids_is_not_taken_for_one_by_times(broker):
    client = broker.connect()
    ask(client, EARLIEST)
    body = cold.encode(LIST_OFFSETS, 7, "request", fields_of(0), {tags.IDS: tags.REQUEST})
    for _ in range(2):
        correlation_id, frame = client.frame(LIST_OFFSETS, 7, fields_of(0))
        whole = frame[4 : len(frame) - len(cold.encode(LIST_OFFSETS, 7, "request", fields_of(0)))] + body
        client.feed(len(whole).to_bytes(4, "big") + whole)
        ((answered, answer),) = client.replies()
        assert answered == correlation_id and answer.topics[0].partitions[0].offset == 0


def test_a_quota_that_a_client_gets_holds_for_requests_that_it_repeats():
    """A client over its request_percentage is answered immediately and then not read (KIP-124, KIP-219)."""
    clock = count(step=150_000_000)  # each reading is 0.15 s after the one before, more than the quota of a window
    broker = EngineBroker(engine=lambda services: Engine(services, lambda: next(clock)))
    broker.create("flights")
    client = broker.connect()
    for _ in range(2):
        assert ask(client, LATEST)[0] == 0 and client.conn.readable
    broker.change(Staged(Change(quotas={(("client-id", "test"),): {"request_percentage": 1}})))
    assert ask(client, LATEST)[0] == 0 and not client.conn.readable


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
