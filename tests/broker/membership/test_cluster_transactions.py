"""Groups and transactions over three brokers are whole, whichever broker dies."""

from itertools import count

import pytest

from broker.group.offset_records import partition_of
from broker.metadata.topic import TRANSACTIONS_TOPIC
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH
from tests.broker.engine_cluster import ONE_COPY, EngineCluster
from tests.broker.membership.cluster_steps import leaders, order
from tests.broker.membership.orders import stop_replica
from tests.broker.peers import ClusterProducer
from tests.broker.transactional import committed


@pytest.fixture
def cluster():
    return EngineCluster(3, offsets_topic_num_partitions=3, transaction_state_log_num_partitions=3, **ONE_COPY)


def committed_offset(cluster, group_id):
    request = {"groups": [{"group_id": group_id, "topics": None}], "require_stable": True}
    (answer,) = cluster.group_coordinator_of(group_id).connect().ask(OFFSET_FETCH, 8, request).groups
    assert answer.error_code == 0
    return [row.committed_offset for topic in answer.topics for row in topic.partitions]


def test_a_transaction_over_all_brokers_is_whole_with_the_offsets_of_its_group(cluster):
    cluster.create("flights", 3)
    producer = ClusterProducer(cluster)
    assert producer.init() == 0
    for commits in (True, False, True):
        for partition in range(3):
            producer.write("flights", b"%d" % commits, partition=partition)
        assert producer.add_offsets("readers") == 0
        assert producer.commit_offset("readers", "flights", 7 if commits else 9) == 0
        producer.find_coordinator()
        assert producer.end(commits) == 0
    cluster.later(1_000)
    for partition in range(3):
        assert committed(cluster.leader_of("flights", partition).connect(), "flights", partition) == [b"1", b"1"]
    assert committed_offset(cluster, "readers") == [7]


def test_a_transaction_is_ended_whole_after_the_death_of_its_coordinator_and_of_the_controller(cluster):
    cluster.create("flights", 3)
    producer = ClusterProducer(cluster)
    assert producer.init() == 0
    for partition in range(3):
        producer.write("flights", b"a", partition=partition)
    for dead in {cluster.coordinator_of(producer.transactional_id).node_id, cluster.controller.id}:
        cluster.kill(dead)
        cluster.expire(dead)
        cluster.restart(dead)
        cluster.later(2_000)
    producer.find_coordinator()
    assert producer.end(True) == 0
    cluster.later(2_000)
    for partition in range(3):
        assert committed(cluster.leader_of("flights", partition).connect(), "flights", partition) == [b"a"]


def sync(broker, *logs):
    """Sync these logs of (topic, partition), and let the checkpoint name them."""
    broker.services.logs.syncs.start_round([broker.services.logs.get(*log) for log in logs])
    broker.pump()


def test_no_batch_is_a_duplicate_of_one_from_before_a_power_cut_that_the_coordinator_forgot():
    """Found by the simulation (seed 4074): the next producer got an epoch that the partition knew, and lost its write.
    """
    cluster = EngineCluster(2, transaction_state_log_num_partitions=1, **ONE_COPY)
    assert cluster.create("flights") == 0
    first, second = ClusterProducer(cluster), ClusterProducer(cluster)
    assert first.init() == 0
    coordinator = cluster.coordinator_of(first.transactional_id)
    sync(coordinator, (TRANSACTIONS_TOPIC, 0))
    assert second.init() == 0 and (second.id, second.epoch) == (first.id, first.epoch + 1)
    second.write("flights", b"before")
    assert second.end(True) == 0
    cluster.later(1_000)
    sync(cluster.leader_of("flights"), ("flights", 0))
    cluster.cut_power(coordinator.node_id)
    cluster.expire(coordinator.node_id)
    cluster.restart(coordinator.node_id)
    cluster.later(2_000)
    third, fourth = ClusterProducer(cluster), ClusterProducer(cluster)
    assert third.init() == 0 and third.id != second.id
    third.write("flights", b"after")
    assert third.end(True) == 0
    cluster.later(1_000)
    assert committed(cluster.leader_of("flights").connect(), "flights") == [b"before", b"after"]
    assert fourth.init() == 0 and (fourth.id, fourth.epoch) == (third.id, third.epoch + 1)


def test_a_group_is_unavailable_while_its_coordinator_is_dead_and_has_its_offsets_afterwards(cluster):
    cluster.create("flights", 3)
    coordinator = cluster.group_coordinator_of("readers")
    row = {"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""}
    request = {"group_id": "readers", "generation_id_or_member_epoch": -1, "member_id": ""}
    topics = [{"name": "flights", "partitions": [row]}]
    answer = coordinator.connect().ask(OFFSET_COMMIT, 8, request | {"topics": topics})
    assert answer.topics[0].partitions[0].error_code == 0
    cluster.kill(coordinator.node_id)
    cluster.expire(coordinator.node_id)
    fields = {"key_type": 0, "coordinator_keys": ["readers"]}
    (answer,) = cluster.client(cluster.controller.id).ask(FIND_COORDINATOR, 4, fields).coordinators
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    cluster.restart(coordinator.node_id)
    cluster.later(2_000)
    assert committed_offset(cluster, "readers") == [7]


def test_a_deleted_partition_of_the_transactions_takes_no_end_of_another_with_it():
    """Both are led by one broker; the end waits for a broker that cannot be reached."""
    cluster = EngineCluster(2, offsets_topic_num_partitions=2, transaction_state_log_num_partitions=4, **ONE_COPY)
    cluster.create("flights", assignments=[2])
    partition = next(n for n in range(4) if leaders(cluster, TRANSACTIONS_TOPIC)[n] == 1)
    producer = ClusterProducer(cluster, next(f"p{n}" for n in count() if partition_of(f"p{n}", 4) == partition))
    assert producer.init() == 0
    producer.write("flights", b"a")
    cluster.cut_pairs.add((1, 2))
    assert producer.end(True) == 0
    assert committed(cluster.client(2), "flights") == []
    other = next(n for n in range(4) if n != partition and leaders(cluster, TRANSACTIONS_TOPIC)[n] == 1)
    controller = cluster.controller.member.controller.context
    epochs = {"controller_epoch": controller.epoch, "broker_epoch": controller.broker_epochs[1]}
    stop = stop_replica(TRANSACTIONS_TOPIC, other, delete=True, **epochs)
    assert [error.error_code for error in order(cluster, 1, stop).partition_errors] == [0]
    cluster.cut_pairs.clear()
    cluster.later(5_000)
    assert committed(cluster.client(2), "flights") == [b"a"]
