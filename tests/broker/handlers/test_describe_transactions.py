"""The administrators' view of transactions (KIP-664): DescribeProducers, DescribeTransactions, ListTransactions."""

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import (
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    LIST_TRANSACTIONS,
    WALL_MS,
    EngineBroker,
)
from tests.broker.transactional import TransactionalProducer


@pytest.fixture
def broker():
    broker = EngineBroker(transaction_state_log_num_partitions=1)
    broker.create("flights", 2)
    return broker


@pytest.fixture
def producer(broker):
    producer = TransactionalProducer(broker)
    producer.init()
    producer.write("flights", b"a", b"b")
    return producer


def producers(broker, topic="flights", partition=0):
    fields = {"topics": [{"name": topic, "partition_indexes": [partition]}]}
    return broker.connect().ask(DESCRIBE_PRODUCERS, 0, fields).topics[0].partitions[0]


def described(broker, transactional_id="payments"):
    answer = broker.connect().ask(DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [transactional_id]})
    return answer.transaction_states[0]


def listed(broker, version=1, **filters):
    fields = {"state_filters": [], "producer_id_filters": []} | filters
    answer = broker.connect().ask(LIST_TRANSACTIONS, version, fields)
    transactions = [(state.transactional_id, state.transaction_state) for state in answer.transaction_states]
    return transactions, list(answer.unknown_state_filters)


def test_a_partition_names_its_producers_and_where_their_transactions_begin(broker, producer):
    (active,) = producers(broker).active_producers
    assert (active.producer_id, active.producer_epoch, active.last_sequence) == (producer.id, 0, 1)
    assert (active.current_txn_start_offset, active.coordinator_epoch) == (0, -1)
    producer.end(True)
    (active,) = producers(broker).active_producers
    assert (active.current_txn_start_offset, active.coordinator_epoch) == (-1, 0)
    assert producers(broker, partition=7).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert producers(broker, partition=1).active_producers == ()


def test_a_transactional_id_is_described_with_the_partitions_of_its_transaction(broker, producer):
    transaction = described(broker)
    state = transaction.error_code, transaction.transaction_state, transaction.producer_id
    assert state == (0, "Ongoing", producer.id)
    assert transaction.transaction_start_time.timestamp() * 1000 == WALL_MS + broker.now_ms
    assert [(topic.topic, topic.partitions) for topic in transaction.topics] == [("flights", (0,))]
    producer.end(False)
    transaction = described(broker)
    assert (transaction.transaction_state, transaction.topics) == ("CompleteAbort", ())


def test_of_an_end_that_is_on_the_partitions_without_a_marker_are_shown(broker, producer):
    producer.write("flights", b"c", partition=1)
    broker.services.logs.get("flights", 1).offline = "a sync failed"
    producer.end(True)
    transaction = described(broker)
    assert transaction.transaction_state == "PrepareCommit"
    assert [(topic.topic, topic.partitions) for topic in transaction.topics] == [("flights", (1,))]


def test_a_transactional_id_nobody_has_is_not_found(broker, producer):
    assert described(broker, "nobody").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert described(broker, "").error_code == ErrorCode.INVALID_REQUEST
    assert described(EngineBroker()).error_code == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("version", [0, 1])
def test_transactional_ids_are_listed_by_state_and_producer(broker, producer, version):
    other = TransactionalProducer(broker, "other")
    other.init()
    both = [("payments", "Ongoing"), ("other", "Empty")]
    assert listed(broker, version) == (both, [])
    assert listed(broker, version, state_filters=["Ongoing", "Nonsense"]) == (both[:1], ["Nonsense"])
    assert listed(broker, version, state_filters=["PrepareEpochFence"]) == ([], [])
    assert listed(broker, version, producer_id_filters=[other.id]) == (both[1:], [])


@pytest.mark.parametrize(
    "pattern, ids",
    [("pay.*", ["payments"]), ("payments|other", ["payments", "other"]), ("pay", []), ("", ["payments", "other"]),
     (None, ["payments", "other"]), ("(?i)OTHER", ["other"])],
)  # fmt: skip
def test_transactional_ids_are_listed_by_a_pattern_of_the_whole_id(broker, producer, pattern, ids):
    """The request has a pattern since v2 (KIP-1152)."""
    TransactionalProducer(broker, "other").init()
    assert [name for name, _ in listed(broker, 2, transactional_id_pattern=pattern)[0]] == ids


def test_a_pattern_that_is_refused_is_named_to_the_operator(broker, producer):
    fields = {"state_filters": [], "producer_id_filters": [], "transactional_id_pattern": "(pay"}
    answer = broker.connect().ask(LIST_TRANSACTIONS, 2, fields)
    assert (answer.error_code, answer.transaction_states) == (ErrorCode.INVALID_REGULAR_EXPRESSION, ())
    assert "a ( that nothing closes" in broker.reported[-1]


def test_transactions_are_listed_that_are_on_for_longer(broker, producer):
    assert listed(broker, duration_filter=5_000, state_filters=["Ongoing"]) == ([], [])
    broker.at(broker.now_ms + 5_001)
    assert listed(broker, duration_filter=5_000, state_filters=["Ongoing"]) == ([("payments", "Ongoing")], [])
