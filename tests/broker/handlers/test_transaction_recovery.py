"""Transactions after restarts, on broken disks, and where records of the coordinator or markers are lost."""

import pytest

from broker.log.keyed_records import append_records
from broker.metadata.change import Change
from broker.services.due_actions import MARKERS_AT_ONCE
from broker.services.transaction_partition import Keyed
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import EngineBroker
from tests.broker.handlers.transaction_steps import (
    MANY,
    STATE,
    begin_in_many,
    coordinator_of,
    ended_in,
    state_of,
    step,
)
from tests.broker.transactional import TransactionalProducer, committed


@pytest.fixture
def broker():
    broker = EngineBroker(transaction_state_log_num_partitions=2)
    broker.create("flights", 2)
    return broker


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_finds_transactional_ids_as_they_were(broker, clean):
    producer, other = TransactionalProducer(broker), TransactionalProducer(broker, "other")
    producer.init()
    other.init()
    producer.write("flights", b"a")
    other.write("flights", b"b")
    other.end(False)
    again = broker.restarted(clean=clean)
    assert (state_of(again), state_of(again, "other")) == ("Ongoing", "CompleteAbort")
    producer.client = again.connect()
    assert producer.send("flights", b"c") == producer.end(True) == 0
    assert committed(again.connect(), "flights") == [b"a", b"c"]
    late = TransactionalProducer(again)
    assert late.init() == 0
    assert (late.id == producer.id) is clean, "after a crash its epochs are in doubt"
    assert late.epoch == (producer.epoch + 1 if clean else 0)


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_that_was_decided_is_gone_on_with_after_a_kill(broker, commit):
    producer = TransactionalProducer(broker)
    producer.init()
    producer.write("flights", b"a")
    producer.write("flights", b"b", partition=1)
    coordinator = coordinator_of(broker)
    coordinator._log(coordinator.core.get("payments").ended(commit, broker.now.wall_ms), broker.now)  # then a kill
    again = broker.restarted(clean=False)
    assert state_of(again) == ("CompleteCommit" if commit else "CompleteAbort")
    values = [committed(again.connect(), "flights", partition) for partition in (0, 1)]
    assert values == ([[b"a"], [b"b"]] if commit else [[], []])


def test_an_end_waits_for_a_partition_that_is_offline_and_holds_up_nobody_else(broker):
    producer, other = TransactionalProducer(broker), TransactionalProducer(broker, "other")
    producer.init()
    other.init()
    producer.write("flights", b"a")
    producer.write("flights", b"b", partition=1)
    other.write("flights", b"c")
    offline = broker.services.logs.get("flights", 1)
    offline.offline = "a sync failed"
    assert producer.end(True) == 0
    assert state_of(broker) == "PrepareCommit" and any("tried again" in line for line in broker.reported)
    assert producer.end(True) == producer.add(("flights", 0)) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert producer.init() == ErrorCode.CONCURRENT_TRANSACTIONS
    assert producer.end(False) == ErrorCode.INVALID_TXN_STATE
    assert other.end(True) == 0
    assert committed(broker.connect(), "flights") == [b"a", b"c"]
    broker.at(broker.now_ms + 5_000)
    assert state_of(broker) == "PrepareCommit"
    offline.offline = None
    broker.at(broker.now_ms + 1_001)
    assert state_of(broker) == "CompleteCommit"
    assert committed(broker.connect(), "flights", 1) == [b"b"]
    end = broker.services.logs.get("flights", 0).log_end_offset
    assert end == 4, "the partition that had its marker got no other"


def test_a_topic_that_is_deleted_does_not_hold_an_end_up(broker):
    producer = TransactionalProducer(broker)
    producer.init()
    broker.create("gone")
    producer.write("gone", b"a")
    broker.delete("gone")
    assert producer.end(True) == 0 and state_of(broker) == "CompleteCommit"


def test_what_cannot_be_written_down_has_not_happened(broker):
    producer = TransactionalProducer(broker)
    producer.init()
    broker.storage.free_bytes = 0
    assert producer.add(("flights", 0)) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert producer.init() == ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.storage.free_bytes = None
    assert state_of(broker) == "Empty"
    producer.write("flights", b"a")
    broker.storage.free_bytes = 0
    assert producer.end(True) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert state_of(broker) == "Ongoing"
    broker.storage.free_bytes = None
    assert producer.end(True) == 0


def lose_records(broker):
    """Have the coordinator's topic deleted on the disk, by a process that dies before anything follows from that."""
    local = broker.services.local
    local.save(local.document().changed([Change({STATE: None})], local.commits + 1))


def strand_a_transaction(broker):
    """Leave a transaction open in "flights" and delete all of the coordinator's records of it."""
    producer = TransactionalProducer(broker)
    producer.init()
    producer.write("flights", b"a")
    lose_records(broker)


def test_a_transaction_of_which_the_coordinator_lost_all_records_is_aborted_at_start(broker):
    """After a power cut no producer could commit it, and it would hold read_committed consumers back for ever."""
    strand_a_transaction(broker)
    again = broker.restarted(clean=False)
    assert committed(again.connect(), "flights") == []
    assert broker.services.logs.get("flights", 0).last_stable_offset == 0
    assert again.services.logs.get("flights", 0).last_stable_offset == 2
    assert any("aborts" in line for line in again.reported)


def test_what_is_stranded_in_a_topic_that_is_deleted_is_tried_no_more(broker):
    """The coordinator has no record of the transaction, and the partition cannot take its marker."""
    strand_a_transaction(broker)
    broker.storage.free_bytes = broker.storage.open("metadata.json").size + 20
    again = broker.restarted(clean=False)
    assert again.services.coordinators.transactions.next_deadline_ms() is not None, "it is tried again"
    broker.storage.free_bytes = None
    again.delete("flights")
    again.at(again.now_ms + 10_000)
    assert again.services.coordinators.transactions.next_deadline_ms() is None


def test_stranded_transactions_are_ended_some_at_a_time_and_nobody_begins_before_his_own_is(broker):
    """A late marker would end a transaction that has begun since."""
    producer = begin_in_many(broker)
    lose_records(broker)
    broker.storage.free_bytes = broker.storage.open("metadata.json").size + 20
    again = broker.restarted(clean=False)
    again.storage.free_bytes = None
    producer = TransactionalProducer(again)
    open_producer_id = next(iter(again.services.logs.get("wide", 0).producers.open_transactions()))
    while not ended_in(again):
        step(again)
    assert ended_in(again) == MARKERS_AT_ONCE // 2, "each may be another's, and be alone"
    assert producer.init() == 0
    producer.id = open_producer_id
    assert producer.add(("wide", MANY - 1)) == ErrorCode.CONCURRENT_TRANSACTIONS
    again.at(again.now_ms + 1_000)
    assert ended_in(again) == MANY
    assert producer.add(("wide", MANY - 1)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_deleting_the_coordinators_topic_ends_what_was_on(broker):
    producer = TransactionalProducer(broker)
    producer.init()
    producer.write("flights", b"a")
    broker.delete(STATE)
    assert broker.services.logs.get("flights", 0).last_stable_offset == 2
    assert TransactionalProducer(broker).init() == 0, "made anew, it begins anew"
    assert producer.end(True) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_marker_that_was_lost_is_written_again_as_it_was_decided(broker):
    """After a power cut the coordinator has the transaction as complete, and the partition has it as open."""
    producer = TransactionalProducer(broker)
    producer.init()
    producer.write("flights", b"a")
    coordinator = coordinator_of(broker)
    decided = coordinator.core.get("payments").ended(True, broker.now.wall_ms)
    coordinator._log(decided, broker.now)
    coordinator._log(decided.completed(broker.now.wall_ms), broker.now)
    again = broker.restarted(clean=False)
    assert committed(again.connect(), "flights") == [b"a"]


def test_where_records_of_the_coordinator_are_damaged_nothing_is_guessed(broker):
    producer = TransactionalProducer(broker)
    producer.init()
    producer.write("flights", b"a")
    for partition in (0, 1):
        log = broker.services.logs.get(STATE, partition)
        append_records(log, [Keyed(b"\0\0\0\x01t", b"\0\x09")], broker.services.id_stamper, broker.now)
    again = broker.restarted()
    assert again.services.logs.get("flights", 0).last_stable_offset == 0
    assert any("damaged" in line for line in again.reported)
    assert TransactionalProducer(again).init() == ErrorCode.COORDINATOR_NOT_AVAILABLE
