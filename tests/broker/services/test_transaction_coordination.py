"""Transactional ids by partition of __transaction_state: partitions are led, resigned, and led again."""

from dataclasses import replace

import pytest

from broker import steps
from broker.group.offset_records import partition_of
from broker.log.keyed_records import append_records
from broker.metadata.change import Change
from broker.metadata.staged import Staged
from broker.record.control import Marker
from broker.services.due_actions import MARKERS_AT_ONCE
from broker.services.transaction_partition import Keyed
from broker.txn.records import transaction_key
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import (
    DESCRIBE_PRODUCERS,
    END_TXN,
    FIND_COORDINATOR,
    LIST_TRANSACTIONS,
    WRITE_TXN_MARKERS,
    EngineBroker,
)
from tests.broker.engine_cluster import ONE_COPY, EngineCluster
from tests.broker.handlers.transaction_steps import MANY, STATE, begin_in_many, ended_in, state_of, step
from tests.broker.transactional import TransactionalProducer, committed

PARTITIONS = 2
MINE = partition_of("payments", PARTITIONS)
OTHER = next(name for name in map(str, range(99)) if partition_of(name, PARTITIONS) != MINE)
"""A transactional id of the other partition."""


@pytest.fixture
def broker():
    return broker_of()


def broker_of(**settings):
    broker = EngineBroker(transaction_state_log_num_partitions=PARTITIONS, offsets_topic_num_partitions=1, **settings)
    broker.create("flights", 2)
    return broker


def partitions_of(broker):
    return broker.services.coordinators.transactions.partitions


def resign(broker, epoch, partition=MINE):
    partitions_of(broker).resign(partition, epoch, broker.now)
    broker.pump()


def lead(broker, epoch, partition=MINE):
    partitions_of(broker).lead(partition, epoch, broker.now)
    broker.pump()


def producer_of(broker, transactional_id="payments"):
    producer = TransactionalProducer(broker, transactional_id)
    assert producer.init() == 0
    return producer


def send_end(producer, commit=True):
    fields = {"transactional_id": producer.transactional_id, "producer_id": producer.id}
    producer.client.send(END_TXN, 4, fields | {"producer_epoch": producer.epoch, "committed": commit})


def codes(producer):
    return [answer.error_code for _, answer in producer.client.replies()]


def coordinator_epoch(broker, topic="flights", partition=0):
    fields = {"topics": [{"name": topic, "partition_indexes": [partition]}]}
    answer = broker.connect().ask(DESCRIBE_PRODUCERS, 0, fields)
    (producer,) = answer.topics[0].partitions[0].active_producers
    return producer.coordinator_epoch


def mark(broker, producer, epoch, commit=True):
    """Send a marker as a coordinator on another node does; return the error."""
    topics = [{"name": "flights", "partition_indexes": [0]}]
    fields = {"producer_id": producer.id, "producer_epoch": producer.epoch, "coordinator_epoch": epoch}
    markers = [fields | {"transaction_result": commit, "topics": topics}]
    answer = broker.connect().ask(WRITE_TXN_MARKERS, 1, {"markers": markers})
    return answer.markers[0].topics[0].partitions[0].error_code


# --- leadership ------------------------------------------------------------------------------------------------------


def test_a_new_epoch_with_the_same_leader_unloads_nothing_and_answers_no_waiter(broker):
    producer = begin_in_many(broker)
    send_end(producer)
    before = broker.services.coordinators.transactions.find("payments")
    lead(broker, 1)
    assert broker.services.coordinators.transactions.find("payments") is before and codes(producer) == []
    broker.at(broker.now_ms + 1_000)
    assert codes(producer) == [0] and ended_in(broker) == MANY
    assert coordinator_epoch(broker, "wide", 0) in (0, 1) and coordinator_epoch(broker, "wide", MANY - 1) == 1


def test_a_waiting_end_is_answered_not_coordinator_when_its_partition_resigns_and_the_next_leader_goes_on(broker):
    producer = begin_in_many(broker)
    send_end(producer)
    resign(broker, 1)
    assert codes(producer) == [ErrorCode.NOT_COORDINATOR]
    before = ended_in(broker)
    broker.at(broker.now_ms + 60_000)
    assert ended_in(broker) == before < MANY, "a coordinator that resigned writes nothing"
    lead(broker, 2)
    broker.at(broker.now_ms + 1_000)
    assert ended_in(broker) == MANY and state_of(broker) == "CompleteCommit"
    assert coordinator_epoch(broker, "wide", 0) == 2
    assert [committed(broker.connect(), "wide", n) for n in (0, MANY - 1)] == [[b"a"], [b"a"]]


def test_an_end_that_waits_for_the_disk_is_answered_not_coordinator_too():
    broker = broker_of(durable_acks=True)
    producer = producer_of(broker)
    producer.write("flights", b"a")
    broker.hold_syncs()
    send_end(producer)
    resign(broker, 1)
    assert codes(producer) == [ErrorCode.NOT_COORDINATOR]
    broker.release()
    assert broker.services.log_of("flights", 0).last_stable_offset == 0, "its marker is the next leader's"
    lead(broker, 2)
    broker.at(broker.now_ms + 1_000)
    assert committed(broker.connect(), "flights") == [b"a"]


def test_the_ids_of_other_partitions_are_served_meanwhile(broker):
    producer, other = producer_of(broker), producer_of(broker, OTHER)
    resign(broker, 1)
    assert producer.add(("flights", 0)) == producer.init() == producer.end(True) == ErrorCode.NOT_COORDINATOR
    other.write("flights", b"a")
    assert other.end(True) == 0
    assert producer.send("flights", b"b") == ErrorCode.NOT_ENOUGH_REPLICAS, "another node would know"
    producer.client.ask(FIND_COORDINATOR, 1, {"key": "group", "key_type": 0})
    assert producer.commit_offset("group", "flights", 1) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    lead(broker, 2)
    producer.write("flights", b"b")
    assert producer.end(True) == 0
    assert committed(broker.connect(), "flights") == [b"a", b"b"]


def test_while_a_partition_is_loading_its_ids_and_the_list_are_refused_and_others_are_served(broker, monkeypatch):
    monkeypatch.setattr(steps, "ITEMS_AT_ONCE", 4)
    producer, other = producer_of(broker), producer_of(broker, OTHER)
    for _ in range(5):
        assert producer.init() == 0
    producer.write("flights", b"a")
    resign(broker, 1)
    lead(broker, 2)
    assert partitions_of(broker).is_loading
    assert producer.add(("flights", 0)) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert producer.send("flights", b"b") == ErrorCode.NOT_ENOUGH_REPLICAS
    filters = {"state_filters": [], "producer_id_filters": []}
    answer = broker.connect().ask(LIST_TRANSACTIONS, 1, filters)
    assert (answer.error_code, answer.transaction_states) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ())
    assert other.add(("flights", 0)) == 0
    broker.at(broker.now_ms + 1_000)
    assert producer.send("flights", b"b") == producer.end(True) == 0
    answer = broker.connect().ask(LIST_TRANSACTIONS, 1, filters)
    assert answer.error_code == 0 and len(answer.transaction_states) == 2


def test_open_transactions_time_out_at_the_next_leader(broker):
    producer = TransactionalProducer(broker, timeout_ms=15_000)
    producer.init()
    producer.write("flights", b"a")
    resign(broker, 1)
    broker.at(broker.now_ms + 60_000)
    assert broker.services.log_of("flights", 0).last_stable_offset == 0
    lead(broker, 2)
    broker.at(broker.now_ms + 10_000)
    assert state_of(broker) == "CompleteAbort" and coordinator_epoch(broker) == 2


def test_the_limit_of_transactional_ids_is_that_of_the_broker():
    broker = broker_of(transactional_ids_max=2)
    producer_of(broker)
    producer_of(broker, OTHER)
    third = TransactionalProducer(broker, next(n for n in map(str, range(99)) if partition_of(n, PARTITIONS) == MINE))
    assert third.init() == ErrorCode.POLICY_VIOLATION
    resign(broker, 1, 1 - MINE)
    assert third.init() == 0, "the ids of a partition that resigned do not count"
    lead(broker, 2, 1 - MINE)
    assert TransactionalProducer(broker, "fourth").init() == ErrorCode.POLICY_VIOLATION


# --- coordinator epochs ----------------------------------------------------------------------------------------------


def test_the_markers_of_a_fresh_server_have_epoch_0_and_those_after_a_crash_a_later_one(broker):
    producer = producer_of(broker)
    producer.write("flights", b"a")
    assert producer.end(True) == 0 and coordinator_epoch(broker) == 0
    clean = broker.restarted(clean=True)
    producer.client = clean.connect()
    producer.write("flights", b"b")
    assert producer.end(True) == 0 and coordinator_epoch(clean) == 0
    crashed = clean.restarted(clean=False)
    assert coordinator_epoch(crashed) == 0, "it is in the partition's log"
    producer.client = crashed.connect()
    producer.write("flights", b"c")
    assert producer.end(True) == 0 and coordinator_epoch(crashed) == 1
    assert committed(crashed.connect(), "flights") == [b"a", b"b", b"c"]


@pytest.fixture
def member():
    """A broker of a cluster: others may coordinate transactions."""
    cluster = EngineCluster(
        1, transaction_state_log_num_partitions=PARTITIONS, offsets_topic_num_partitions=1, **ONE_COPY
    )
    assert cluster.create("flights", 2) == 0
    return cluster.nodes[1].broker


def test_a_server_alone_refuses_an_epoch_that_no_coordinator_has_reached(broker):
    """Its marker would fence all later ones of the producer, so the transaction would never end."""
    producer = producer_of(broker)
    producer.write("flights", b"a")
    assert mark(broker, producer, 2**31 - 1) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert producer.end(True) == 0 and state_of(broker) == "CompleteCommit"
    assert committed(broker.connect(), "flights") == [b"a"]


def test_a_marker_of_a_later_coordinator_is_written_and_one_of_an_earlier_is_refused(member):
    producer = producer_of(member)
    producer.write("flights", b"a")
    assert mark(member, producer, 5) == 0
    assert mark(member, producer, 4) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert mark(member, producer, 5) == mark(member, producer, 6) == 0
    assert committed(member.connect(), "flights") == [b"a"]


def test_the_end_of_a_fenced_coordinator_stays_open_and_goes_on_in_a_later_epoch(member):
    """Another node coordinates the transaction, or has done so. Until this one hears of it, it completes nothing."""
    producer = producer_of(member)
    producer.write("flights", b"a")
    producer.write("flights", b"b", partition=1)
    assert mark(member, producer, 1) == 0
    assert producer.end(True) == 0 and state_of(member) == "PrepareCommit"
    member.at(member.now_ms + 10_000)
    assert state_of(member) == "PrepareCommit"
    assert sum("tried again" in line for line in member.reported) == 1
    lead(member, 2)
    member.at(member.now_ms + 1_000)
    assert state_of(member) == "CompleteCommit" and coordinator_epoch(member) == 2


# --- stranded transactions -------------------------------------------------------------------------------------------


def led_by(broker, partition, node):
    """Let a node lead a partition of the coordinator's topic, and load all partitions that are led here again."""
    topic = broker.services.metadata.topic(STATE)
    states = list(topic.partitions)
    states[partition] = states[partition]._replace(leader=node)
    broker.change(Staged(Change({STATE: replace(topic, partitions=tuple(states))})))
    broker.services.coordinators.transactions.load_again(broker.now)


def with_a_record_off_the_disk(broker):
    """Return a producer with an open transaction. The coordinator's partition cannot be loaded before the next sync."""
    producer = producer_of(broker)
    producer.write("flights", b"a")
    broker.alter(STATE, {"flakelog.visible.after.flush": "true"})
    broker.hold_syncs()
    coordinator = broker.services.coordinators.transactions.find("payments")
    coordinator.run(coordinator.core.init_producer_id("new", 60_000, None, broker.now), broker.now)
    return producer


@pytest.mark.parametrize("elsewhere", [MINE, 1 - MINE])
def test_nothing_is_stranded_unless_the_coordinators_whole_topic_is_led_here_and_loaded(broker, elsewhere):
    """Otherwise the records of a transaction may be in a partition that this node has not read."""
    producer = producer_of(broker)
    producer.write("flights", b"a")
    if elsewhere != MINE:
        coordinator = broker.services.coordinators.transactions.find("payments")
        decided = coordinator.core.get("payments").ended(True, broker.now.wall_ms)
        coordinator._log(decided, broker.now)
        coordinator._log(decided.completed(broker.now.wall_ms), broker.now)  # and the marker is lost
    led_by(broker, elsewhere, 7)
    assert not broker.services.coordinators.transactions.leads_all
    broker.at(broker.now_ms + 1_000)
    assert broker.services.log_of("flights", 0).last_stable_offset == 0
    lead(broker, 1, elsewhere)
    assert broker.services.coordinators.transactions.leads_all
    broker.at(broker.now_ms + 1_000)
    assert broker.services.log_of("flights", 0).last_stable_offset == 0, "the search was given up"
    led_by(broker, elsewhere, 1)
    broker.at(broker.now_ms + 1_000)
    assert broker.services.log_of("flights", 0).last_stable_offset == (0 if elsewhere == MINE else 2)


def test_a_transaction_that_all_partitions_know_nothing_of_is_aborted_in_the_epoch_that_its_partition_has_seen(broker):
    producer = producer_of(broker)
    producer.write("flights", b"a")
    log, transactions = broker.services.log_of("flights", 0), broker.services.coordinators.transactions
    transactions.append_marker(log, producer.id, producer.epoch, Marker(True, 3), broker.now)
    assert producer.send("flights", b"b") == 0
    broker.delete(STATE)
    assert committed(broker.connect(), "flights") == [b"a"]
    assert coordinator_epoch(broker) == 3


def test_a_search_ends_when_the_last_partition_was_loaded_although_another_is_damaged(broker):
    """Until it ends no marker is written to a partition in which a transaction was open, so it must end."""
    producer = with_a_record_off_the_disk(broker)
    damaged = broker.services.log_of(STATE, 1 - MINE)
    append_records(damaged, [Keyed(transaction_key("x"), b"\xff\xff")], broker.services.id_stamper, broker.now)
    broker.services.coordinators.transactions.load_again(broker.now)
    assert partitions_of(broker).is_loading, "the new record is not on the disk"
    broker.services.log_of(STATE, MINE).ask_sync(soon=True)
    broker.release()
    broker.at(broker.now_ms + 1_000)
    assert [led.state.value for led in partitions_of(broker).led()].count("failed") == 1
    assert not partitions_of(broker).is_loading
    producer.end(True)
    broker.at(broker.now_ms + 10_000)
    assert state_of(broker) == "CompleteCommit"
    assert committed(broker.connect(), "flights") == [b"a"]


def test_a_requested_marker_is_refused_until_the_search_has_ended_what_is_stranded(broker):
    """It would decide a stranded transaction too, and the other way perhaps."""
    producer = with_a_record_off_the_disk(broker)
    broker.services.coordinators.transactions.load_again(broker.now)
    assert mark(broker, producer, 0) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert broker.services.log_of("flights", 0).last_stable_offset == 0
    broker.services.log_of(STATE, MINE).ask_sync(soon=True)
    broker.release()
    broker.at(broker.now_ms + 1_000)
    assert mark(broker, producer, 0) == 0
    assert committed(broker.connect(), "flights") == [b"a"]


def test_a_step_of_a_coordinator_that_resigned_does_nothing(broker):
    """Its aborts and tombstones may be due when it resigns."""
    producers = [TransactionalProducer(broker, f"payments-{n}", timeout_ms=1_000) for n in range(3 * MARKERS_AT_ONCE)]
    for producer in producers:
        producer.init()
        producer.write("flights", b"a")
    while state_of(broker, "payments-0") == "Ongoing":
        step(broker)
    end = broker.services.log_of("flights", 0).log_end_offset
    for partition in range(PARTITIONS):
        resign(broker, 1, partition)
    broker.at(broker.now_ms + 20_000)
    assert broker.services.log_of("flights", 0).log_end_offset == end
    for partition in range(PARTITIONS):
        lead(broker, 2, partition)
    broker.at(broker.now_ms + 20_000)
    assert {transaction.state.title for transaction in broker.services.coordinators.transactions} == {"CompleteAbort"}
    log = broker.services.log_of("flights", 0)
    assert log.last_stable_offset == log.log_end_offset
