"""Partitions of topics that the cluster does not know under their id: ZooKeeper was restored to an older state.

Kafka 3.9 refuses orders for such a partition with INCONSISTENT_TOPIC_ID too (ReplicaManager.becomeLeaderOrFollower).
"""

import pytest

from broker.membership.unknown_topics import DELETION_MS
from broker.metadata.topic import NO_LEADER
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import DELETE_TOPICS
from tests.broker.engine_cluster import EngineCluster
from tests.broker.membership.cluster_steps import ALL, delete, leaders
from tests.broker.membership.replicated_cluster import FETCHED_MS, ReplicatedCluster
from tests.flakelog.test_replication_health import health_of, sentences


def restore(cluster, nodes):
    """Stop all brokers, put the coordinator back to these nodes, and start the brokers again."""
    for broker_id in cluster.nodes:
        cluster.stop(broker_id)
    cluster.ensemble.nodes.clear()
    cluster.ensemble.nodes.update({path: node for path, node in nodes.items() if node.owner == 0})
    for broker_id in cluster.nodes:
        cluster.restart(broker_id)
    cluster.later(FETCHED_MS)


def restored(cluster):
    """Let the cluster forget topic `new`, which has a record."""
    before = dict(cluster.ensemble.nodes)
    cluster.create("new")
    assert cluster.produce("new", b"old") == (ErrorCode.NONE, 0)
    cluster.later(FETCHED_MS)
    restore(cluster, before)
    return cluster


@pytest.fixture
def cluster():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    return restored(cluster)


def said(cluster, broker_id, words):
    return [line for line in cluster.nodes[broker_id].reported if words in line]


def test_a_topic_that_the_cluster_no_longer_knows_is_named_once_by_each_broker_that_has_it(cluster):
    cluster.later(DELETION_MS)
    cluster.later(10 * 60_000)
    for broker_id in ALL:
        (line,) = said(cluster, broker_id, "the cluster does not know")
        assert "new (id " in line and "flights" not in line
        assert line in health_of(cluster, broker_id)[1]["cluster"]["problems"]
    assert cluster.produce("flights", b"a") == (ErrorCode.NONE, 0)


def test_a_topic_that_was_deleted_while_a_broker_was_away_is_not_named(cluster):
    cluster.create("late")
    cluster.stop(3)
    client = cluster.client(cluster.controller.id)
    client.send(DELETE_TOPICS, 6, {"topics": [{"name": "late", "topic_id": None}], "timeout": 30_000})
    cluster.later(5_000)
    cluster.restart(3)
    cluster.later(2 * DELETION_MS)
    assert not any("late" in line for line in said(cluster, 3, "the cluster does not know"))


def test_a_topic_made_again_beside_the_old_records_has_no_leader_and_each_broker_says_why(cluster):
    cluster.create("new")
    cluster.later(60_000)
    assert leaders(cluster, "new") == [NO_LEADER], "nobody serves it, so nobody is shown as its leader"
    for broker_id in ALL:
        healthy, details = health_of(cluster, broker_id)
        assert not healthy and "have another id" in details["partitions_offline"]["new-0"]
        assert any(line.startswith("new-0 is offline: ") for line in sentences(cluster, broker_id))
        (line,) = said(cluster, broker_id, "does not serve new-0")
        assert line in details["cluster"]["problems"]
    (line,) = said(cluster, cluster.controller.id, "new-0 has no leader")
    assert "another topic of this name" in line and line in cluster.controller.member.problems
    assert cluster.produce("flights", b"a") == (ErrorCode.NONE, 0)


def test_the_old_records_stay_until_the_topic_is_deleted_and_a_topic_made_then_is_served(cluster):
    cluster.create("new")
    cluster.later(60_000)
    assert cluster.log(1, "new").log_end_offset == 1, "nothing is deleted by itself"
    cluster.stop(2)
    cluster.restart(2)
    cluster.later(60_000)
    assert leaders(cluster, "new") == [NO_LEADER]
    assert all(node.member.controller.unclean_elections == 0 for node in cluster.nodes.values())
    assert delete(cluster, "new") == 0
    cluster.later(FETCHED_MS)
    cluster.create("new")
    cluster.later(FETCHED_MS)
    assert cluster.produce("new", b"anew") == (ErrorCode.NONE, 0) and cluster.consume("new") == [b"anew"]
    cluster.later(60_000)
    assert all(health_of(cluster, broker_id)[0] for broker_id in ALL)
    assert cluster.controller.member.problems == []


def test_a_later_state_of_the_coordinator_makes_the_records_readable_again():
    cluster = ReplicatedCluster()
    before = dict(cluster.ensemble.nodes)
    cluster.create("new")
    assert cluster.produce("new", b"old") == (ErrorCode.NONE, 0)
    cluster.later(FETCHED_MS)
    after = dict(cluster.ensemble.nodes)
    restore(cluster, before)
    restore(cluster, after)
    cluster.later(DELETION_MS)
    assert cluster.consume("new") == [b"old"] and cluster.controller.member.problems == []


def test_old_partitions_that_no_topic_had_since_are_deleted_by_a_topic_with_as_many():
    cluster = ReplicatedCluster()
    before = dict(cluster.ensemble.nodes)
    cluster.create("new", partitions=2)
    restore(cluster, before)
    cluster.create("new", partitions=1)
    assert delete(cluster, "new") == 0
    cluster.create("new", partitions=2)
    cluster.later(FETCHED_MS)
    assert leaders(cluster, "new") == [NO_LEADER] * 2
    assert delete(cluster, "new") == 0
    cluster.create("new", partitions=2)
    cluster.later(FETCHED_MS)
    assert leaders(cluster, "new") == [1, 1]


def test_only_the_brokers_with_other_records_stay_away_from_a_topic_made_again():
    cluster = ReplicatedCluster()
    before = dict(cluster.ensemble.nodes)
    cluster.create("new", replicas=(1, 2), min_insync_replicas=1)
    restore(cluster, before)
    cluster.create("new", replicas=(1, 2, 3), min_insync_replicas=1)
    cluster.later(60_000)
    assert leaders(cluster, "new") == [3] and cluster.isr("new") == (3,)
    assert cluster.produce("new", b"anew") == (ErrorCode.NONE, 0)
    assert [health_of(cluster, broker_id)[0] for broker_id in ALL] == [False, False, True]


def test_a_partition_with_one_copy_has_no_leader_either():
    cluster = EngineCluster(3, replication_enable=False, offsets_topic_num_partitions=1)
    before = dict(cluster.ensemble.nodes)
    assert cluster.create("new", assignments=(2,)) == 0
    restore(cluster, before)
    assert cluster.create("new", assignments=(2,)) == 0
    cluster.later(60_000)
    assert leaders(cluster, "new") == [NO_LEADER]
    assert [health_of(cluster, broker_id)[0] for broker_id in ALL] == [True, False, True]
    assert len(said(cluster, 2, "does not serve new-0")) == 1
