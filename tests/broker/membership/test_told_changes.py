"""A client that changes topics is answered once all brokers know of it, since it may ask any of them next."""

import pytest

from broker.membership.cluster_executor import TOLD_MS
from tests.broker.engine_client import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from tests.broker.engine_cluster import EngineCluster

TIMES = {"timeout": 30_000, "validate_only": False}
NEW = {"name": "new", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
CREATE = CREATE_TOPICS, 7, {"topics": [NEW], **TIMES}
GROW = CREATE_PARTITIONS, 3, {"topics": [{"name": "old", "count": 4, "assignments": None}], **TIMES}
DELETE = DELETE_TOPICS, 6, {"topics": [{"name": "old", "topic_id": None}], "timeout": 30_000}


@pytest.fixture
def cluster():
    """Return a cluster of brokers 1 and 2, whose controller is 1, with a topic on broker 1."""
    cluster = EngineCluster(2)
    assert cluster.controller.id == 1 and cluster.create("old", assignments=[1]) == 0
    return cluster


def partitions(cluster, topic):
    """Return the number of a topic's partitions as broker 2 knows it."""
    topic_metadata = cluster.nodes[2].member.image.topic(topic)
    return 0 if topic_metadata is None else len(topic_metadata.partitions)


@pytest.mark.parametrize("request_, topic, number", [(CREATE, "new", 1), (GROW, "old", 4), (DELETE, "old", 0)])
def test_a_change_is_answered_once_the_other_brokers_know_it(cluster, request_, topic, number):
    client = cluster.client(1)
    cluster.cut_pairs.add((1, 2))
    client.send(*request_)
    assert client.replies() == [] and partitions(cluster, topic) != number
    cluster.cut_pairs.clear()
    cluster.later(TOLD_MS // 2)
    assert len(client.replies()) == 1 and partitions(cluster, topic) == number


def test_a_broker_that_does_not_answer_delays_a_change_for_a_moment_only(cluster):
    client = cluster.client(1)
    cluster.cut_pairs.add((1, 2))
    client.send(*CREATE)
    cluster.later(TOLD_MS - 1)
    assert client.replies() == []
    cluster.later(1)
    ((_, answer),) = client.replies()
    assert answer.topics[0].error_code == 0


def test_a_broker_that_dies_delays_no_change(cluster):
    client = cluster.client(1)
    cluster.cut_pairs.add((1, 2))
    client.send(*CREATE)
    cluster.kill(2)
    cluster.expire(2)
    ((_, answer),) = client.replies()
    assert answer.topics[0].error_code == 0
