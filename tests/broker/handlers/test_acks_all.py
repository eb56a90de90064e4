"""Produce with acks=all to a partition of several copies: when it is answered, and with what (rule R2)."""

import pytest

from broker.wire.errors import ErrorCode
from idgen.layout import Layout
from idgen.worker import IdWorker
from tests.broker.engine_client import PRODUCE, WALL_MS, batch_of, produce_request
from tests.broker.replicated import ReplicatedLeader


@pytest.fixture
def leader():
    leader = ReplicatedLeader()
    leader.copied("flights", min_insync_replicas=2)
    return leader


@pytest.fixture
def client(leader):
    return leader.client()


def send(client, *values, acks=-1, topic="flights", timeout_ms=30_000, version=10):
    request = produce_request(topic, *values, acks=acks)._replace(timeout_ms=timeout_ms)
    return client.send(PRODUCE, version, request)


def errors(client):
    return [result.error_code for _, results in client.replies() for result in results]


def test_the_answer_comes_when_all_replicas_in_sync_have_the_batch(leader, client):
    sent = send(client, b"a", b"b")
    leader.follower(2).fetch("flights", 2)
    leader.follower(3).fetch("flights", 1)
    assert client.replies() == []
    leader.follower(3).fetch("flights", 2)
    ((answered, (result,)),) = client.replies()
    assert (answered, result.error_code, result.base_offset) == (sent, 0, 0)


@pytest.mark.parametrize("acks", [0, 1])
def test_other_acks_wait_for_no_replica(leader, client, acks):
    send(client, b"a", acks=acks)
    assert errors(client) == [0] * acks
    assert leader.log("flights").log_end_offset == 1


def test_a_partition_of_one_copy_is_answered_at_once(leader, client):
    leader.create("alone", (1,))
    assert client.produce("alone", b"a", acks=-1).error_code == 0


def test_too_few_replicas_in_sync_refuse_the_batch_before_it_is_appended(leader, client):
    leader.granted("flights", isr=(1,))
    assert client.produce("flights", b"a", acks=-1).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert leader.log("flights").log_end_offset == 0
    assert client.produce("flights", b"a", acks=1).error_code == 0


def test_the_setting_never_asks_for_more_replicas_than_there_are(leader, client):
    leader.copied("trains", replicas=(1, 2), isr=(1, 2), min_insync_replicas=3)
    send(client, b"a", topic="trains")
    leader.follower(2).fetch("trains", 1)
    assert errors(client) == [0]


def test_a_batch_that_all_replicas_have_is_in_doubt_if_too_few_are_left_at_the_answer(client, leader):
    """The ISR falls below the minimum while the disk is what the answer waits for."""
    leader.copied("slow", min_insync_replicas=2, flakelog_durable_acks="true")
    leader.broker.hold_syncs()
    client.send(PRODUCE, 9, produce_request("slow", b"a", acks=-1))
    leader.all_fetch("slow", 1)
    leader.granted("slow", isr=(1,))
    assert client.replies() == []
    leader.broker.release()
    assert errors(client) == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]


def test_while_too_few_are_in_sync_the_request_waits_for_its_timeout(leader, client):
    send(client, b"a", timeout_ms=1_000)
    leader.granted("flights", isr=(1,))
    assert client.replies() == []
    leader.later(1_000)
    assert errors(client) == [ErrorCode.REQUEST_TIMED_OUT]


def test_a_leader_whose_isr_is_not_granted_sends_its_clients_to_look_for_another(leader, client):
    """Its session may have ended, and another broker may lead. REQUEST_TIMED_OUT would keep a client with it."""
    send(client, b"a", timeout_ms=30_000)
    leader.later(29_999)
    leader.partition("flights").check_lag(10_000, leader.broker.now)
    assert client.replies() == []
    leader.later(1)
    assert errors(client) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


@pytest.mark.parametrize("is_late, code", [(False, 7), (True, 6)])
def test_a_leader_without_ids_sends_its_clients_to_look_for_another_too(leader, client, is_late, code):
    """It hears neither of new ids nor of a new leader."""
    leader.all_fetch("flights", 0)
    if is_late:
        send(client, b"what the followers are late with", acks=0)
    leader.broker.worker = IdWorker(Layout(), 2, start_ms=WALL_MS - 10, limit_ms=WALL_MS)
    leader.later(30_000)
    leader.partition("flights").check_lag(10_000, leader.broker.now)
    send(client, b"a", timeout_ms=1)
    leader.later(1_000)
    assert errors(client)[-1:] == [code]


def test_the_answer_waits_for_disk_and_replicas(leader, client):
    leader.copied("safe", min_insync_replicas=2, flakelog_durable_acks="true")
    leader.broker.hold_syncs()
    send(client, b"a", topic="safe")
    leader.all_fetch("safe", 1)
    assert client.replies() == []
    leader.broker.release()
    assert errors(client) == [0]


def test_a_smaller_isr_answers_a_request_that_waits_for_a_dead_follower(leader, client):
    send(client, b"a")
    leader.follower(2).fetch("flights", 1)
    leader.granted("flights", isr=(1, 2))
    assert errors(client) == [0]


def test_a_lost_leadership_answers_with_the_new_leader(leader, client):
    """KIP-951: the producer goes on at the broker that the answer names."""
    send(client, b"a")
    leader.next_epoch("flights", leader=2)
    ((_, (result,)),) = client.replies()
    assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (result.leader.leader_id, result.leader.leader_epoch) == (2, 1)
    assert client.produce("flights", b"b", acks=-1, version=10).leader.leader_id == 2


def test_a_new_epoch_of_the_same_leader_fails_no_request(leader, client):
    send(client, b"a")
    leader.next_epoch("flights")
    assert client.replies() == []
    leader.all_fetch("flights", 1)
    assert errors(client) == [0]


def test_a_log_that_goes_offline_answers(leader, client):
    send(client, b"a")
    leader.log("flights").take_offline("the disk is gone")
    leader.services.touch(leader.log("flights"), leader.broker.now)
    leader.broker.pump()
    assert errors(client) == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_a_repeated_batch_waits_like_the_first(leader, client):
    """The answer to the first was lost: the second must not promise more than the first could."""
    batch = batch_of(b"a", producer_id=5, producer_epoch=0, base_sequence=0)
    for _ in range(2):
        client.send(PRODUCE, 9, produce_request("flights", acks=-1, batch=bytearray(batch)))
    assert client.replies() == [] and leader.log("flights").log_end_offset == 1
    leader.all_fetch("flights", 1)
    answers = [result for _, results in client.replies() for result in results]
    assert [(result.error_code, result.base_offset) for result in answers] == [(0, 0), (0, 0)]


def test_a_partition_whose_replicas_are_slow_holds_up_no_other(leader):
    leader.copied("trains", min_insync_replicas=2)
    slow, fast = leader.client(), leader.client()
    with leader.broker.turn():
        send(slow, b"a")
        send(fast, b"b", topic="trains")
    leader.all_fetch("trains", 1)
    assert (slow.replies(), errors(fast)) == ([], [0])


def test_a_closed_connection_leaves_the_requests_of_others_waiting(leader, client):
    other = leader.client()
    with leader.broker.turn():
        send(client, b"a")
        send(other, b"b")
    leader.broker.engine.closed(client.conn)
    leader.all_fetch("flights", 2)
    assert errors(other) == [0]
