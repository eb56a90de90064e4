"""A producer that takes a transactional id fences the one before it (KIP-98, KIP-360)."""

from dataclasses import replace

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import EngineBroker
from tests.broker.handlers.transaction_steps import coordinator_of, state_of
from tests.broker.transactional import HIGHEST, LOWEST, TransactionalProducer, committed

VERSIONS = pytest.mark.parametrize("versions", [LOWEST, HIGHEST], ids=["lowest", "highest"])


@pytest.fixture
def broker():
    broker = EngineBroker(transaction_state_log_num_partitions=2)
    broker.create("flights", 2)
    return broker


@VERSIONS
def test_who_takes_the_transactional_id_fences_who_had_it(broker, versions):
    old, new = TransactionalProducer(broker, versions=versions), TransactionalProducer(broker, versions=versions)
    assert old.init() == 0
    assert new.init() == 0 and (new.id, new.epoch) == (old.id, old.epoch + 1)
    fenced = ErrorCode.INVALID_PRODUCER_EPOCH if versions is LOWEST else ErrorCode.PRODUCER_FENCED
    assert old.add(("flights", 0)) == old.end(True) == fenced
    assert old.send("flights", b"late") == ErrorCode.INVALID_PRODUCER_EPOCH


def test_who_takes_over_has_the_open_transaction_aborted_first(broker):
    old, new, reader = TransactionalProducer(broker), TransactionalProducer(broker), broker.connect()
    old.init()
    old.write("flights", b"half")
    assert new.init() == ErrorCode.CONCURRENT_TRANSACTIONS
    assert state_of(broker) == "CompleteAbort" and committed(reader, "flights") == []
    assert old.send("flights", b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert new.init() == 0 and new.epoch == old.epoch + 2


def test_a_producer_takes_its_next_epoch_by_the_one_it_has_and_may_ask_again(broker):
    """The producer names its id and epoch in InitProducerId (KIP-360)."""
    producer, other = TransactionalProducer(broker), TransactionalProducer(broker)
    producer.init()
    had = producer.id, producer.epoch
    assert producer.init(keeps=True) == 0 and producer.epoch == had[1] + 1
    producer.epoch -= 1
    assert producer.init(keeps=True) == 0 and producer.epoch == had[1] + 1, "the answer got lost"
    other.init()
    assert producer.init(keeps=True) == ErrorCode.PRODUCER_FENCED
    producer.id = 999
    assert producer.init(keeps=True) == ErrorCode.PRODUCER_FENCED
    producer.epoch = -1
    assert producer.init(keeps=True) == ErrorCode.INVALID_REQUEST


def test_when_its_epochs_are_used_up_a_transactional_id_gets_another_producer_id(broker):
    producer = TransactionalProducer(broker)
    producer.init()
    core = coordinator_of(broker).core
    transaction = core.get("payments")
    core.apply(replace(transaction, producer_epoch=2**15 - 3))
    assert producer.init() == 0 and producer.epoch == 2**15 - 2
    had = producer.id, producer.epoch
    producer.write("flights", b"a")
    producer.end(True)
    assert producer.init(keeps=True) == 0
    assert producer.epoch == 0 and producer.id != had[0]
    new = producer.id
    producer.id, producer.epoch = had
    assert producer.init(keeps=True) == 0 and (producer.id, producer.epoch) == (new, 0), "the answer got lost"
