"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords on partitions of several copies."""

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import DELETE_RECORDS, LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH, WALL_MS
from tests.broker.peers import BETWEEN
from tests.broker.replicated import ReplicatedLeader

LATEST, EARLIEST = -1, -2


@pytest.fixture
def leader():
    leader = ReplicatedLeader()
    leader.copied("flights")
    return leader


@pytest.fixture
def client(leader):
    client = leader.client()
    client.produce("flights", b"a")
    leader.all_fetch("flights", 1)
    client.produce("flights", b"b")
    return client


def list_offset(client, timestamp=LATEST, version=7, replica_id=-1):
    partition = {"partition_index": 0, "timestamp": timestamp}
    fields = {"replica_id": replica_id, "topics": [{"name": "flights", "partitions": [partition]}]}
    answer = client.ask(LIST_OFFSETS, version, fields).topics[0].partitions[0]
    return answer.error_code, answer.offset


def test_the_latest_offset_is_the_high_watermark_for_clients_and_the_end_for_followers(leader, client):
    assert list_offset(client) == (0, 1)
    assert list_offset(leader.broker.connect(listener=BETWEEN), replica_id=2) == (0, 2)


@pytest.mark.parametrize(
    ("version", "error"), [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE)]
)
def test_a_new_leader_names_no_latest_offset_until_it_knows_what_is_committed(leader, client, version, error):
    """KIP-207: the offset would lie below one that a consumer was told before."""
    leader.next_epoch("flights")
    assert list_offset(client, version=version) == (error, -1)
    assert list_offset(client, EARLIEST, version) == (0, 0)
    assert list_offset(client, WALL_MS, version) == (0, 0), "a record that is committed for sure"
    assert list_offset(client, WALL_MS + 1, version) == (error, -1)
    leader.all_fetch("flights", 2)
    assert list_offset(client, version=version) == (0, 2)
    assert list_offset(client, WALL_MS + 1, version) == (0, -1)


def test_followers_may_ask_for_the_end_before_that(leader, client):
    leader.next_epoch("flights")
    assert list_offset(leader.broker.connect(listener=BETWEEN), replica_id=2) == (0, 2)


def test_the_latest_epoch_ends_at_the_end_of_the_log(leader, client):
    """A follower that was truncated to the high watermark would lose records that others in sync have (KIP-101)."""
    partition = {"partition": 0, "current_leader_epoch": 0, "leader_epoch": 0}
    fields = {"replica_id": 2, "topics": [{"topic": "flights", "partitions": [partition]}]}
    answer = leader.broker.connect(listener=BETWEEN).ask(OFFSET_FOR_LEADER_EPOCH, 4, fields)
    assert answer.topics[0].partitions[0].end_offset == 2


# --- DeleteRecords ---------------------------------------------------------------------------------------------------


def delete(client, offset, timeout_ms=1_000):
    partitions = [{"partition_index": 0, "offset": offset}]
    request = {"topics": [{"name": "flights", "partitions": partitions}], "timeout": timeout_ms}
    client.send(DELETE_RECORDS, 2, request)


def outcome(client):
    ((_, answer),) = client.replies()
    (partition,) = answer.topics[0].partitions
    return partition.error_code, partition.low_watermark


def test_records_are_deleted_when_the_logs_of_all_replicas_begin_there(leader, client):
    delete(client, 1)
    leader.follower(2).fetch("flights", 2, start=1)
    assert client.replies() == []
    leader.follower(3).fetch("flights", 2, start=1)
    assert outcome(client) == (0, 1)


def test_a_replica_that_is_late_makes_it_time_out(leader, client):
    delete(client, 1)
    leader.follower(2).fetch("flights", 2, start=1)
    leader.later(1_000)
    assert outcome(client) == (ErrorCode.REQUEST_TIMED_OUT, 0)


def test_a_dead_replica_is_not_waited_for(leader, client):
    live = [broker for broker in leader.services.metadata.brokers.values() if broker.id != 3]
    leader.services.metadata.register(live)
    delete(client, 1)
    leader.follower(2).fetch("flights", 2, start=1)
    assert outcome(client) == (0, 1)


def test_a_lost_leadership_ends_the_wait(leader, client):
    delete(client, 1)
    leader.next_epoch("flights", leader=2)
    assert outcome(client) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_records_above_the_high_watermark_cannot_be_deleted(leader, client):
    delete(client, 2)
    assert outcome(client) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
