"""The ends of transactions through the wire: visible records, repeated ends, and epochs (KIP-98, KIP-890)."""

import pytest

from broker.client.records import read_records
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import FETCH, LIST_OFFSETS, EngineBroker
from tests.broker.handlers.transaction_steps import state_of
from tests.broker.transactional import (
    HIGHEST,
    LOWEST,
    TransactionalProducer,
    committed,
    committed_in,
    committed_request,
)

VERSIONS = pytest.mark.parametrize("versions", [LOWEST, HIGHEST], ids=["lowest", "highest"])


@pytest.fixture
def broker():
    broker = EngineBroker(transaction_state_log_num_partitions=2)
    broker.create("flights", 2)
    return broker


@VERSIONS
def test_what_is_committed_is_seen_in_all_partitions_and_what_is_aborted_in_none(broker, versions):
    producer, reader = TransactionalProducer(broker, versions=versions), broker.connect()
    assert producer.init() == 0
    producer.write("flights", b"a")
    producer.write("flights", b"b", partition=1)
    assert [committed(reader, "flights", partition, versions[FETCH]) for partition in (0, 1)] == [[], []]
    assert producer.end(True) == 0
    assert [committed(reader, "flights", partition, versions[FETCH]) for partition in (0, 1)] == [[b"a"], [b"b"]]
    producer.write("flights", b"not")
    assert producer.end(False) == 0
    producer.write("flights", b"c")
    assert producer.end(True) == 0
    assert committed(reader, "flights", version=versions[FETCH]) == [b"a", b"c"]
    assert reader.fetch("flights")[::2] == [b"a", b"not", b"c"], "read_uncommitted is sent all of it"
    assert state_of(broker) == "CompleteCommit"


def test_a_waiting_read_committed_fetch_is_answered_when_the_transaction_ends(broker):
    producer, reader = TransactionalProducer(broker), broker.connect()
    producer.init()
    producer.write("flights", b"a")
    reader.send(FETCH, 12, committed_request("flights", max_wait_ms=60_000))
    broker.connect().produce("flights", b"plain")
    assert reader.replies() == [], "it lies behind what is open"
    producer.end(True)
    ((_, answer),) = reader.replies()
    assert committed_in(answer) == [b"a", b"plain"]


def test_latest_of_read_committed_is_the_last_stable_offset(broker):
    producer, reader = TransactionalProducer(broker), broker.connect()
    broker.connect().produce("flights", b"plain")
    producer.init()
    producer.write("flights", b"a")

    def latest(isolation):
        topics = [{"name": "flights", "partitions": [{"partition_index": 0, "timestamp": -1}]}]
        answer = reader.ask(LIST_OFFSETS, 7, {"replica_id": -1, "isolation_level": isolation, "topics": topics})
        return answer.topics[0].partitions[0].offset

    assert (latest(0), latest(1)) == (2, 1)
    producer.end(False)
    assert latest(0) == latest(1) == 3


def test_a_repeated_end_has_the_same_answer_and_the_other_end_is_refused(broker):
    producer = TransactionalProducer(broker)
    producer.init()
    assert producer.end(True) == ErrorCode.INVALID_TXN_STATE, "nothing was begun"
    producer.write("flights", b"a")
    assert producer.end(True) == producer.end(True) == 0
    assert producer.end(False) == ErrorCode.INVALID_TXN_STATE
    producer.write("flights", b"b")
    assert producer.end(False) == producer.end(False) == 0
    assert producer.end(True) == ErrorCode.INVALID_TXN_STATE


def test_ends_of_version_5_take_the_next_epoch(broker):
    """The next epoch fences a late batch of the previous transaction (KIP-890)."""
    producer, reader = TransactionalProducer(broker), broker.connect()
    producer.init()
    producer.write("flights", b"a")
    before = producer.id, producer.epoch
    assert producer.end(True, version=5) == 0
    assert (producer.id, producer.epoch) == (before[0], before[1] + 1)
    producer.epoch -= 1
    assert producer.end(True, version=5) == 0, "asked for again by who did not get the answer"
    assert producer.epoch == before[1] + 1
    producer.write("flights", b"b")
    assert producer.end(True, version=5) == 0
    assert committed(reader, "flights") == [b"a", b"b"]


def test_our_own_readers_leave_out_what_was_aborted_where_they_ask_for_what_is_committed(broker):
    first, second = TransactionalProducer(broker), TransactionalProducer(broker, "other")
    first.init(), second.init()
    for ends in ((True, False), (False, True), (False, False), (True, True)):
        for producer, commit in zip((first, second), ends):
            producer.write("flights", b"%d" % commit)
        for producer, commit in zip((first, second), ends):
            producer.end(commit)
    broker.connect().produce("flights", b"plain")
    (fetched,) = broker.connect().ask(FETCH, 12, committed_request("flights")).partitions
    records, following, *_ = read_records(fetched, 0)
    assert [record.value for record in records] == [b"1"] * 4 + [b"plain"] and following == 17
    (fetched,) = broker.connect().ask(FETCH, 12, committed_request("flights", offset=5)).partitions
    assert [record.value for record in read_records(fetched, 5)[0]] == [b"1"] * 3 + [b"plain"], "begun in the middle"
