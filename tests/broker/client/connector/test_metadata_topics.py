"""Metadata and ZooKeeper show the same topics, so consumers that read one or the other assign alike."""

from uuid import UUID

from broker.client.connector.assignment import assign
from broker.client.connector.group_view import topic_view
from broker.client.connector.metadata_topics import metadata_topics
from broker.client.connector.topic_filter import TopicStreams
from broker.cluster.documents import Assignment, Topic
from coordination.port import PERSISTENT, Node
from tests.broker.client.several_nodes import NOBODY, Nodes

ID = UUID(int=7)
REPLICAS = {0: (3, 1), 1: (1, 2), 2: (3, 2), 3: (1, 3), 4: (2, 1)}
CONSUMERS = {"a": TopicStreams({"t": 1}), "b": TopicStreams({"t": 2})}


def seen_in_metadata(leaders):
    nodes = Nodes({("t", number): leader for number, leader in leaders.items()})
    nodes.topic_ids["t"] = ID
    nodes.replicas = {("t", number): list(replicas) for number, replicas in REPLICAS.items()}
    return nodes.run(metadata_topics(nodes.core))


def seen_in_zookeeper():
    topic = Topic(ID, {number: Assignment(replicas) for number, replicas in REPLICAS.items()})
    return topic_view("t", Node(topic.encode(), 0, PERSISTENT, czxid=5))


def test_both_sources_give_one_assignment():
    (in_metadata,) = seen_in_metadata({number: replicas[0] for number, replicas in REPLICAS.items()})
    in_zookeeper = seen_in_zookeeper()
    assert in_metadata.partitions == in_zookeeper.partitions
    assert in_metadata.topic_id == in_zookeeper.topic_id
    assert list(assign([in_metadata], CONSUMERS).items()) == list(assign([in_zookeeper], CONSUMERS).items())


def test_another_leader_changes_nothing():
    (first,) = seen_in_metadata({number: replicas[0] for number, replicas in REPLICAS.items()})
    (moved,) = seen_in_metadata({number: replicas[1] for number, replicas in REPLICAS.items()})
    (without,) = seen_in_metadata(dict.fromkeys(REPLICAS, NOBODY))
    assert first == moved == without


def test_metadata_without_ids_and_replicas_still_names_partitions():
    nodes = Nodes({("t", 0): 1, ("t", 1): 2})
    (topic,) = nodes.run(metadata_topics(nodes.core))
    assert topic.first_replicas == {0: -1, 1: -1}
    assert topic.topic_id is None and topic.czxid is None
