"""Several Produce requests in one turn, to topics with flakelog.durable.acks: they share the sync of the disk."""

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import METADATA, PRODUCE, EngineBroker, produce_request
from tests.broker.handlers.produce_requests import connected, producing


@pytest.fixture
def durable():
    broker = EngineBroker()
    broker.create("flights", flakelog_durable_acks="true")
    return broker


def test_those_of_a_turn_are_answered_by_one_sync(durable):
    clients = connected(durable, 3)
    held = durable.hold_syncs()
    with durable.turn():
        sent = [client.send(PRODUCE, 9, produce_request("flights", b"x")) for client in clients]
    assert [type(sync).__name__ for sync in held] == ["SyncJournal"]
    assert [client.replies() for client in clients] == [[], [], []]
    clients[1].send(PRODUCE, 9, produce_request("flights", b"next"))
    durable.release()
    answered = [[(id, result[0].base_offset) for id, result in client.replies()] for client in clients]
    assert answered == [[(sent[0], 3)], [(sent[1], 4), (sent[1] + 1, 6)], [(sent[2], 5)]]


def test_a_connection_that_goes_does_not_take_the_others_answers_with_it(durable):
    leaves, stays = connected(durable, 2)
    durable.hold_syncs()
    with durable.turn():
        for client in (leaves, stays):
            client.send(PRODUCE, 9, produce_request("flights", b"x"))
    durable.engine.closed(leaves.conn)
    durable.release()
    assert stays.replies()[0][1][0].base_offset == 3
    assert stays.fetch("flights") == [b"first", b"first", b"x", b"x"]


def test_a_disk_that_is_too_slow_is_a_timeout_for_each_and_a_failed_one_an_error(durable):
    clients = connected(durable, 2)
    held = durable.hold_syncs()
    with durable.turn():
        for client in clients:
            client.send(PRODUCE, 9, produce_request("flights", b"x"))
    durable.at(durable.now_ms + 30_001)
    late = [client.replies()[0][1][0] for client in clients]
    assert [result.error_code for result in late] == [ErrorCode.REQUEST_TIMED_OUT] * 2
    assert "the disk takes longer" in late[0].message and late[0].base_offset == -1
    with durable.turn():
        for client in clients:
            client.send(PRODUCE, 9, produce_request("flights", b"y"))
    durable.storage.failing_syncs.add(held[0].to.name)
    durable.release()
    assert [client.replies()[0][1][0].error_code for client in clients] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2


def test_answers_of_a_turn_leave_in_order_whichever_of_them_wait_for_the_disk(durable):
    durable.create("fast")
    client = durable.connect()
    durable.hold_syncs()
    fast = PRODUCE, 9, produce_request("fast", b"b")
    sent = client.send_together(producing(b"a"), fast, producing(b"c"), (METADATA, 1, {"topics": []}), fast)
    assert client.answered() == []
    durable.release()
    assert client.answered() == sent


@pytest.mark.parametrize("timeouts", [(1_000, 2_000, 1_000), (2_000, 1_000, 2_000)])
def test_answers_of_a_turn_leave_in_order_though_they_wait_differently_long(durable, timeouts):
    client = durable.connect()
    held = durable.hold_syncs()
    requests = [produce_request("flights", b"x")._replace(timeout_ms=timeout) for timeout in timeouts]
    sent = client.send_together(*[(PRODUCE, 9, request) for request in requests])
    assert len(held) == 1
    durable.at(durable.now_ms + 1_000)
    durable.release()
    answers = client.replies()
    assert [correlation_id for correlation_id, _ in answers] == sent
    late = [ErrorCode.REQUEST_TIMED_OUT if timeout == 1_000 else 0 for timeout in timeouts]
    assert [result.error_code for _, (result,) in answers] == late


def test_answers_of_a_turn_leave_in_order_though_they_wait_for_different_syncs(durable):
    """The log manager syncs a topic with flush.messages=1 without the journal."""
    durable.create("trains", flush_messages=1)
    client = durable.connect()
    held = durable.hold_syncs()
    trains = PRODUCE, 9, produce_request("trains", b"b")
    sent = client.send_together(producing(b"a"), trains, producing(b"c"), trains)
    assert sorted(type(sync).__name__ for sync in held) == ["SyncJournal", "SyncLog"]
    for sync in sorted(held, key=lambda sync: type(sync).__name__, reverse=True):
        held.remove(sync)
        durable.run(sync)
        durable.pump()
    durable.release()
    assert client.answered() == sent


def test_a_refusal_waits_for_the_answers_before_it(durable):
    client = durable.connect()
    durable.hold_syncs()
    sent = client.send_together(producing(b"a"), producing(b"b", partition=7), producing(b"c"))
    assert client.answered() == []
    durable.release()
    answers = client.replies()
    assert [correlation_id for correlation_id, _ in answers] == sent
    assert [result.error_code for _, (result,) in answers] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]
