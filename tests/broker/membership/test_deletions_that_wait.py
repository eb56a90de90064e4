"""A topic whose deletion waits for a broker: what the controller shows of it, and what it writes in its log."""

import pytest

from broker.log.storage.memory_storage import MemoryStorage
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import CREATE_TOPICS, DESCRIBE_CLUSTER
from tests.broker.membership.cluster_steps import delete
from tests.broker.membership.replicated_cluster import ReplicatedCluster

ONE = "the deletion of topic again waits for broker 3, which has a copy that is not deleted yet"


@pytest.fixture
def cluster():
    cluster = ReplicatedCluster()
    cluster.create("again", partitions=2)
    return cluster


def problems(cluster, broker_id=1):
    return cluster.nodes[broker_id].member.problems


def deleted_without_broker_3(cluster, *topics):
    cluster.kill_and_expire(3)
    for topic in topics:
        assert delete(cluster, topic) == ErrorCode.NONE
    cluster.settle()


def test_a_deletion_that_waits_for_a_broker_is_named_by_the_controller_until_it_has_ended(cluster):
    deleted_without_broker_3(cluster, "again")
    assert problems(cluster) == [ONE] and problems(cluster, 2) == []
    cluster.restart(3)
    cluster.later(3_000)
    assert problems(cluster) == []
    cluster.create("again")


def test_a_broker_that_comes_back_with_an_empty_directory_ends_it_too(cluster):
    deleted_without_broker_3(cluster, "again")
    cluster.restart(3, storage=MemoryStorage())
    cluster.later(3_000)
    assert problems(cluster) == []
    cluster.create("again")


def test_a_new_controller_names_it_too(cluster):
    deleted_without_broker_3(cluster, "again")
    cluster.kill_and_expire(1)
    cluster.later(3_000)
    assert cluster.controller.id == 2
    assert problems(cluster, 2) == [
        "the deletion of topic again waits for brokers 1, 3, which have copies that are not deleted yet"
    ]


def test_many_such_topics_share_a_line_and_the_log_has_one_for_each_broker(cluster):
    topics = [f"t{number:02}" for number in range(15)]
    for topic in topics:
        cluster.create(topic)
    deleted_without_broker_3(cluster, *topics)
    (line,) = problems(cluster)
    assert line.startswith(f"the deletions of topics {', '.join(topics[:10])} and 5 more wait for broker 3, which has")
    lines = [line for line in cluster.nodes[1].reported if "deletion" in line]
    assert lines == [
        "deletions of topics wait for broker 3, which has copies of them: /health and `flakelog cluster describe` "
        "name the topics"
    ]


def test_clients_are_told_by_the_controller(cluster):
    deleted_without_broker_3(cluster, "again")
    fields = {"include_cluster_authorized_operations": False, "endpoint_type": 1}
    assert cluster.client(1).ask(DESCRIBE_CLUSTER, 1, fields).error_message == ONE


@pytest.mark.parametrize("validate_only", [False, True])
def test_to_create_such_a_topic_anew_is_refused_as_kafka_refuses_it(cluster, validate_only):
    deleted_without_broker_3(cluster, "again")
    new = {"name": "again", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    request = {"topics": [new], "timeout": 30_000, "validate_only": validate_only}
    (answer,) = cluster.client(1).ask(CREATE_TOPICS, 7, request).topics
    assert answer.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert answer.error_message == "Topic 'again' is marked for deletion."
