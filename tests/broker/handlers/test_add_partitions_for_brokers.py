"""AddPartitionsToTxn as brokers send it: several transactions, verified or added, on their listener only."""

import pytest

from broker.wire import cold
from broker.wire.errors import ErrorCode
from tests.broker.any_api import request_of
from tests.broker.engine_client import ADD_PARTITIONS_TO_TXN, EngineBroker
from tests.broker.peers import BETWEEN
from tests.broker.transactional import TransactionalProducer, committed


@pytest.fixture
def broker():
    broker = EngineBroker(membership={"inter_broker_listener": BETWEEN})
    broker.create("flights", 2)
    return broker


@pytest.fixture
def producer(broker):
    producer = TransactionalProducer(broker)
    assert producer.init() == 0
    return producer


def transaction_of(producer, *partitions, verify_only=True, **more):
    topics = [{"name": topic, "partitions": [partition]} for topic, partition in partitions]
    fields = {"transactional_id": producer.transactional_id, "producer_id": producer.id}
    fields |= {"producer_epoch": producer.epoch, "verify_only": verify_only, "topics": topics}
    return fields | more


def ask(broker, *transactions, version=5, listener=BETWEEN):
    """Send transactions as a broker does; return a list of error codes for each."""
    client = broker.connect(listener=listener)
    client.feed(request_of(ADD_PARTITIONS_TO_TXN, version, 1, {"transactions": list(transactions)}))
    if client.closed is not None:
        return client.closed
    frame = memoryview(bytes(client.received))
    answer = cold.decode(ADD_PARTITIONS_TO_TXN, version, "response", frame, 9, version).original
    assert answer.error_code == 0
    return [
        [result.partition_error_code for topic in of_one.topic_results for result in topic.results_by_partition]
        for of_one in answer.results_by_transaction
    ]


@pytest.mark.parametrize("version", [4, 5])
def test_a_partition_is_verified_if_it_was_added(broker, producer, version):
    producer.add(("flights", 1))
    errors = ask(broker, transaction_of(producer, ("flights", 0), ("flights", 1)), version=version)
    assert errors == [[ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.NONE]]


def test_each_transaction_has_its_own_answer(broker, producer):
    producer.add(("flights", 0))
    flights = ("flights", 0)
    errors = ask(
        broker,
        transaction_of(producer, flights),
        transaction_of(producer, flights, transactional_id="unknown"),
        transaction_of(producer, flights, transactional_id="", producer_epoch=9),
        transaction_of(producer, flights, ("nowhere", 0), transactional_id="third"),
    )
    assert errors == [
        [ErrorCode.NONE],
        [ErrorCode.INVALID_PRODUCER_ID_MAPPING],
        [ErrorCode.INVALID_REQUEST],
        [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
    ]


def test_a_fenced_producer_and_one_whose_transaction_is_ended_are_not_verified(broker, producer):
    producer.write("flights", b"a")
    assert ask(broker, transaction_of(producer, ("flights", 0), producer_epoch=7)) == [[ErrorCode.PRODUCER_FENCED]]
    broker.services.log_of("flights", 0).offline = "a sync failed"
    producer.end(True)
    assert ask(broker, transaction_of(producer, ("flights", 0))) == [[ErrorCode.CONCURRENT_TRANSACTIONS]]


def test_partitions_are_added_without_verify_only(broker, producer):
    assert ask(broker, transaction_of(producer, ("flights", 0), verify_only=False)) == [[ErrorCode.NONE]]
    assert producer.send("flights", b"a") == 0 and producer.end(True) == 0
    assert committed(broker.connect(), "flights") == [b"a"]


def test_another_broker_coordinates_the_transaction(broker, producer):
    for led in broker.services.coordinators.transactions.partitions.led():
        broker.services.coordinators.transactions.partitions.resign(led.partition, led.leader_epoch + 1, broker.now)
    assert ask(broker, transaction_of(producer, ("flights", 0))) == [[ErrorCode.NOT_COORDINATOR]]


def test_clients_cannot_send_it(broker, producer):
    closed = ask(broker, transaction_of(producer, ("flights", 0)), listener="CLIENTS")
    assert closed == "AddPartitionsToTxn v5 is not served; v0 to v3 are"


def test_a_server_alone_serves_it_on_no_listener():
    broker = EngineBroker()
    broker.create("flights", 2)
    producer = TransactionalProducer(broker)
    assert "is not served" in ask(broker, transaction_of(producer, ("flights", 0)), listener="")
