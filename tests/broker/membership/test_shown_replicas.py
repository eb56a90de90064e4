"""What clients are told of partitions with several copies: the same by every broker, as the controller decided it."""

import pytest

from tests.broker.engine_client import DESCRIBE_TOPIC_PARTITIONS, METADATA
from tests.broker.membership.replicated_cluster import ReplicatedCluster


@pytest.fixture
def cluster():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    return cluster


def metadata(cluster):
    """Return (leader, ISR, offline replicas) of the partition; all brokers say the same."""
    return answer_of_all(cluster, METADATA, 12, {"topics": [{"name": "flights"}]}, "offline_replicas")


def description(cluster):
    """Return (leader, ISR, offline replicas, ELR) of the partition, as DescribeTopicPartitions has it."""
    fields = {"topics": [{"name": "flights"}], "response_partition_limit": 10}
    return answer_of_all(
        cluster, DESCRIBE_TOPIC_PARTITIONS, 0, fields, "offline_replicas", "eligible_leader_replicas"
    )


def answer_of_all(cluster, api, version, request, *lists):
    answers = set()
    for node in cluster.nodes.values():
        if node.is_alive:
            (topic,) = cluster.client(node.id).ask(api, version, request).topics
            (row,) = topic.partitions
            answers.add((row.leader_id, row.isr_nodes, *(getattr(row, name) for name in lists)))
    (answer,) = answers
    return answer


def test_all_copies_are_in_sync(cluster):
    assert metadata(cluster) == (1, (1, 2, 3), ())
    assert description(cluster) == (1, (1, 2, 3), (), ())


def test_a_dead_brokers_copy_is_offline_and_out_of_the_isr(cluster):
    cluster.kill_and_expire(3)
    assert metadata(cluster) == (1, (1, 2), (3,))
    cluster.restart(3)
    cluster.later(3_000)
    assert metadata(cluster) == (1, (1, 2, 3), ())


def test_a_copy_that_falls_behind_is_out_of_the_isr_and_not_offline(cluster):
    cluster.cut_pairs = {(3, 1)}
    cluster.produce("flights", b"a", within_ms=50_000)
    assert metadata(cluster) == (1, (1, 2), ())
    assert description(cluster) == (1, (1, 2), (), ())


def test_a_member_that_left_the_isr_below_the_minimum_is_an_eligible_leader_for_every_broker(cluster):
    """KIP-966"""
    cluster.kill_and_expire(3)
    cluster.kill_and_expire(2)
    assert description(cluster) == (1, (1,), (2, 3), (2,))
    cluster.restart(3)
    cluster.later(3_000)
    assert description(cluster) == (1, (1, 3), (2,), ())
