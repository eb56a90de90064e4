"""The state of a transactional id, and a transaction in many partitions whose markers are written step by step."""

from broker.services.due_actions import MARKERS_AT_ONCE
from tests.broker.transactional import TransactionalProducer

STATE = "__transaction_state"
MANY = 3 * MARKERS_AT_ONCE


def coordinator_of(broker, transactional_id="payments"):
    """Return the coordinator of the partition that keeps the transactional id."""
    return broker.services.coordinators.transactions.find(transactional_id)


def state_of(broker, transactional_id="payments"):
    return coordinator_of(broker, transactional_id).core.get(transactional_id).state.title


def begin_in_many(broker):
    """Begin a transaction in more partitions than get their markers in one step; return its producer."""
    broker.create("wide", MANY)
    producer = TransactionalProducer(broker)
    producer.init()
    assert producer.add(*(("wide", n) for n in range(MANY))) == 0
    for n in range(MANY):
        producer.send("wide", b"a", partition=n)
    return producer


def ended_in(broker):
    return sum(broker.services.log_of("wide", n).last_stable_offset >= 2 for n in range(MANY))


def step(broker):
    broker.at(broker.engine.next_deadline(broker.now))
