"""Transactions that take too long are aborted, and transactional ids expire (KIP-588)."""

from dataclasses import replace

import pytest

from broker.services.due_actions import MARKERS_AT_ONCE
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import EngineBroker
from tests.broker.handlers.transaction_steps import coordinator_of, state_of
from tests.broker.transactional import TransactionalProducer, committed


@pytest.fixture
def broker():
    broker = EngineBroker(transaction_state_log_num_partitions=2)
    broker.create("flights", 2)
    return broker


def test_a_transaction_that_is_on_for_too_long_is_aborted_and_its_producer_fenced(broker):
    producer, reader = TransactionalProducer(broker, timeout_ms=15_000), broker.connect()
    producer.init()
    producer.write("flights", b"a")
    start_ms = broker.now_ms
    broker.at(start_ms + 14_000)
    assert state_of(broker) == "Ongoing"
    broker.at(start_ms + 26_000)
    assert state_of(broker) == "CompleteAbort" and committed(reader, "flights") == []
    assert producer.end(True) == ErrorCode.PRODUCER_FENCED
    assert producer.init() == 0 and producer.epoch == 2


def test_many_transactions_that_time_out_together_are_aborted_some_at_a_time(broker):
    """A single abort delays no other client, but all of them together would."""
    producers = [TransactionalProducer(broker, f"payments-{n}", timeout_ms=1_000) for n in range(100)]
    for producer in producers:
        producer.init()
        producer.write("flights", b"a")
    transactions = broker.services.coordinators.transactions
    steps, before = [], 100
    while before:
        broker.at(broker.engine.next_deadline(broker.now))
        ongoing = sum(transaction.state.title == "Ongoing" for transaction in transactions)
        steps.append(before - ongoing)
        before = ongoing
    assert max(steps) == MARKERS_AT_ONCE // 2, "each has a marker and a record"
    assert {transaction.state.title for transaction in transactions} == {"CompleteAbort"}
    assert broker.now_ms < 20_000


def test_one_that_is_ended_before_its_turn_is_not_aborted(broker):
    producers = [TransactionalProducer(broker, f"payments-{n}", timeout_ms=1_000) for n in range(50)]
    for producer in producers:
        producer.init()
        producer.write("flights", b"a")
    last = producers[-1]
    while state_of(broker, "payments-0") == "Ongoing":
        broker.at(broker.engine.next_deadline(broker.now))
    last.client = broker.connect()
    assert last.end(True) == 0
    broker.at(broker.now_ms + 1_000)
    assert state_of(broker, "payments-48") == "CompleteAbort" and state_of(broker, "payments-49") == "CompleteCommit"


def test_a_producer_whose_transaction_took_too_long_goes_on_unless_another_took_over(broker):
    """The producer asks with its previous epoch and gets the one in which its transaction was aborted; it may ask twice
    (KIP-588)."""
    producer, other = TransactionalProducer(broker, timeout_ms=1_000), TransactionalProducer(broker, timeout_ms=1_000)
    producer.init()
    producer.write("flights", b"late")
    broker.at(broker.now_ms + 11_000)
    had = producer.epoch
    for _ in range(2):
        producer.epoch = had
        assert producer.init(keeps=True) == 0 and producer.epoch == 1
    producer.write("flights", b"a")
    assert producer.end(True) == 0
    assert committed(broker.connect(), "flights") == [b"a"]
    producer.write("flights", b"late")
    broker.at(broker.now_ms + 11_000)
    assert other.init() == 0 and other.epoch == 3
    assert producer.init(keeps=True) == ErrorCode.PRODUCER_FENCED


def test_where_no_epoch_is_left_a_producer_that_took_too_long_gets_none(broker):
    producer = TransactionalProducer(broker, timeout_ms=1_000)
    producer.init()
    core = coordinator_of(broker).core
    transaction = core.get("payments")
    core.apply(replace(transaction, producer_epoch=2**15 - 3))
    producer.init()
    producer.write("flights", b"late")
    broker.at(broker.now_ms + 11_000)
    assert producer.init(keeps=True) == ErrorCode.PRODUCER_FENCED


def test_a_transactional_id_that_is_not_used_expires(broker):
    """The limit is transactional.id.expiration.ms."""
    producer, busy = TransactionalProducer(broker), TransactionalProducer(broker, "busy", timeout_ms=900_000)
    producer.init()
    busy.init()
    start_ms, week_ms = broker.now_ms, 7 * 86_400_000
    broker.at(start_ms + week_ms - 3_600_000)
    busy.client = broker.connect()
    busy.write("flights", b"a")
    broker.at(start_ms + week_ms + 3_600_000)
    producer.client = broker.connect()
    assert len(broker.services.coordinators.transactions) == 1
    assert producer.end(True) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert len(broker.restarted().services.coordinators.transactions) == 1
