"""A broker whose image or file is behind the cluster catches up."""

from dataclasses import replace

from broker.metadata.change import Change
from broker.metadata.topic import NO_LEADER, PartitionState
from tests.broker.engine_client import CREATE_PARTITIONS, INCREMENTAL_ALTER_CONFIGS
from tests.broker.engine_cluster import EngineCluster


def test_a_broker_that_was_away_has_the_settings_of_its_topics_that_were_altered_meanwhile():
    cluster = EngineCluster(2)
    assert cluster.create("flights", assignments=[2]) == 0
    cluster.kill(2)
    cluster.expire(2)
    config = {"name": "segment.bytes", "config_operation": 0, "value": "20000"}
    resource = {"resource_type": 2, "resource_name": "flights", "configs": [config]}
    client = cluster.client(1)
    client.send(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})
    cluster.later(6_000)
    ((_, answer),) = client.replies()
    assert answer.responses[0].error_code == 0
    cluster.restart(2)
    cluster.later(6_000)
    assert cluster.nodes[2].broker.services.log_of("flights", 0).config.segment_bytes == 20_000


def test_a_topic_grows_although_its_first_partition_had_no_leader_yet():
    """The controller names no replicas of a partition until it has a leader."""
    cluster = EngineCluster(2)
    assert cluster.create("flights", partitions=2) == 0
    broker = cluster.controller.broker
    topic = broker.services.metadata.topic("flights")
    unknown = PartitionState(NO_LEADER, -1, (), ())
    late = replace(topic, partitions=(unknown, topic.partitions[1]))
    broker.services.metadata.apply([Change({"flights": late})])
    asked = {"name": "flights", "count": 3, "assignments": None}
    client = cluster.client(cluster.controller.id)
    client.send(CREATE_PARTITIONS, 3, {"topics": [asked], "timeout": 10_000})
    cluster.later(6_000)
    ((_, answer),) = client.replies()
    assert answer.results[0].error_code == 0
    assert len(broker.services.metadata.topic("flights").partitions) == 3
