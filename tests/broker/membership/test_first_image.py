"""A broker that does not know its cluster yet keeps the requests of clients until it does."""

import pytest

from tests.broker.engine_client import API_VERSIONS, METADATA
from tests.broker.engine_cluster import EngineCluster


@pytest.fixture
def cluster():
    """Return a cluster whose broker 2 is back, while the controller cannot reach it."""
    cluster = EngineCluster(2)
    assert cluster.controller.id == 1 and cluster.create("flights", assignments=[2]) == 0
    cluster.kill(2)
    cluster.expire(2)
    cluster.cut_pairs.add((1, 2))
    cluster.restart(2)
    cluster.later(1_000)
    assert cluster.nodes[2].member.is_registered and not cluster.nodes[2].member.is_informed
    return cluster


def heal(cluster):
    cluster.cut_pairs.clear()
    cluster.later(6_000)
    assert cluster.nodes[2].member.is_informed


def test_a_client_is_answered_once_the_controller_has_told_of_the_cluster(cluster):
    client = cluster.client(2)
    client.send(METADATA, 12, {"topics": None})
    assert client.replies() == []
    heal(cluster)
    ((_, answer),) = client.replies()
    assert [broker.node_id for broker in answer.brokers] == [1, 2]
    assert [topic.name for topic in answer.topics] == ["flights"]


def test_the_versions_of_its_requests_are_told_at_once(cluster):
    assert cluster.client(2).ask(API_VERSIONS, 0, {}).error_code == 0


def test_a_request_that_waits_for_long_waits_on(cluster):
    client = cluster.client(2)
    client.send(METADATA, 12, {"topics": None})
    cluster.later(100_000)
    assert client.replies() == []
    heal(cluster)
    assert len(client.replies()) == 1


def test_a_client_that_went_away_meanwhile_is_forgotten(cluster):
    broker = cluster.nodes[2].broker
    client = cluster.client(2)
    client.send(METADATA, 12, {"topics": None})
    broker.engine.closed(client.conn)
    heal(cluster)
    assert len(broker.services.purgatory) == 0
