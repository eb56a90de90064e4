"""Transactions through the wire (KIP-98, KIP-360, KIP-588, KIP-890): coordinator, markers, and visible records."""

from dataclasses import replace

import pytest

from broker.client.records import read_records
from broker.log.keyed_records import append_records
from broker.services.transaction_coordination import MARKERS_AT_ONCE, Keyed
from broker.wire.errors import ErrorCode
from idgen.layout import Layout
from idgen.worker import IdWorker
from tests.broker.engine_client import END_TXN, FETCH, LIST_OFFSETS, WALL_MS, WRITE_TXN_MARKERS, EngineBroker
from tests.broker.transactional import (
    HIGHEST,
    LOWEST,
    TransactionalProducer,
    committed,
    committed_in,
    committed_request,
)

VERSIONS = pytest.mark.parametrize("versions", [LOWEST, HIGHEST], ids=["lowest", "highest"])
STATE = "__transaction_state"


@pytest.fixture
def broker():
    broker = EngineBroker(transaction_state_log_num_partitions=2)
    broker.create("flights", 2)
    return broker


def state_of(broker, transactional_id="payments"):
    return broker.services.transactions.core.get(transactional_id).state.title


# --- ends ------------------------------------------------------------------------------------------------------------


@VERSIONS
def test_what_is_committed_is_seen_in_all_partitions_and_what_is_aborted_in_none(broker, versions):
    producer, reader = TransactionalProducer(broker, versions=versions), broker.connect()
    assert producer.init() == 0
    producer.write("flights", b"a")
    producer.write("flights", b"b", partition=1)
    assert [committed(reader, "flights", each, versions[FETCH]) for each in (0, 1)] == [[], []]
    assert producer.end(True) == 0
    assert [committed(reader, "flights", each, versions[FETCH]) for each in (0, 1)] == [[b"a"], [b"b"]]
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


def test_an_end_that_is_asked_for_again_is_answered_alike_and_the_other_end_is_refused(broker):
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


# --- fencing ---------------------------------------------------------------------------------------------------------


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
    known = broker.services.transactions.core.get("payments")
    broker.services.transactions.core.apply(replace(known, producer_epoch=2**15 - 3))
    assert producer.init() == 0 and producer.epoch == 2**15 - 2
    had = producer.id, producer.epoch
    producer.write("flights", b"a")
    producer.end(True)
    assert producer.init(keeps=True) == 0
    assert producer.epoch == 0 and producer.id != had[0]
    new = producer.id
    producer.id, producer.epoch = had
    assert producer.init(keeps=True) == 0 and (producer.id, producer.epoch) == (new, 0), "the answer got lost"


# --- refusals --------------------------------------------------------------------------------------------------------


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


# --- time ------------------------------------------------------------------------------------------------------------


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
    """A single abort delays no other client, but all of them at once would."""
    producers = [TransactionalProducer(broker, f"payments-{n}", timeout_ms=1_000) for n in range(100)]
    for each in producers:
        each.init()
        each.write("flights", b"a")
    core = broker.services.transactions.core
    at_once, before = [], 100
    while before:
        broker.at(broker.engine.next_deadline(broker.now))
        left = sum(each.state.title == "Ongoing" for each in core)
        at_once.append(before - left)
        before = left
    assert max(at_once) == MARKERS_AT_ONCE // 2, "each has a marker and a record"
    assert {each.state.title for each in core} == {"CompleteAbort"}
    assert broker.now_ms < 20_000


def test_one_that_is_ended_before_its_turn_is_not_aborted(broker):
    producers = [TransactionalProducer(broker, f"payments-{n}", timeout_ms=1_000) for n in range(50)]
    for each in producers:
        each.init()
        each.write("flights", b"a")
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
    known = broker.services.transactions.core.get("payments")
    broker.services.transactions.core.apply(replace(known, producer_epoch=2**15 - 3))
    producer.init()
    producer.write("flights", b"late")
    broker.at(broker.now_ms + 11_000)
    assert producer.init(keeps=True) == ErrorCode.PRODUCER_FENCED


def test_a_transactional_id_nobody_uses_is_forgotten_for_good(broker):
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
    assert len(broker.services.transactions.core) == 1
    assert producer.end(True) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert len(broker.restarted().services.transactions.core) == 1


# --- ends of many partitions ----------------------------------------------------------------------------------------


MANY = 3 * MARKERS_AT_ONCE


def begin_in_many(broker):
    """Begin a transaction in more partitions than get their markers at once; return its producer."""
    broker.create("wide", MANY)
    producer = TransactionalProducer(broker)
    producer.init()
    assert producer.add(*(("wide", n) for n in range(MANY))) == 0
    for n in range(MANY):
        producer.send("wide", b"a", partition=n)
    return producer


def send_end(producer):
    fields = {"transactional_id": "payments", "producer_id": producer.id, "producer_epoch": producer.epoch}
    producer.client.send(END_TXN, 4, fields | {"committed": True})


def ended_in(broker):
    return sum(broker.services.log_of("wide", n).last_stable_offset >= 2 for n in range(MANY))


def step(broker):
    broker.at(broker.engine.next_deadline(broker.now))


@pytest.mark.parametrize("durable", [False, True])
def test_an_end_in_many_partitions_lets_others_in_between_and_is_answered_with_the_last_marker(durable):
    broker = EngineBroker(durable_acks=durable, transaction_state_log_num_partitions=2)
    broker.create("flights")
    producer, other = begin_in_many(broker), broker.connect()
    send_end(producer)
    found = []
    while not (answers := producer.client.replies()):
        found.append(ended_in(broker))
        other.produce("flights", b"b")
        step(broker)
    assert found == [MARKERS_AT_ONCE, 2 * MARKERS_AT_ONCE] and ended_in(broker) == MANY
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
    return [each.error_code for each in answer.markers[0].topics[0].partitions]


def test_markers_for_many_partitions_let_others_in_between_and_are_answered_with_the_last(broker):
    producer, admin, other = begin_in_many(broker), broker.connect(), broker.connect()
    send_markers(producer, admin)
    found = []
    while not (answers := admin.replies()):
        found.append(ended_in(broker))
        other.produce("flights", b"b")
        step(broker)
    assert found == [MARKERS_AT_ONCE - 1, 2 * MARKERS_AT_ONCE - 1, MANY - 1] and ended_in(broker) == MANY
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
    assert [each.error_code for _, each in producer.client.replies()] == [0]
    assert [committed(broker.connect(), "wide", n) for n in (0, MANY - 1)] == [[b"a"], [b"a"]]


# --- restarts and failures -------------------------------------------------------------------------------------------


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
    assert late.init() == 0 and (late.id, late.epoch) == (producer.id, producer.epoch + 1)


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_that_was_decided_is_gone_on_with_after_a_kill(broker, commit):
    producer = TransactionalProducer(broker)
    producer.init()
    producer.write("flights", b"a")
    producer.write("flights", b"b", partition=1)
    transactions = broker.services.transactions
    transactions._log(transactions.core.get("payments").ended(commit, broker.now.wall_ms), broker.now)  # then a kill
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


def strand_a_transaction(broker):
    """Leave a transaction open in "flights" and delete all of the coordinator's records of it."""
    producer = TransactionalProducer(broker)
    producer.init()
    producer.write("flights", b"a")
    broker.services.logs.delete({STATE: [0, 1]})
    broker.services.metadata.delete_topics([broker.services.metadata.topic(STATE)])


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
    assert again.services.transactions.next_deadline_ms() is not None, "it is tried again"
    broker.storage.free_bytes = None
    again.delete("flights")
    again.at(again.now_ms + 10_000)
    assert again.services.transactions.next_deadline_ms() is None


def test_stranded_transactions_are_ended_some_at_a_time_and_nobody_begins_before_his_own_is(broker):
    """A late marker would end a transaction that has begun since."""
    producer = begin_in_many(broker)
    broker.services.logs.delete({STATE: [0, 1]})
    broker.services.metadata.delete_topics([broker.services.metadata.topic(STATE)])
    broker.storage.free_bytes = broker.storage.open("metadata.json").size + 20
    again = broker.restarted(clean=False)
    again.storage.free_bytes = None
    producer = TransactionalProducer(again)
    known = next(iter(again.services.logs.get("wide", 0).producers.open_transactions()))
    while not ended_in(again):
        step(again)
    assert ended_in(again) == MARKERS_AT_ONCE // 2, "each may be another's, and be alone"
    assert producer.init() == 0
    producer.id = known
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
    transactions = broker.services.transactions
    decided = transactions.core.get("payments").ended(True, broker.now.wall_ms)
    transactions._log(decided, broker.now)
    transactions._log(decided.completed(broker.now.wall_ms), broker.now)
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


def test_our_own_readers_leave_out_what_was_aborted_where_they_ask_for_what_is_committed(broker):
    one, two = TransactionalProducer(broker), TransactionalProducer(broker, "other")
    one.init(), two.init()
    for ends in ((True, False), (False, True), (False, False), (True, True)):
        for producer, commit in zip((one, two), ends):
            producer.write("flights", b"%d" % commit)
        for producer, commit in zip((one, two), ends):
            producer.end(commit)
    broker.connect().produce("flights", b"plain")
    (fetched,) = broker.connect().ask(FETCH, 12, committed_request("flights")).partitions
    records, following = read_records(fetched, 0)
    assert [record.value for record in records] == [b"1"] * 4 + [b"plain"] and following == 17
    (fetched,) = broker.connect().ask(FETCH, 12, committed_request("flights", offset=5)).partitions
    assert [record.value for record in read_records(fetched, 5)[0]] == [b"1"] * 3 + [b"plain"], "begun in the middle"
