"""Errors of requests in transactions: each code names the fault of the request (KIP-890)."""

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import EngineBroker
from tests.broker.handlers.transaction_steps import STATE, state_of
from tests.broker.transactional import HIGHEST, TransactionalProducer, committed


@pytest.fixture
def broker():
    broker = EngineBroker(transaction_state_log_num_partitions=2)
    broker.create("flights", 2)
    return broker


@pytest.mark.parametrize("version, code", [(3, 48), (10, 48), (11, 120), (12, 120)])
def test_a_batch_for_a_partition_that_was_not_added_is_refused(broker, version, code):
    """The error is INVALID_TXN_STATE, or TRANSACTION_ABORTABLE for clients that know it (KIP-890)."""
    producer = TransactionalProducer(broker)
    producer.init()
    assert producer.send("flights", b"a", version=version) == code
    producer.write("flights", b"b")
    assert producer.send("flights", b"a", partition=1, version=version) == code
    producer.end(True)
    assert producer.send("flights", b"late", version=version) == code


def test_a_batch_of_a_transaction_in_no_transactional_ids_name_is_refused(broker):
    producer = TransactionalProducer(broker)
    producer.init()
    producer.add(("flights", 0))
    assert producer.send("flights", b"a", named=False) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    producer.transactional_id = "nobody"
    assert producer.send("flights", b"a") == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_batch_of_a_transaction_is_refused_also_where_requests_repeat(broker):
    client = broker.connect()
    client.produce("flights", b"one")
    producer = TransactionalProducer(broker)
    producer.init()
    producer.client = client
    assert producer.send("flights", b"a", named=False, version=9) == 53


def test_a_producer_that_takes_the_next_epoch_with_each_end_may_abort_where_nothing_is_on(broker):
    """Such a producer does not always know whether a transaction is open (KIP-890). An empty commit is refused."""
    producer = TransactionalProducer(broker)
    producer.init()
    assert producer.end(False) == producer.end(True, version=5) == ErrorCode.INVALID_TXN_STATE
    for epoch in (1, 2):
        before = producer.epoch
        assert producer.end(False, version=5) == 0 and producer.epoch == epoch
        producer.epoch = before
        assert producer.end(False, version=5) == 0 and producer.epoch == epoch, "its answer got lost"
    assert producer.end(True, version=5) == ErrorCode.INVALID_TXN_STATE
    producer.write("flights", b"a")
    assert producer.end(True, version=5) == 0 and producer.end(True, version=5) == ErrorCode.INVALID_TXN_STATE
    assert producer.end(False, version=5) == 0 and state_of(broker) == "CompleteAbort"
    producer.epoch -= 1
    assert producer.end(False) == ErrorCode.PRODUCER_FENCED, "before v5 it is the epoch that the producer has"
    assert committed(broker.connect(), "flights") == [b"a"]


def test_partitions_are_added_all_or_none(broker):
    producer = TransactionalProducer(broker)
    producer.init()
    assert producer.add(("flights", 0), ("flights", 7), ("nowhere", 0)) == [55, 3, 3]
    assert producer.add(("flights", 0), (STATE, 0)) == [55, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert state_of(broker) == "Empty"


def test_requests_name_what_is_wrong_with_them(broker):
    producer = TransactionalProducer(broker, timeout_ms=900_001)
    assert producer.init() == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    producer.timeout_ms = 0
    assert producer.init() == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    producer.timeout_ms, producer.transactional_id = 1_000, ""
    assert producer.init() == producer.end(True) == producer.add(("flights", 0)) == ErrorCode.INVALID_REQUEST
    producer.transactional_id = "x" * 20_000
    assert producer.init() == ErrorCode.INVALID_REQUEST
    producer.transactional_id = "unknown"
    assert producer.end(True) == producer.add(("flights", 0)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_past_the_limit_another_transactional_id_is_refused():
    """The limit is flakelog.transactional.ids.max."""
    broker = EngineBroker(transaction_state_log_num_partitions=1, transactional_ids_max=1)
    assert TransactionalProducer(broker, "a").init() == 0
    assert TransactionalProducer(broker, "b").init() == ErrorCode.POLICY_VIOLATION
    assert TransactionalProducer(broker, "a").init() == 0


def test_without_its_topic_nothing_is_coordinated_here():
    broker = EngineBroker()
    broker.create("__transaction", 1)
    producer = TransactionalProducer(broker, versions=HIGHEST)
    broker.delete(STATE)
    assert producer.init() == producer.end(True) == ErrorCode.NOT_COORDINATOR
