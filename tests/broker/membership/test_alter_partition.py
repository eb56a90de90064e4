"""AlterPartition on the listener of brokers: the controller grants a leader another ISR (KIP-497)."""

import pytest

from broker.engine.api_table import INTER_BROKER
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import CREATE_TOPICS
from tests.broker.engine_cluster import BROKERS, EngineCluster

ALTER_PARTITION = 56


def cluster_with_a_topic():
    """Return a cluster, and the topic `flights` of one partition, which brokers 1 and 2 have."""
    cluster = EngineCluster(2, replication_enable=True)
    given = [{"partition_index": 0, "broker_ids": [1, 2]}]
    fields = {"name": "flights", "num_partitions": -1, "replication_factor": -1, "assignments": given, "configs": []}
    request = {"topics": [fields], "timeout": 30_000, "validate_only": False}
    cluster.client(cluster.controller.id).ask(CREATE_TOPICS, 7, request)
    return cluster, cluster.controller.member.image.topic("flights")


def ask(cluster, broker_id, topic, isr, version=3):
    """Ask a broker for another ISR as the leader does, broker 1."""
    epochs = {number: cluster.nodes[number].member.broker_epoch for number in (1, 2)}
    (state,) = topic.partitions
    partition = {"partition_index": 0, "leader_epoch": state.leader_epoch, "partition_epoch": state.partition_epoch}
    if version == 2:
        partition["new_isr"] = isr
    else:
        members = [{"broker_id": member, "broker_epoch": epochs[member]} for member in isr]
        partition |= {"new_isr_with_epochs": members, "min_isr": 1}
    topics = [{"topic_id": topic.id, "partitions": [partition]}]
    client = cluster.nodes[broker_id].broker.connect(listener=BROKERS)
    return client.ask(ALTER_PARTITION, version, {"broker_id": 1, "broker_epoch": epochs[1], "topics": topics})


@pytest.mark.parametrize("version", [2, 3])
def test_the_controller_grants_a_leader_another_isr_and_all_brokers_learn_of_it(version):
    cluster, topic = cluster_with_a_topic()
    answer = ask(cluster, cluster.controller.id, topic, [1], version)
    (partition,) = answer.topics[0].partitions
    assert (answer.error_code, partition.error_code, partition.isr) == (0, 0, (1,))
    assert partition.partition_epoch == topic.partitions[0].partition_epoch + 1
    isrs = [node.member.image.topic("flights").partitions[0].isr for node in cluster.nodes.values()]
    assert isrs == [(1,), (1,)]


def test_another_broker_than_the_controller_refuses_it():
    cluster, topic = cluster_with_a_topic()
    (other,) = cluster.nodes.keys() - {cluster.controller.id}
    assert ask(cluster, other, topic, [1]).error_code == ErrorCode.NOT_CONTROLLER


def test_each_version_that_brokers_of_kafka_39_send_is_served():
    row = INTER_BROKER[ALTER_PARTITION]
    assert (row.oldest, row.newest) == (2, 3)
