"""Coordinators whose records have several copies: answers leave when all replicas in sync have them (rule R2)."""

import pytest

from broker.metadata.topic import GROUP_OFFSETS_TOPIC
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import OFFSET_COMMIT, WRITE_TXN_MARKERS
from tests.broker.replicated import REPLICAS, ReplicatedLeader
from tests.broker.transactional import TransactionalProducer

LATE_MS = 5_000
COMMIT = {
    "group_id": "readers",
    "generation_id_or_member_epoch": -1,
    "member_id": "",
    "topics": [{"name": "flights", "partitions": [{"partition_index": 0, "committed_offset": 7}]}],
}


@pytest.fixture
def leader():
    leader = ReplicatedLeader(offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1)
    leader.copied("flights")
    leader.grow(GROUP_OFFSETS_TOPIC)
    return leader


def commit(leader):
    client = leader.client()
    client.send(OFFSET_COMMIT, 9, COMMIT)
    return client


def error_of(client):
    ((_, answer),) = client.replies()
    return answer.topics[0].partitions[0].error_code


def test_a_commit_is_answered_when_all_replicas_in_sync_have_it(leader):
    client = commit(leader)
    assert client.replies() == []
    leader.all_fetch(GROUP_OFFSETS_TOPIC, 1)
    assert error_of(client) == 0


def test_a_commit_that_a_replica_does_not_get_in_time_is_refused_as_by_kafka(leader):
    client = commit(leader)
    leader.later(LATE_MS)
    assert error_of(client) == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_commit_is_refused_while_too_few_replicas_are_in_sync(leader):
    leader.log(GROUP_OFFSETS_TOPIC).config = leader.services.config.topic_defaults.with_properties(
        {"min.insync.replicas": "2"}
    )
    leader.granted(GROUP_OFFSETS_TOPIC, isr=(1,))
    assert error_of(commit(leader)) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert leader.log(GROUP_OFFSETS_TOPIC).log_end_offset == 0


def test_a_coordinator_that_moves_meanwhile_refuses_the_commit(leader):
    client = commit(leader)
    leader.next_epoch(GROUP_OFFSETS_TOPIC, leader=2)
    assert error_of(client) == ErrorCode.NOT_COORDINATOR


def test_a_new_epoch_of_the_same_coordinator_leaves_the_commit_waiting(leader):
    client = commit(leader)
    leader.next_epoch(GROUP_OFFSETS_TOPIC)
    assert client.replies() == []
    leader.all_fetch(GROUP_OFFSETS_TOPIC, 1)
    assert error_of(client) == 0


# --- markers ---------------------------------------------------------------------------------------------------------


def end_requested(leader):
    """Begin a transaction, and ask for its marker as another coordinator does. All copies have its record."""
    leader.granted("flights", isr=(1,))
    producer = TransactionalProducer(leader.broker, "payments")
    producer.init()
    producer.add(("flights", 0))
    producer.send("flights", b"a")
    leader.granted("flights", isr=REPLICAS)
    leader.all_fetch("flights", 1)
    marker = {
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "coordinator_epoch": 0,
        "transaction_result": True,
        "topics": [{"name": "flights", "partition_indexes": [0]}],
    }
    client = leader.client()
    client.send(WRITE_TXN_MARKERS, 1, {"markers": [marker]})
    return client


def marker_error(client):
    ((_, answer),) = client.replies()
    return answer.markers[0].topics[0].partitions[0].error_code


def test_a_marker_is_answered_when_all_replicas_in_sync_have_it(leader):
    client = end_requested(leader)
    assert client.replies() == []
    leader.all_fetch("flights", 2)
    assert marker_error(client) == 0


def test_a_marker_of_a_lost_leadership_is_written_by_the_next_leader(leader):
    client = end_requested(leader)
    leader.next_epoch("flights", leader=2)
    assert marker_error(client) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_marker_that_a_replica_does_not_get_in_time_times_out(leader):
    client = end_requested(leader)
    leader.later(LATE_MS)
    assert marker_error(client) == ErrorCode.REQUEST_TIMED_OUT
