"""Topics of several copies, with `flakelog.replication.enable`: their replicas are placed as by Kafka."""

import pytest

from broker.metadata.topic import GROUP_OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import CREATE_TOPICS, FIND_COORDINATOR, METADATA
from tests.broker.engine_cluster import EngineCluster

SETTINGS = {"offsets_topic_num_partitions": 3, "transaction_state_log_num_partitions": 3}


def replicating(**settings):
    return EngineCluster(3, replication_enable=True, **SETTINGS | settings)


def create(cluster, topic, factor=-1, assignments=(), **configs):
    """Create a topic of three partitions; return (error, replication factor)."""
    given = [{"partition_index": n, "broker_ids": list(replicas)} for n, replicas in enumerate(assignments)]
    fields = {
        "name": topic,
        "num_partitions": -1 if given else 3,
        "replication_factor": factor,
        "assignments": given,
        "configs": [{"name": name.replace("_", "."), "value": str(value)} for name, value in configs.items()],
    }
    request = {"topics": [fields], "timeout": 30_000, "validate_only": False}
    (answer,) = cluster.client(cluster.controller.id).ask(CREATE_TOPICS, 7, request).topics
    return answer.error_code, answer.replication_factor


def replicas(cluster, topic):
    (described,) = cluster.client(2).ask(METADATA, 12, {"topics": [{"name": topic}]}).topics
    return [row.replica_nodes for row in sorted(described.partitions, key=lambda row: row.partition_index)]


def test_a_topic_has_as_many_copies_as_are_asked_for():
    cluster = replicating()
    assert create(cluster, "flights", 2) == (0, 2)
    assert replicas(cluster, "flights") == [(1, 2), (2, 3), (3, 1)]
    assert create(cluster, "given", assignments=[(3, 1), (2, 3)]) == (0, 2)
    assert replicas(cluster, "given") == [(3, 1), (2, 3)]


@pytest.mark.parametrize("factor", [0, 4])
def test_more_copies_than_brokers_and_none_are_refused(factor):
    error, _ = create(replicating(), "flights", factor)
    assert error == ErrorCode.INVALID_REPLICATION_FACTOR


def test_more_copies_than_brokers_are_lowered_to_their_number_where_that_is_set():
    cluster = replicating(lower_replication=True)
    assert create(cluster, "flights", 5, min_insync_replicas=4) == (0, 3)
    assert cluster.controller.member.image.topic("flights").properties == {"min.insync.replicas": "3"}


def test_a_topic_has_the_default_number_of_copies_also_when_a_client_only_asks_for_it():
    cluster = replicating(default_replication_factor=3)
    assert create(cluster, "flights") == (0, 3)
    request = {"topics": [{"name": "asked"}], "allow_auto_topic_creation": True}
    cluster.client(1).ask(METADATA, 12, request)
    assert [sorted(row) for row in replicas(cluster, "asked")] == [[1, 2, 3]]


def test_the_topics_of_coordinators_have_the_copies_of_their_settings():
    cluster = replicating()
    for key_type, topic in ((0, GROUP_OFFSETS_TOPIC), (1, TRANSACTIONS_TOPIC)):
        cluster.client(1).ask(FIND_COORDINATOR, 4, {"key_type": key_type, "coordinator_keys": ["a"]})
        assert [sorted(row) for row in replicas(cluster, topic)] == [[1, 2, 3]] * 3
    assert cluster.controller.member.image.topic(TRANSACTIONS_TOPIC).properties["min.insync.replicas"] == "2"


def test_the_copies_of_topics_made_by_asking_are_lowered_where_that_is_set():
    settings = {"offsets_topic_replication_factor": 4, "default_replication_factor": 5}
    cluster = replicating(lower_replication=True, transaction_state_log_min_isr=4, **settings)
    for key_type in (0, 1):
        cluster.client(1).ask(FIND_COORDINATOR, 4, {"key_type": key_type, "coordinator_keys": ["a"]})
    cluster.client(1).ask(METADATA, 12, {"topics": [{"name": "asked"}], "allow_auto_topic_creation": True})
    for topic in (GROUP_OFFSETS_TOPIC, TRANSACTIONS_TOPIC, "asked"):
        assert {tuple(sorted(row)) for row in replicas(cluster, topic)} == {(1, 2, 3)}
    assert cluster.controller.member.image.topic(TRANSACTIONS_TOPIC).properties["min.insync.replicas"] == "3"


def test_a_coordinator_is_not_available_while_brokers_for_its_copies_are_missing():
    cluster = replicating(offsets_topic_replication_factor=4)
    request = {"key_type": 0, "coordinator_keys": ["a"]}
    (answer,) = cluster.client(1).ask(FIND_COORDINATOR, 4, request).coordinators
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    reason = "larger than available brokers: 3. Start more brokers, or set offsets.topic.replication.factor."
    assert reason in answer.error_message


def test_without_the_switch_there_is_one_copy():
    cluster = EngineCluster(3, replication_enable=False, default_replication_factor=3, **SETTINGS)
    assert create(cluster, "flights") == (0, 1)
    assert create(cluster, "copied", 3) == (ErrorCode.INVALID_REPLICATION_FACTOR, -1)
    cluster.client(1).ask(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["a"]})
    assert [len(row) for row in replicas(cluster, GROUP_OFFSETS_TOPIC)] == [1, 1, 1]
