"""Offsets in transactions through the wire (KIP-98, KIP-447): AddOffsetsToTxn, TxnOffsetCommit, stable OffsetFetch."""

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import (
    DELETE_GROUPS,
    FIND_COORDINATOR,
    JOIN_GROUP,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    EngineBroker,
)
from tests.broker.transactional import HIGHEST, LOWEST, TransactionalProducer

VERSIONS = pytest.mark.parametrize("versions", [LOWEST, HIGHEST], ids=["lowest", "highest"])


@pytest.fixture
def broker():
    broker = EngineBroker(transaction_state_log_num_partitions=1, offsets_topic_num_partitions=3)
    broker.create("flights", 2)
    broker.connect().ask(FIND_COORDINATOR, 0, {"key": "g"})
    return broker


def producing(broker, transactional_id="payments", versions=HIGHEST):
    producer = TransactionalProducer(broker, transactional_id, versions)
    assert producer.init() == 0
    return producer


def fetched(broker, group_id="g", partition=0, stable=False, version=7):
    """Fetch one committed offset; return (offset, error code)."""
    topics = [{"name": "flights", "partition_indexes": [partition]}]
    fields = {"group_id": group_id, "topics": topics, "require_stable": stable}
    if version >= 8:
        fields = {"groups": [{"group_id": group_id, "topics": topics}], "require_stable": stable}
    answer = broker.connect().ask(OFFSET_FETCH, version, fields)
    answer = answer.groups[0] if version >= 8 else answer
    result = answer.topics[0].partitions[0]
    return result.committed_offset, result.error_code


def plain_commit(broker, offset, group_id="g"):
    topics = [{"name": "flights", "partitions": [{"partition_index": 0, "committed_offset": offset}]}]
    fields = {"group_id": group_id, "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
    return broker.connect().ask(OFFSET_COMMIT, 8, fields).topics[0].partitions[0].error_code


@VERSIONS
@pytest.mark.parametrize("commit", [True, False])
def test_offsets_count_when_their_transaction_commits_and_never_when_it_aborts(broker, versions, commit):
    assert plain_commit(broker, 3) == 0
    producer = producing(broker, versions=versions)
    assert producer.add_offsets("g") == 0
    assert producer.commit_offset("g", "flights", 10) == 0
    assert fetched(broker) == (3, 0)
    assert producer.end(commit) == 0
    assert fetched(broker) == fetched(broker, stable=True) == (10 if commit else 3, 0)


@pytest.mark.parametrize("restarts", [False, True])
def test_an_offset_that_could_not_be_written_leaves_the_one_before_it(broker, restarts):
    producer = producing(broker)
    producer.add_offsets("g")
    assert producer.commit_offset("g", "flights", 10) == 0
    broker.storage.free_bytes = 0
    assert producer.commit_offset("g", "flights", 20) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.storage.free_bytes = None
    broker.at(broker.now_ms + 1_000)
    assert producer.end(True) == 0
    broker = broker.restarted() if restarts else broker
    assert fetched(broker) == (10, 0)


@pytest.mark.parametrize("restarts", [False, True])
def test_offsets_of_an_open_transaction_do_not_outlive_their_topic(broker, restarts):
    producer = producing(broker)
    producer.add_offsets("g")
    producer.commit_offset("g", "flights", 10)
    broker.delete("flights")
    assert producer.end(True) == 0
    broker.create("flights", 2)
    broker = broker.restarted() if restarts else broker
    assert fetched(broker) == (-1, 0), "another topic of that name begins at its own beginning"


@pytest.mark.parametrize("version", [7, 8, 9])
def test_who_asks_for_stable_offsets_is_told_where_a_transaction_is_open(broker, version):
    producer = producing(broker)
    producer.add_offsets("g")
    producer.commit_offset("g", "flights", 10)
    assert fetched(broker, stable=True, version=version) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert fetched(broker, stable=False, version=version) == (-1, 0)
    assert fetched(broker, partition=1, stable=True, version=version) == (-1, 0)
    producer.end(True)
    assert fetched(broker, stable=True, version=version) == (10, 0)


@pytest.mark.parametrize("version, code", [(0, 48), (3, 48), (4, 120), (5, 120)])
def test_a_group_that_was_not_added_is_refused(broker, version, code):
    """The error is INVALID_TXN_STATE, and TRANSACTION_ABORTABLE since v4 (KIP-890)."""
    producer = producing(broker)
    assert producer.commit_offset("g", "flights", 10, version=version) == code
    producer.add(("flights", 0))
    assert producer.commit_offset("g", "flights", 10, version=version) == code


def test_each_partition_is_committed_or_refused_by_itself(broker):
    producer = producing(broker)
    producer.add_offsets("g")
    assert producer.commit_offset("g", "flights", 1, partition=9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert producer.commit_offset("g", "nowhere", 1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert producer.commit_offset("", "flights", 1) == ErrorCode.INVALID_GROUP_ID


def test_a_member_is_held_to_its_generation(broker):
    """The request names the member since v3, so that the offsets of a zombie are refused (KIP-447)."""
    producer = producing(broker)
    producer.add_offsets("g")
    member = {"generation_id": 4, "member_id": "m"}
    assert producer.commit_offset("g", "flights", 1, **member) == ErrorCode.ILLEGAL_GENERATION
    fields = {
        "group_id": "g",
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    broker.connect().send(JOIN_GROUP, 3, fields)
    assert producer.commit_offset("g", "flights", 1, **member) == ErrorCode.UNKNOWN_MEMBER_ID
    assert producer.commit_offset("g", "flights", 1, version=2) == 0, "older clients do not say it"


def test_a_fenced_producer_commits_nothing(broker):
    old = producing(broker)
    old.add_offsets("g")
    old.commit_offset("g", "flights", 10)
    new = TransactionalProducer(broker)
    assert new.init() == ErrorCode.CONCURRENT_TRANSACTIONS
    assert old.commit_offset("g", "flights", 11) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert fetched(broker, stable=True) == (-1, 0)


def test_a_plain_commit_written_later_stays(broker):
    producer = producing(broker)
    producer.add_offsets("g")
    producer.commit_offset("g", "flights", 10)
    assert plain_commit(broker, 20) == 0
    producer.end(True)
    assert fetched(broker) == (20, 0)
    assert fetched(broker.restarted(clean=False)) == (20, 0)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("commit", [True, False])
def test_a_restart_finds_open_and_ended_transactions_of_offsets_again(broker, clean, commit):
    producer, other = producing(broker), producing(broker, "other")
    for sender, group_id in ((producer, "g"), (other, "h")):
        sender.add_offsets(group_id)
        sender.commit_offset(group_id, "flights", 10)
    other.end(commit)
    again = broker.restarted(clean=clean)
    assert fetched(again, "h", stable=True) == (10 if commit else -1, 0)
    assert fetched(again, "g", stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    producer.client = again.connect()
    assert producer.end(commit) == 0
    assert fetched(again, "g", stable=True) == (10 if commit else -1, 0)
    assert fetched(again.restarted(clean=clean), "g") == (10 if commit else -1, 0)


def test_offsets_that_could_not_be_written_do_not_count(broker):
    producer = producing(broker)
    producer.add_offsets("g")
    broker.storage.free_bytes = 0
    assert producer.commit_offset("g", "flights", 10) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.storage.free_bytes = None
    assert fetched(broker, stable=True) == (-1, 0)
    assert producer.end(True) == 0
    assert fetched(broker) == (-1, 0)


def test_a_group_with_offsets_in_a_transaction_does_not_expire(broker):
    producer = TransactionalProducer(broker, timeout_ms=900_000)
    producer.init()
    producer.add_offsets("g")
    producer.commit_offset("g", "flights", 10)
    broker.at(broker.now_ms + 700_000)  # the broker checks groups every ten minutes
    producer.client = broker.connect()
    assert producer.end(True) == 0
    assert fetched(broker) == (10, 0)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("whole", [False, True], ids=["its offset", "the group"])
def test_what_an_administrator_takes_away_does_not_come_back_with_a_transaction_that_was_open(broker, whole, restarts):
    producer = producing(broker)
    producer.add_offsets("g")
    producer.commit_offset("g", "flights", 10)
    if whole:
        assert broker.connect().ask(DELETE_GROUPS, 2, {"groups_names": ["g"]}).results[0].error_code == 0
    else:
        topics = [{"name": "flights", "partitions": [{"partition_index": 0}]}]
        assert broker.connect().ask(OFFSET_DELETE, 0, {"group_id": "g", "topics": topics}).error_code == 0
    assert producer.end(True) == 0
    broker = broker.restarted() if restarts else broker
    assert fetched(broker) == (-1, 0)
