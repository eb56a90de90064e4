"""Large requests are executed in slices: other connections are served in between, and nothing else changes."""

import pytest

from broker.channel.slices import AT_ONCE, SLICE_WAITS
from broker.engine.engine import Engine
from broker.fault_injection.faulty_engine import FaultyEngine
from broker.metadata.change import Change
from broker.metadata.staged import Staged
from tests.broker.engine_client import (
    API_VERSIONS,
    CREATE_TOPICS,
    FIND_COORDINATOR,
    METADATA,
    OFFSET_COMMIT,
    PRODUCE,
    EngineBroker,
    produce_request,
)

MANY = 3_000
KEYS = FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [f"group-{number}" for number in range(MANY)]}
VERSIONS = API_VERSIONS, 0, {}
ALL_TOPICS = METADATA, 1, {"topics": None}


@pytest.fixture
def broker():
    return EngineBroker(offsets_topic_num_partitions=1)


@pytest.fixture
def client(broker):
    return broker.connect()


def turns_until_answered(broker, client):
    """Execute turns until the client has an answer; return their number."""
    for turns in range(1, 10_000):
        broker.execute()
        for job in broker.engine.take_syncs():
            broker.run(job)
        for conn, parts in broker.engine.take_replies():
            broker.clients[conn].take(parts)
        if client.received:
            return turns
    raise AssertionError("no answer")


def test_another_connection_is_answered_before_a_large_request_is(broker, client):
    other = broker.connect()
    with broker.turn():
        client.send(*KEYS)
        other.send(*VERSIONS)
        assert turns_until_answered(broker, other) == 1
        assert not client.received
        assert turns_until_answered(broker, client) > MANY / 500
    ((_, answer),) = client.replies()
    assert [coordinator.key for coordinator in answer.coordinators] == KEYS[2]["coordinator_keys"]


def test_a_large_answer_to_a_small_request_is_encoded_in_slices(broker, client):
    for number in range(1_200):
        broker.know({f"t{number}": 1})
    other = broker.connect()
    with broker.turn():
        client.send(*ALL_TOPICS)
        other.send(*VERSIONS)
        assert turns_until_answered(broker, other) == 1
        assert not client.received
    ((_, answer),) = client.replies()
    assert len(answer.topics) == 1_200


def test_later_requests_of_the_connection_wait_for_it(broker, client):
    correlation_ids = client.send_together(KEYS, VERSIONS, ALL_TOPICS, KEYS)
    assert client.answered() == correlation_ids


def test_later_requests_see_what_it_has_changed(broker, client):
    topics = [{"name": f"t{n}", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
              for n in range(600)]  # fmt: skip
    produce = PRODUCE, 9, produce_request("t599", b"x")
    client.send_together((CREATE_TOPICS, 7, {"topics": topics, "timeout": 1_000, "validate_only": False}), produce)
    (_, created), (_, (produced,)) = client.replies()
    assert {topic.error_code for topic in created.topics} == {0} and produced.error_code == 0


def test_what_the_connection_produced_before_is_answered_first(broker, client):
    broker.create("flights")
    correlation_ids = client.send_together((PRODUCE, 9, produce_request("flights", b"x")), KEYS, VERSIONS)
    assert client.answered() == correlation_ids


def test_a_closed_connection_drops_its_request(broker, client):
    with broker.turn():
        client.send(*KEYS)
        broker.execute()
        broker.engine.closed(client.conn)
        assert not broker.engine.has_work


def test_a_large_request_that_is_damaged_closes_its_connection_only(broker, client):
    _, frame = client.frame(*KEYS)
    damaged = bytearray(frame)
    damaged[-12:] = b"\xff" * 12
    other = broker.connect()
    client.feed(damaged)
    assert "FindCoordinatorRequest v4" in client.closed
    assert other.ask(*VERSIONS).error_code == 0


def test_an_unexpected_fault_in_a_slice_closes_its_connection_only(broker, client, monkeypatch):
    other = broker.connect()
    client.ask(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g"]})

    def fail(key, listener):
        raise RuntimeError("a fault")

    monkeypatch.setattr(broker.services.coordinators.groups.topic, "find", fail)
    client.send(*KEYS)
    assert "a fault of the broker's own" in client.closed
    assert any("RuntimeError: a fault" in line for line in broker.reported)
    assert other.ask(*VERSIONS).error_code == 0


def test_large_requests_of_many_connections_take_turns_a_few_at_a_time(broker):
    clients = [broker.connect() for _ in range(2 * AT_ONCE)]
    with broker.turn():
        for client in clients:
            client.send(*KEYS)
    assert [len(client.answered()) for client in clients] == [1] * len(clients)


def test_a_connection_closed_while_its_large_request_waits_for_others_is_forgotten(broker):
    clients = [broker.connect() for _ in range(AT_ONCE + 2)]
    with broker.turn():
        for client in clients:
            client.send(*KEYS)
        broker.execute()
        broker.engine.closed(clients[-1].conn)
        broker.engine.closed(clients[0].conn)
    assert [len(client.answered()) for client in clients] == [0] + [1] * AT_ONCE + [0]


def test_slices_leave_most_of_the_time_to_others_while_those_have_requests():
    clock = [0]

    def clock_ns():
        clock[0] += 1_000
        return clock[0]

    broker = EngineBroker(offsets_topic_num_partitions=1, engine=lambda services: Engine(services, clock_ns))
    client, other = broker.connect(), broker.connect()
    with broker.turn():
        client.send(*KEYS)
        alone = turns_until_answered(broker, client)
        client.received.clear()
        client.send(*KEYS)
        turns = 0
        while not client.received:
            other.send(*VERSIONS)
            turns += turns_until_answered(broker, other)
            other.received.clear()
    assert turns > alone
    assert SLICE_WAITS > 1


def test_without_ids_it_is_executed_again_and_has_one_effect():
    """The worker has no run-ahead, and the ids of this millisecond are spent."""
    broker = EngineBroker(offsets_topic_num_partitions=1, max_ahead_ms=0)
    client = broker.connect()
    client.ask(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g"]})
    broker.know({"wide": MANY})
    partitions = [{"partition_index": n, "committed_offset": 3, "committed_metadata": ""} for n in range(MANY)]
    fields = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    broker.at(broker.now_ms + 1)
    broker.worker.next_ids(broker.worker.max_batch, broker.now.wall_ms)
    correlation_id = client.send(OFFSET_COMMIT, 8, fields | {"topics": [{"name": "wide", "partitions": partitions}]})
    later = client.send(*VERSIONS)
    offsets_log = broker.services.log_of("__consumer_offsets", 0)
    assert client.answered() == [] and offsets_log.log_end_offset == 0
    broker.at(broker.now_ms + 10_000)
    assert client.answered() == [correlation_id, later] and offsets_log.log_end_offset == MANY


def test_an_injected_failure_applies_to_it():
    broker = EngineBroker(offsets_topic_num_partitions=1, engine=FaultyEngine)
    client = broker.connect()
    broker.engine.delay(FIND_COORDINATOR, 500, times=1)
    correlation_id = client.send(*KEYS)
    assert client.answered() == []
    broker.at(broker.now_ms + 600)
    assert client.answered() == [correlation_id]
    broker.engine.close(FIND_COORDINATOR, "after")
    client.send(*KEYS)
    assert "after a FindCoordinator" in client.closed


def test_the_time_of_its_slices_counts_for_its_clients_quota():
    clock = [0]

    def clock_ns():
        clock[0] += 1_000_000
        return clock[0]

    broker = EngineBroker(offsets_topic_num_partitions=1, engine=lambda services: Engine(services, clock_ns))
    broker.change(Staged(Change(quotas={(("client-id", "test"),): {"request_percentage": 0.001}})))
    client = broker.connect()
    client.send(*KEYS)
    while not (answers := client.replies()):
        broker.at(broker.now_ms + 1_000)
    client.send(*KEYS)
    while not (answers := client.replies()):
        broker.at(broker.now_ms + 1_000)
    assert answers[0][1].throttle_time.total_seconds() > 0
