"""Transactions in many partitions: their markers are written in steps, and other clients are answered in between."""

import pytest

from broker.services.due_actions import MARKERS_AT_ONCE
from broker.wire.errors import ErrorCode
from idgen.layout import Layout
from idgen.worker import IdWorker
from tests.broker.engine_client import END_TXN, WALL_MS, WRITE_TXN_MARKERS, EngineBroker
from tests.broker.handlers.transaction_steps import MANY, STATE, begin_in_many, ended_in, state_of, step
from tests.broker.transactional import TransactionalProducer, committed


@pytest.fixture
def broker():
    broker = EngineBroker(transaction_state_log_num_partitions=2)
    broker.create("flights", 2)
    return broker


def send_end(producer):
    fields = {"transactional_id": "payments", "producer_id": producer.id, "producer_epoch": producer.epoch}
    producer.client.send(END_TXN, 4, fields | {"committed": True})


@pytest.mark.parametrize("durable", [False, True])
def test_an_end_in_many_partitions_lets_others_in_between_and_is_answered_with_the_last_marker(durable):
    broker = EngineBroker(durable_acks=durable, transaction_state_log_num_partitions=2)
    broker.create("flights")
    producer, other = begin_in_many(broker), broker.connect()
    send_end(producer)
    ended_counts = []
    while not (answers := producer.client.replies()):
        ended_counts.append(ended_in(broker))
        other.produce("flights", b"b")
        step(broker)
    assert ended_counts == [MARKERS_AT_ONCE, 2 * MARKERS_AT_ONCE] and ended_in(broker) == MANY
    assert answers[0][1].error_code == 0 and state_of(broker) == "CompleteCommit"
    assert producer.add(("wide", 0)) == 0


def test_meanwhile_the_transactional_id_is_busy(broker):
    producer, other = begin_in_many(broker), TransactionalProducer(broker)
    send_end(producer)
    assert other.init() == ErrorCode.CONCURRENT_TRANSACTIONS
    other.id, other.epoch = producer.id, producer.epoch
    assert other.add(("wide", 0)) == other.end(True) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert producer.client.replies() == []


def test_an_end_that_takes_too_long_is_answered_and_gone_on_with():
    """The end is decided, so it is answered after offsets.commit.timeout.ms, and later requests wait for its markers.
    Kafka never waits for markers."""
    broker = EngineBroker(transaction_state_log_num_partitions=2, offsets_commit_timeout_ms=1)
    producer = begin_in_many(broker)
    send_end(producer)
    broker.at(broker.now_ms + 2)
    ((_, answer),) = producer.client.replies()
    assert answer.error_code == 0 and ended_in(broker) == MARKERS_AT_ONCE
    assert producer.add(("wide", 0)) == ErrorCode.CONCURRENT_TRANSACTIONS
    broker.at(broker.now_ms + 1_000)
    assert producer.add(("wide", 0)) == 0 and ended_in(broker) == MANY


def test_partitions_that_cannot_take_their_marker_do_not_keep_the_answer_nor_the_others(broker):
    producer = begin_in_many(broker)
    offline = broker.services.logs.get("wide", 1)
    offline.offline = "a sync failed"
    send_end(producer)
    for _ in range(2):
        step(broker)
    ((_, answer),) = producer.client.replies()
    assert answer.error_code == 0 and state_of(broker) == "PrepareCommit"
    offline.offline = None
    assert ended_in(broker) == MANY - 1
    broker.at(broker.now_ms + 1_001)
    assert ended_in(broker) == MANY and state_of(broker) == "CompleteCommit"


def test_an_end_that_was_half_written_is_gone_on_with_after_a_kill(broker):
    send_end(begin_in_many(broker))
    again = broker.restarted(clean=False)
    assert MARKERS_AT_ONCE <= ended_in(again) < MANY, "a start, too, lets others in between"
    again.at(again.now_ms + 1_000)
    assert ended_in(again) == MANY and state_of(again) == "CompleteCommit"
    assert [committed(again.connect(), "wide", n) for n in (0, MANY - 1)] == [[b"a"], [b"a"]]


def send_markers(producer, client):
    """Send WriteTxnMarkers, with which an administrator ends a transaction without its coordinator. The first partition
    named does not exist."""
    topics = [{"name": "wide", "partition_indexes": [MANY, *range(MANY)]}]
    fields = {"producer_id": producer.id, "producer_epoch": producer.epoch, "coordinator_epoch": 0}
    marker = fields | {"transaction_result": False, "topics": topics}
    client.send(WRITE_TXN_MARKERS, 1, {"markers": [marker]})


def codes_of_markers(answer):
    return [partition.error_code for partition in answer.markers[0].topics[0].partitions]


def test_markers_for_many_partitions_let_others_in_between_and_are_answered_with_the_last(broker):
    producer, admin, other = begin_in_many(broker), broker.connect(), broker.connect()
    send_markers(producer, admin)
    ended_counts = []
    while not (answers := admin.replies()):
        ended_counts.append(ended_in(broker))
        other.produce("flights", b"b")
        step(broker)
    assert ended_counts == [MARKERS_AT_ONCE - 1, 2 * MARKERS_AT_ONCE - 1, MANY - 1] and ended_in(broker) == MANY
    assert codes_of_markers(answers[0][1]) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] + [0] * MANY


def test_where_there_are_no_ids_for_markers_that_are_left_they_wait_for_them(broker):
    producer, admin = begin_in_many(broker), broker.connect()
    send_markers(producer, admin)
    worker, broker.worker = broker.worker, IdWorker(Layout(), 1, start_ms=WALL_MS, limit_ms=WALL_MS + 1)
    for _ in range(10):
        step(broker)
    assert ended_in(broker) == MARKERS_AT_ONCE - 1 and not admin.replies()
    broker.worker = worker
    broker.at(broker.now_ms + 1_000)
    assert set(codes_of_markers(admin.replies()[0][1])[1:]) == {0} and ended_in(broker) == MANY


def test_markers_are_written_though_who_asked_for_them_has_gone(broker):
    producer, admin = begin_in_many(broker), broker.connect()
    send_markers(producer, admin)
    broker.engine.closed(admin.conn)
    broker.at(broker.now_ms + 1_000)
    assert ended_in(broker) == MANY


def test_past_the_limit_of_requests_for_many_markers_the_next_is_refused_and_can_be_asked_again():
    broker = EngineBroker(marker_requests_max=1)
    producer, admin, other = begin_in_many(broker), broker.connect(), broker.connect()
    send_markers(producer, admin)
    broker.engine.closed(admin.conn)
    send_markers(producer, other)
    assert set(codes_of_markers(other.replies()[0][1])) == {ErrorCode.BROKER_NOT_AVAILABLE}
    assert ended_in(broker) == MARKERS_AT_ONCE - 1, "nothing was written for it"
    broker.at(broker.now_ms + 1_000)
    send_markers(producer, other)
    broker.at(broker.now_ms + 1_000)
    assert set(codes_of_markers(other.replies()[0][1])[1:]) == {0} and ended_in(broker) == MANY


def test_markers_are_written_whole_before_the_coordinators_topic_is_forgotten(broker):
    producer, admin = begin_in_many(broker), broker.connect()
    send_markers(producer, admin)
    broker.delete("__transaction_state")
    broker.pump()
    assert ended_in(broker) == MANY
    assert len(codes_of_markers(admin.replies()[0][1])) == MANY + 1


def test_an_end_is_written_whole_before_its_coordinators_topic_is_forgotten(broker):
    """Otherwise the other partitions would be aborted, because the decision would be lost."""
    producer = begin_in_many(broker)
    send_end(producer)
    broker.delete(STATE)
    broker.pump()
    assert [answer.error_code for _, answer in producer.client.replies()] == [0]
    assert [committed(broker.connect(), "wide", n) for n in (0, MANY - 1)] == [[b"a"], [b"a"]]
