"""Disks that fail, records that are damaged and orders that come at a bad time, in a cluster with several copies."""

from broker.log.epochs_begun import FILE as EPOCHS_BEGUN
from broker.metadata.topic import NO_LEADER
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import CREATE_PARTITIONS, DELETE_TOPICS
from tests.broker.membership.cluster_steps import logs
from tests.broker.membership.replicated_cluster import FETCHED_MS, ReplicatedCluster

LOG_FILE = "{}/00000000000000000000.log"


def test_a_follower_stops_at_records_that_are_damaged_and_copies_all_others():
    cluster = ReplicatedCluster()
    cluster.create("flights", partitions=2)
    cluster.cut_pairs = {(2, 1), (3, 1)}
    cluster.later(FETCHED_MS)
    cluster.produce("flights", b"a" * 3_000, acks=1)  # a small write would come from memory
    file = cluster.nodes[1].storage.files[LOG_FILE.format("flights-0")]
    file.data[100] ^= 1
    cluster.cut_pairs = set()
    cluster.later(20_000)
    assert cluster.produce("flights", b"b", partition=1) == (ErrorCode.NONE, 0)
    for broker_id in (2, 3):
        followed = cluster.nodes[broker_id].broker.services.replication.followed
        assert list(followed.failed) == ["flights-0"]
        assert any("flights-0 is followed no more" in line for line in cluster.nodes[broker_id].reported)
    assert cluster.ends("flights") == {1: 1, 2: 0, 3: 0} and cluster.ends("flights", 1) == {1: 1, 2: 1, 3: 1}


def test_a_broker_that_cannot_write_the_epoch_does_not_lead_and_another_does():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.produce("flights", b"a")
    cluster.later(FETCHED_MS)
    cluster.nodes[2].storage.free_bytes = 0
    cluster.kill_and_expire(1)
    cluster.later(1_000)
    assert cluster.leader("flights") == 3 and cluster.isr("flights") == (3,)
    assert EPOCHS_BEGUN not in cluster.nodes[2].storage.files
    cluster.nodes[2].storage.free_bytes = None
    cluster.restart(1)
    cluster.later(30_000)
    assert set(cluster.isr("flights")) == {1, 2, 3}
    assert cluster.consume("flights") == [b"a"]


def test_a_full_disk_costs_no_trust_so_that_its_broker_leads_once_there_is_room():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.produce("flights", b"a")
    cluster.later(FETCHED_MS)
    cluster.kill_and_expire(3)
    cluster.nodes[2].storage.free_bytes = 0
    cluster.kill_and_expire(1)
    cluster.later(1_000)
    assert cluster.leader("flights") == NO_LEADER
    cluster.nodes[2].storage.free_bytes = None
    cluster.later(15_000)
    assert cluster.leader("flights") == 2 and cluster.isr("flights") == (2,)
    assert cluster.consume("flights") == [b"a"]


def test_a_truncation_that_waits_for_room_costs_no_trust_so_that_its_broker_leads_once_there_is_room():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.produce("flights", b"a")
    cluster.later(FETCHED_MS)
    cluster.kill_and_expire(3)
    cluster.cut_pairs = {(2, 1)}
    cluster.later(FETCHED_MS)
    cluster.produce("flights", b"alone", acks=1)
    cluster.kill_and_expire(1)
    cluster.later(1_000)
    assert cluster.leader("flights") == 2 and cluster.isr("flights") == (2,), "broker 1 may still lead"
    cluster.cut_pairs = set()
    cluster.restart(1)
    cluster.nodes[1].storage.free_bytes = 0
    cluster.later(3_000)
    assert "when the disk has space" in cluster.nodes[1].broker.services.logs.offline["flights-0"]
    cluster.kill_and_expire(2)
    cluster.later(1_000)
    assert cluster.leader("flights") == NO_LEADER
    cluster.nodes[1].storage.free_bytes = None
    cluster.later(15_000)
    assert cluster.leader("flights") == 1 and cluster.ends("flights") == {1: 1}
    cluster.restart(2)
    cluster.later(15_000)
    assert set(cluster.isr("flights")) == {1, 2} and cluster.consume("flights") == [b"a"]


def test_a_new_partition_without_room_costs_no_trust_in_the_others_of_its_topic():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.produce("flights", b"a")
    cluster.later(FETCHED_MS)
    cluster.nodes[2].storage.free_bytes = 0
    grown = {"name": "flights", "count": 2, "assignments": [{"broker_ids": [1, 2, 3]}]}
    request = {"topics": [grown], "timeout": 30_000, "validate_only": False}
    cluster.client(cluster.controller.id).send(CREATE_PARTITIONS, 3, request)
    cluster.later(1_000)
    cluster.kill_and_expire(3)
    cluster.kill_and_expire(2)
    cluster.restart(2)
    cluster.later(3_000)
    assert cluster.isr("flights") == (1, 2) and cluster.isr("flights", 1) == (1,)
    cluster.kill_and_expire(1)
    cluster.later(1_000)
    cluster.nodes[2].storage.free_bytes = None
    cluster.later(15_000)
    assert cluster.leader("flights") == 2 and cluster.ends("flights") == {2: 1}
    assert cluster.leader("flights", 1) == NO_LEADER
    cluster.restart(1)
    cluster.later(15_000)
    assert set(cluster.isr("flights", 1)) == {1, 2}


def diverged(cluster):
    """Let broker 1 have a record that 2 and 3 lack, and let it come back as their follower, its jobs held."""
    cluster.create("flights")
    cluster.produce("flights", b"a")
    cluster.produce_alone("flights")
    cluster.cut_pairs = set()
    cluster.kill_and_expire(1)
    cluster.produce("flights", b"b")
    cluster.cut_pairs = {(1, 2), (1, 3)}
    cluster.restart(1)
    cluster.later(500)
    held = cluster.nodes[1].broker.hold_syncs()
    cluster.cut_pairs = set()
    cluster.later(2_000)
    assert held and cluster.nodes[1].broker.services.replication.is_truncating("flights", 0)


def test_an_order_to_lead_waits_for_the_end_of_a_truncation():
    cluster = ReplicatedCluster()
    diverged(cluster)
    cluster.kill_and_expire(2)
    cluster.later(1_000)
    cluster.nodes[1].broker.release()
    cluster.later(3_000)
    assert set(cluster.isr("flights")) == {1, 3}
    cluster.kill_and_expire(3)
    cluster.later(1_000)
    assert cluster.leader("flights") == 1 and cluster.consume("flights") == [b"a"] + [b"b"]


def test_a_topic_may_be_deleted_while_its_log_is_truncated():
    cluster = ReplicatedCluster()
    diverged(cluster)
    client = cluster.client(cluster.controller.id)
    client.send(DELETE_TOPICS, 6, {"topics": [{"name": "flights", "topic_id": None}], "timeout": 30_000})
    cluster.later(1_000)
    cluster.nodes[1].broker.release()
    cluster.later(12_000)
    assert client.replies()[0][1].responses[0].error_code == 0
    assert logs(cluster, "flights") == {1: [], 2: [], 3: []}
    cluster.create("flights")
    cluster.later(FETCHED_MS)
    assert cluster.produce("flights", b"anew") == (ErrorCode.NONE, 0)


def test_a_full_disk_of_a_follower_keeps_it_out_of_the_isr_until_there_is_room():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.produce("flights", b"a")
    cluster.nodes[3].storage.free_bytes = 0
    assert cluster.produce("flights", b"b", within_ms=40_000)[0] in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT)
    cluster.later(20_000)
    assert cluster.isr("flights") == (1, 2)
    cluster.nodes[3].storage.free_bytes = None
    cluster.later(20_000)
    assert cluster.isr("flights") == (1, 2, 3) and cluster.ends("flights") == {1: 2, 2: 2, 3: 2}
