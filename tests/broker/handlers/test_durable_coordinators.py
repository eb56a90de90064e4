"""Commits and transactions in topics with flakelog.durable.acks: the answer waits until they are on the disk."""

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import (
    DELETE_GROUPS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    WRITE_TXN_MARKERS,
    EngineBroker,
)
from tests.broker.handlers.consumer_group import Member
from tests.broker.handlers.transaction_steps import state_of
from tests.broker.transactional import TransactionalProducer, committed

LATE_MS = 5_000
COMMIT = {
    "group_id": "readers",
    "generation_id_or_member_epoch": -1,
    "member_id": "",
    "topics": [{"name": "flights", "partitions": [{"partition_index": 0, "committed_offset": 7}]}],
}
TAKEN_AWAY = {"group_id": "readers", "topics": [{"name": "flights", "partitions": [{"partition_index": 0}]}]}
PARTITION = "__consumer_offsets-0"


@pytest.fixture
def broker():
    broker = EngineBroker(durable_acks=True, offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1)
    broker.create("flights", 2)
    return broker


def member(broker):
    client = broker.connect()
    client.ask(FIND_COORDINATOR, 1, {"key": "readers", "key_type": 0})
    return client


def codes(answer):
    return [partition.error_code for topic in answer.topics for partition in topic.partitions]


def after_a_power_cut(broker):
    return EngineBroker(broker.storage.power_cut(lambda n: 0), broker.now_ms + 10_000, **broker._settings)


def offset_of(broker):
    fields = {"group_id": "readers", "topics": [{"name": "flights", "partition_indexes": [0]}]}
    return broker.connect().ask(OFFSET_FETCH, 5, fields).topics[0].partitions[0].committed_offset


@pytest.mark.parametrize("version", [2, 9])
def test_a_commit_is_answered_when_it_is_on_the_disk(broker, version):
    client = member(broker)
    broker.hold_syncs()
    client.send(OFFSET_COMMIT, version, COMMIT)
    assert client.replies() == []
    broker.release()
    ((_, answer),) = client.replies()
    assert codes(answer) == [0] and offset_of(after_a_power_cut(broker)) == 7


def test_without_the_setting_it_is_answered_immediately():
    broker = EngineBroker()
    broker.create("flights")
    client = member(broker)
    broker.hold_syncs()
    assert codes(client.ask(OFFSET_COMMIT, 9, COMMIT)) == [0]


def test_offsets_and_groups_that_are_taken_away_too(broker):
    client = member(broker)
    client.ask(OFFSET_COMMIT, 9, COMMIT)
    for key, fields in ((OFFSET_DELETE, TAKEN_AWAY), (DELETE_GROUPS, {"groups_names": ["readers"]})):
        broker.hold_syncs()
        client.send(key, 0, fields)
        assert client.replies() == []
        broker.release()
        assert len(client.replies()) == 1
        client.ask(OFFSET_COMMIT, 9, COMMIT)


def test_a_disk_that_takes_too_long_has_the_client_try_again(broker):
    """The limit is offsets.commit.timeout.ms."""
    client = member(broker)
    broker.hold_syncs()
    client.send(OFFSET_COMMIT, 9, COMMIT)
    broker.at(broker.now_ms + LATE_MS - 1)
    assert client.replies() == []
    broker.at(broker.now_ms + 1)
    ((_, answer),) = client.replies()
    assert codes(answer) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]


def test_a_disk_that_fails_is_answered_immediately(broker):
    client = member(broker)
    held = broker.hold_syncs()
    client.send(OFFSET_COMMIT, 9, COMMIT)
    broker.storage.failing_syncs.add(held[0].to.name)
    broker.release()
    ((_, answer),) = client.replies()
    assert codes(answer) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]


def test_a_producer_id_is_answered_when_it_is_on_the_disk(broker):
    """Otherwise two producers could have the same epoch, and neither would be fenced."""
    producer = TransactionalProducer(broker)
    broker.hold_syncs()
    producer.client.send(INIT_PRODUCER_ID, 4, {"transactional_id": "payments", "transaction_timeout": 60_000})
    assert producer.client.replies() == []
    broker.release()
    ((_, answer),) = producer.client.replies()
    assert answer.error_code == 0


def test_no_marker_is_written_before_the_decision_is_on_the_disk(broker):
    """A power cut could lose the decision and keep a marker, which would leave half a transaction."""
    producer = TransactionalProducer(broker)
    producer.init()
    for partition in range(2):
        producer.write("flights", b"a", partition=partition)
    before = broker.services.log_of("flights", 0).log_end_offset
    held = broker.hold_syncs()
    fields = {"transactional_id": "payments", "producer_id": producer.id, "producer_epoch": producer.epoch}
    producer.client.send(END_TXN, 4, fields | {"committed": True})
    assert producer.client.replies() == [] and broker.services.log_of("flights", 0).log_end_offset == before
    broker.at(broker.now_ms + 1_000)
    assert broker.services.log_of("flights", 0).log_end_offset == before
    broker.run(held.pop(0))
    broker.pump()
    assert broker.services.log_of("flights", 0).log_end_offset == before + 1
    broker.release()
    ((_, answer),) = producer.client.replies()
    assert answer.error_code == 0
    restarted = after_a_power_cut(broker)
    assert [committed(restarted.connect(), "flights", partition) for partition in range(2)] == [[b"a"], [b"a"]]


def test_a_transaction_is_complete_when_its_markers_are_on_the_disk(broker):
    """A power cut could lose the marker of a complete transaction, and nothing would end it in that partition."""
    producer = TransactionalProducer(broker)
    producer.init()
    producer.write("flights", b"a")
    before = broker.services.log_of("flights", 0).log_end_offset
    held = broker.hold_syncs()
    fields = {"transactional_id": "payments", "producer_id": producer.id, "producer_epoch": producer.epoch}
    producer.client.send(END_TXN, 4, fields | {"committed": True})
    broker.run(held.pop(0))  # the decision
    broker.pump()
    assert broker.services.log_of("flights", 0).log_end_offset == before + 1
    assert state_of(broker) == "PrepareCommit" and producer.client.replies() == []
    broker.release()
    assert state_of(broker) == "CompleteCommit" and producer.client.replies()[0][1].error_code == 0


def send_marker(producer):
    """Send the request of a coordinator on another broker to commit a transaction in partition 0."""
    marker = {
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "transaction_result": True,
        "coordinator_epoch": 0,
        "topics": [{"name": "flights", "partition_indexes": [0]}],
    }
    producer.client.send(WRITE_TXN_MARKERS, 1, {"markers": [marker]})


def marked(producer):
    """Return the errors of the answers to WriteTxnMarkers."""
    answers = [answer for _, answer in producer.client.replies()]
    return [answer.markers[0].topics[0].partitions[0].error_code for answer in answers]


@pytest.fixture
def writer(broker):
    producer = TransactionalProducer(broker)
    producer.init()
    producer.write("flights", b"a")
    return producer


def test_a_marker_is_answered_when_it_is_on_the_disk(broker, writer):
    broker.hold_syncs()
    send_marker(writer)
    assert marked(writer) == []
    broker.release()
    assert marked(writer) == [0]
    assert committed(after_a_power_cut(broker).connect(), "flights") == [b"a"]


def test_a_marker_that_takes_too_long_is_sent_again(broker, writer):
    broker.hold_syncs()
    send_marker(writer)
    broker.at(broker.now_ms + LATE_MS - 1)
    assert marked(writer) == []
    broker.at(broker.now_ms + 1)
    assert marked(writer) == [ErrorCode.REQUEST_TIMED_OUT]


def test_a_marker_on_a_disk_that_fails_is_not_taken_for_written(broker, writer):
    held = broker.hold_syncs()
    send_marker(writer)
    broker.storage.failing_syncs.add(held[0].to.name)
    broker.release()
    assert marked(writer) == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_a_decision_that_never_reached_the_disk_is_an_abort_in_all_partitions(broker):
    producer = TransactionalProducer(broker)
    producer.init()
    for partition in range(2):
        producer.write("flights", b"a", partition=partition)
    broker.hold_syncs()
    fields = {"transactional_id": "payments", "producer_id": producer.id, "producer_epoch": producer.epoch}
    producer.client.send(END_TXN, 4, fields | {"committed": True})
    restarted = after_a_power_cut(broker)
    restarted.at(restarted.now_ms + 120_000)  # the transaction times out
    assert [committed(restarted.connect(), "flights", partition) for partition in range(2)] == [[], []]


def test_after_a_crash_no_marker_is_written_before_the_decision_is_on_the_disk(broker):
    """After a `kill -9` the decision may be in the page cache only, and a power cut may follow."""
    producer = TransactionalProducer(broker, timeout_ms=600_000)
    producer.init()
    producer.write("flights", b"a")
    broker.at(broker.now_ms + 61_000)  # all is on the disk, and the journal is deleted
    before = broker.services.log_of("flights", 0).log_end_offset
    broker.hold_syncs()
    fields = {"transactional_id": "payments", "producer_id": producer.id, "producer_epoch": producer.epoch}
    producer.client.send(END_TXN, 4, fields | {"committed": True})
    again = EngineBroker(broker.storage, broker.now_ms + 1_000, **broker._settings)
    assert again.services.log_of("flights", 0).log_end_offset == before
    again.pump()
    assert committed(again.connect(), "flights") == [b"a"]


def joined_members(broker):
    """Return two members of a group that wait for their assignments: the leader and a follower."""
    broker.connect().ask(FIND_COORDINATOR, 1, {"key": "g", "key_type": 0})
    members = [Member(broker), Member(broker)]
    for member in members:
        member.join()
    broker.at(broker.now_ms + 7_000)  # group.initial.rebalance.delay.ms, twice
    for member in members:
        member.joined()
    return sorted(members, key=lambda member: not member.is_leader)


def test_an_assignment_is_answered_when_it_is_on_the_disk(broker):
    """Otherwise an earlier generation could come back after a power cut, and a partition would have two owners."""
    leader, follower = joined_members(broker)
    shares = [(leader, b"first"), (follower, b"second")]
    follower.sync()
    broker.hold_syncs()
    leader.sync(shares)
    assert leader.client.replies() == follower.client.replies() == []
    again = Member(broker)
    again.id, again.generation = follower.id, follower.generation
    again.sync()  # the group is stable already
    assert again.client.replies() == []
    broker.release()
    assert [member.synced() for member in (leader, follower, again)] == [b"first", b"second", b"second"]
    restarted = after_a_power_cut(broker)
    again = Member(restarted)
    again.id, again.generation = follower.id, follower.generation
    again.sync()
    assert again.synced() == b"second"


def test_members_join_again_if_the_disk_loses_their_assignment(broker):
    leader, follower = joined_members(broker)
    follower.sync()
    held = broker.hold_syncs()
    leader.sync([(leader, b"first"), (follower, b"second")])
    broker.storage.failing_syncs.add(held[0].to.name)
    broker.release()
    for member in (leader, follower):
        ((_, answer),) = member.client.replies()
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
