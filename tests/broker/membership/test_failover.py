"""What the clients of a cluster with several copies see when a broker stops, dies or comes back."""

import pytest

from broker.wire.errors import ErrorCode
from broker.wire.inter_broker import ControlledShutdownRequest
from tests.broker.engine_client import OFFSET_COMMIT, OFFSET_FETCH, PRODUCE, produce_request
from tests.broker.membership.cluster_steps import alter
from tests.broker.membership.replicated_cluster import FETCHED_MS, ReplicatedCluster
from tests.broker.peers import ClusterProducer
from tests.broker.transactional import committed


def commit(cluster, group_id, offset):
    partition = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1}
    topics = [{"name": "flights", "partitions": [partition]}]
    request = {"group_id": group_id, "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
    (topic,) = cluster.group_coordinator_of(group_id).connect().ask(OFFSET_COMMIT, 8, request).topics
    return ErrorCode(topic.partitions[0].error_code)


def committed_offset(cluster, group_id):
    request = {"groups": [{"group_id": group_id, "topics": None}], "require_stable": True}
    (answer,) = cluster.group_coordinator_of(group_id).connect().ask(OFFSET_FETCH, 8, request).groups
    assert answer.error_code == 0
    return [row.committed_offset for topic in answer.topics for row in topic.partitions]


def test_a_group_goes_on_at_its_next_coordinator_with_its_offsets():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    assert commit(cluster, "readers", 7) is ErrorCode.NONE
    first = cluster.group_coordinator_of("readers").node_id
    cluster.kill_and_expire(first)
    cluster.later(1_000)
    assert cluster.group_coordinator_of("readers").node_id != first
    assert committed_offset(cluster, "readers") == [7]
    assert commit(cluster, "readers", 8) is ErrorCode.NONE
    cluster.restart(first)
    cluster.later(5_000)
    assert committed_offset(cluster, "readers") == [8]


@pytest.mark.parametrize("commits", [True, False])
def test_an_open_transaction_is_ended_by_the_next_coordinator_and_leader(commits):
    cluster = ReplicatedCluster()
    cluster.create("flights", partitions=2)
    producer = ClusterProducer(cluster)
    cluster.later(FETCHED_MS)
    assert producer.init() == 0
    for partition in (0, 1):
        producer.write("flights", b"a", partition=partition)
    first = cluster.coordinator_of(producer.transactional_id).node_id
    cluster.kill_and_expire(first)
    if first != 1:
        cluster.kill_and_expire(1)
        cluster.restart(first)
    cluster.later(3_000)
    producer.find_coordinator()
    assert producer.end(commits) == 0
    cluster.later(2_000)
    for partition in (0, 1):
        reader = cluster.leader_of("flights", partition).connect()
        assert committed(reader, "flights", partition) == ([b"a"] if commits else [])


def shut_down(cluster, broker_id):
    """Ask the controller to move what a broker leads; return the partitions that it leads still."""
    node = cluster.nodes[broker_id]
    answers = []
    request = ControlledShutdownRequest(broker_id=broker_id, broker_epoch=node.member.broker_epoch)
    controller = node.member.image.controller_id
    node.member.peers.ask(controller, request, lambda response, now: answers.append(response), cluster.now)
    cluster.settle()
    (response,) = answers
    assert response.error_code == 0
    return [(row.topic_name, row.partition_index) for row in response.remaining_partitions]


def test_a_broker_that_stops_hands_its_leaders_over_first():
    cluster = ReplicatedCluster()
    cluster.create("flights", partitions=2)
    cluster.produce("flights", b"a")
    assert shut_down(cluster, 1) == []
    assert cluster.leader("flights") == cluster.leader("flights", 1) == 2
    assert cluster.isr("flights") == (2, 3)
    assert cluster.produce("flights", b"b") == (ErrorCode.NONE, 1)
    cluster.nodes[1].broker.services.close()
    cluster.kill_and_expire(1)
    assert cluster.produce("flights", b"c") == (ErrorCode.NONE, 2)
    cluster.restart(1)
    cluster.later(3_000)
    assert set(cluster.isr("flights")) == {1, 2, 3}
    assert cluster.ends("flights") == {1: 3, 2: 3, 3: 3}


def test_a_request_that_waits_for_replicas_fails_when_its_leader_is_replaced():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.cut_pairs = {(3, 1)}
    client = cluster.client(1)
    client.send(PRODUCE, 9, produce_request("flights", b"a", acks=-1))
    cluster.later(1_000)
    assert not client.replies()
    cluster.cut_pairs = set()
    shut_down(cluster, 1)
    ((_, answer),) = client.replies()
    assert answer[0].error_code in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_a_lower_min_isr_commits_what_waited():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.kill_and_expire(2)
    cluster.kill_and_expire(3)
    cluster.produce("flights", b"a", acks=1)
    assert cluster.consume("flights") == []
    assert alter(cluster, 1, 2, "flights", min_insync_replicas=1) == 0
    cluster.later(2_000)
    assert cluster.consume("flights") == [b"a"]
