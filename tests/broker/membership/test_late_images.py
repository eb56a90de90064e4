"""A broker whose image or file is behind the cluster catches up."""

from dataclasses import replace

import pytest

from broker.cluster.documents import CONTROLLER_EPOCH, TopicPartition, state_path, topic_path
from broker.metadata.change import Change
from broker.metadata.topic import NO_LEADER, PartitionState
from broker.wire.errors import ErrorCode
from coordination.port import Set
from tests.broker.engine_client import (
    CREATE_PARTITIONS,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    METADATA,
    OFFSET_COMMIT,
)
from tests.broker.engine_cluster import ONE_COPY, EngineCluster
from tests.broker.membership.cluster_steps import leaders


def test_a_broker_that_was_away_has_the_settings_of_its_topics_that_were_altered_meanwhile():
    cluster = EngineCluster(2, **ONE_COPY)
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
    cluster = EngineCluster(2, **ONE_COPY)
    assert cluster.create("flights", partitions=2) == 0
    broker = cluster.controller.broker
    topic = broker.services.metadata.topic("flights")
    unknown = PartitionState(NO_LEADER, -1, (), ())
    late = replace(topic, partitions=(unknown, topic.partitions[1]))
    broker.services.metadata.apply([Change({"flights": late})])
    new_partitions = {"name": "flights", "count": 3, "assignments": None}
    client = cluster.client(cluster.controller.id)
    client.send(CREATE_PARTITIONS, 3, {"topics": [new_partitions], "timeout": 10_000})
    cluster.later(6_000)
    ((_, answer),) = client.replies()
    assert answer.results[0].error_code == 0
    assert len(broker.services.metadata.topic("flights").partitions) == 3


def damage(cluster, path):
    """Let a node have bytes that no broker writes. Return how to mend it."""
    node = cluster.ensemble.nodes[path]
    session_id = cluster.ensemble.begin_session()
    cluster.ensemble.apply(session_id, Set(path, b"{", node.version), lambda event: None)
    return lambda: cluster.ensemble.apply(session_id, Set(path, node.data, node.version + 1), lambda event: None)


@pytest.mark.parametrize("path", [topic_path("flights"), state_path(TopicPartition("flights", 0))])
def test_a_topic_whose_node_is_damaged_is_not_taken_for_deleted_by_the_brokers_of_the_next_controller(path):
    """They would drop the offsets that groups have committed for it."""
    cluster = EngineCluster(3, offsets_topic_num_partitions=3, **ONE_COPY)
    assert cluster.create("flights", assignments=[2]) == 0
    coordinator = cluster.group_coordinator_of("readers")
    assert coordinator is not cluster.controller.broker
    row = {"partition_index": 0, "committed_offset": 7}
    fields = {"group_id": "readers", "generation_id_or_member_epoch": -1, "member_id": ""}
    fields["topics"] = [{"name": "flights", "partitions": [row]}]
    coordinator.connect().ask(OFFSET_COMMIT, 9, fields)
    mend = damage(cluster, path)
    dead = cluster.controller.id
    cluster.kill(dead)
    cluster.expire(dead)
    cluster.later(1_000)
    assert path in cluster.controller.member.controller.context.damaged
    assert coordinator.services.coordinators.groups.offsets_number == 1
    assert cluster.client(2).produce("flights", b"a").error_code == 0
    mend()
    cluster.later(1_000)
    cluster.restart(dead)
    cluster.later(10_000)
    assert coordinator.services.coordinators.groups.offsets_number == 1
    assert cluster.controller.member.controller.context.damaged == {}
    assert leaders(cluster, "flights", dead) == [2]


def test_an_operator_reads_once_why_a_controller_fails_each_second():
    cluster = EngineCluster(2, **ONE_COPY)
    mend = damage(cluster, CONTROLLER_EPOCH)
    dead = cluster.controller.id
    cluster.kill(dead)
    cluster.expire(dead)
    cluster.later(30_000)
    (survivor,) = [node for node in cluster.nodes.values() if node.is_alive]
    (line,) = [line for line in survivor.reported if CONTROLLER_EPOCH in line]
    assert line == survivor.member.problems[0]
    assert line.startswith("the controller of this broker fails, and tries again: ")
    mend()
    cluster.later(2_000)
    assert cluster.controller is survivor and survivor.member.problems == []


@pytest.mark.parametrize("path", ["/config/topics/flights", topic_path("flights")])
def test_an_operator_reads_once_which_node_is_damaged(path):
    cluster = EngineCluster(1)
    assert cluster.create("flights", retention_ms=77_777) == 0
    mend = damage(cluster, path)
    cluster.expire(1)
    cluster.later(30_000)
    node = cluster.nodes[1]
    (line,) = [line for line in node.reported if line.startswith(f"{path}: ")]
    assert node.member.problems == [line]
    mend()
    cluster.expire(1)
    cluster.later(1_000)
    assert node.member.problems == []


def test_an_operator_is_not_told_of_a_session_that_ended():
    cluster = EngineCluster(2, **ONE_COPY)
    cluster.expire(cluster.controller.id)
    cluster.later(5_000)
    assert not [line for node in cluster.nodes.values() for line in node.reported if "controller" in line]
    assert [node.member.problems for node in cluster.nodes.values()] == [[], []]


def test_a_topic_that_another_broker_has_made_by_asking_has_no_leader_yet_where_the_image_is_late():
    """Kafka's brokers answer LEADER_NOT_AVAILABLE, which clients retry."""
    request = {"topics": [{"name": "flights"}], "allow_auto_topic_creation": True}
    cluster, answer = asked_where_the_image_is_late(METADATA, 12, request)
    (described,) = answer.topics
    assert described.error_code == ErrorCode.LEADER_NOT_AVAILABLE
    (described,) = cluster.client(2).ask(METADATA, 12, request).topics
    assert described.error_code == 0


def test_a_coordinators_topic_that_another_broker_has_made_is_no_failure_where_the_image_is_late():
    request = {"key_type": 0, "coordinator_keys": ["readers"]}
    cluster, answer = asked_where_the_image_is_late(FIND_COORDINATOR, 4, request)
    (coordinator,) = answer.coordinators
    assert coordinator.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not [line for line in cluster.controller.reported if "could not be made" in line]


def asked_where_the_image_is_late(api_key, version, request):
    """Send a request to a broker, then to the controller, which cannot reach its own listener. Return its answer."""
    cluster = EngineCluster(2, **ONE_COPY)
    controller = cluster.controller.id
    assert controller == 1
    cluster.cut_pairs.add((controller, controller))
    client, late = cluster.client(2), cluster.client(controller)
    client.send(api_key, version, request)
    cluster.later(1_000)
    assert client.replies()
    late.send(api_key, version, request)
    cluster.later(6_000)
    ((_, answer),) = late.replies()
    return cluster, answer
