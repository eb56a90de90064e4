"""Transactions over partitions of three brokers: each leader writes the markers of its partitions."""

import pytest

from broker.log.log_reader import aborted_transactions
from broker.metadata.change import Change
from broker.metadata.topic import NO_LEADER
from broker.services.due_actions import MARKERS_AT_ONCE
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import END_TXN, WRITE_TXN_MARKERS
from tests.broker.handlers.transaction_steps import state_of
from tests.broker.peers import ClusterProducer, PeerCluster
from tests.broker.transactional import committed

RETRY_MS = 1_000  # flakelog.transaction.marker.retry.ms


@pytest.fixture
def cluster():
    cluster = PeerCluster(transaction_partition_verification_enable=False)
    cluster.create("flights", (1, 2, 3))
    return cluster


@pytest.fixture
def producer(cluster):
    producer = ClusterProducer(cluster)
    assert producer.init() == 0
    return producer


def write_everywhere(producer, value):
    for partition in range(3):
        producer.write("flights", value, partition=partition)


def send_commit(producer):
    """Send an EndTxn without waiting for its answer."""
    fields = {"transactional_id": "payments", "producer_id": producer.id, "producer_epoch": producer.epoch}
    producer.client.send(END_TXN, 4, fields | {"committed": True})


def mark(cluster, partition, producer_id, epoch, coordinator_epoch):
    """Abort a producer's transaction in a partition, as another coordinator or an administrator does."""
    marker = {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": False,
        "coordinator_epoch": coordinator_epoch,
        "topics": [{"name": "flights", "partition_indexes": [partition]}],
    }
    client = cluster.leader_of("flights", partition).connect()
    return client.ask(WRITE_TXN_MARKERS, 1, {"markers": [marker]}).markers[0].topics[0].partitions[0].error_code


def committed_by_partition(cluster):
    return [committed(cluster.leader_of("flights", p).connect(), "flights", p) for p in range(3)]


def log_of(cluster, partition):
    return cluster.leader_of("flights", partition).services.log_of("flights", partition)


def stable(cluster, partitions=range(3)):
    """Return for each partition whether no transaction is open in it."""
    logs = [log_of(cluster, partition) for partition in partitions]
    return [log.last_stable_offset == log.log_end_offset for log in logs]


def state(cluster):
    return state_of(cluster.coordinator_of("payments"))


def other_partitions(cluster):
    """Return the partitions that the transaction's coordinator does not lead."""
    coordinator = cluster.coordinator_of("payments")
    return [partition for partition in range(3) if cluster.leader_of("flights", partition) is not coordinator]


def reports(cluster):
    return [line for broker in cluster.brokers.values() for line in broker.reported]


def test_a_commit_and_an_abort_reach_the_partitions_of_all_brokers(cluster, producer):
    write_everywhere(producer, b"kept")
    assert producer.end(True) == 0 and state(cluster) == "CompleteCommit"
    write_everywhere(producer, b"dropped")
    assert producer.end(False) == 0 and state(cluster) == "CompleteAbort"
    assert committed_by_partition(cluster) == [[b"kept"]] * 3
    assert stable(cluster) == [True] * 3


def test_the_markers_of_one_turn_share_a_request_to_each_broker(cluster):
    cluster.create("wide", (1, 2, 3) * 5)
    producer = ClusterProducer(cluster)
    producer.init()
    for partition in range(15):
        producer.write("wide", b"a", partition=partition)
    cluster.delivered.clear()
    assert producer.end(True) == 0
    assert cluster.delivered[WRITE_TXN_MARKERS] == 2


def test_a_request_has_no_more_markers_than_its_leader_writes_at_once(cluster):
    requests = []
    cluster.holds = lambda call: requests.append(call.request) is not None
    own = cluster.coordinator_of("payments").node_id
    cluster.create("wide", (own % 3 + 1,) * 2 * MARKERS_AT_ONCE)
    producer = ClusterProducer(cluster)
    producer.init()
    for partition in range(2 * MARKERS_AT_ONCE):
        producer.write("wide", b"a", partition=partition)
    send_commit(producer)
    cluster.later(100)
    sizes = [len(request.markers[0].topics[0].partition_indexes) for request in requests]
    assert sizes == [MARKERS_AT_ONCE, MARKERS_AT_ONCE] and state(cluster) == "CompleteCommit"


@pytest.mark.parametrize("lost", ["lost_requests", "lost_answers"])
def test_markers_are_tried_again_after_a_request_or_an_answer_is_lost_and_count_once(cluster, producer, lost):
    write_everywhere(producer, b"dropped")
    getattr(cluster, lost)[WRITE_TXN_MARKERS] = 2
    assert producer.end(False) == 0 and state(cluster) == "PrepareAbort"
    assert producer.add(("flights", 0)) == ErrorCode.CONCURRENT_TRANSACTIONS
    cluster.later(RETRY_MS)
    assert state(cluster) == "CompleteAbort" and stable(cluster) == [True] * 3
    write_everywhere(producer, b"kept")
    assert producer.end(True) == 0
    assert committed_by_partition(cluster) == [[b"kept"]] * 3
    assert [len(aborted_transactions(log_of(cluster, p), 0, 100)) for p in range(3)] == [1] * 3


def test_a_broker_that_does_not_answer_is_reported_once_and_holds_up_no_other_partition(cluster, producer):
    write_everywhere(producer, b"a")
    silent = other_partitions(cluster)[0]
    node_id = cluster.leader_of("flights", silent).node_id
    cluster.holds = lambda call: call.broker_id == node_id
    send_commit(producer)
    cluster.later(40_000)
    assert [is_stable for p, is_stable in enumerate(stable(cluster)) if p != silent] == [True, True]
    assert state(cluster) == "PrepareCommit"
    assert len([line for line in reports(cluster) if f"broker {node_id} does not answer" in line]) == 1
    cluster.release()
    cluster.later(40_000)
    assert state(cluster) == "CompleteCommit" and committed_by_partition(cluster) == [[b"a"]] * 3


def test_a_partition_without_a_leader_takes_its_marker_when_it_has_one_again(cluster, producer):
    write_everywhere(producer, b"a")
    partition = other_partitions(cluster)[0]
    node_id = cluster.leader_of("flights", partition).node_id
    cluster.lead("flights", partition, NO_LEADER)
    assert producer.end(True) == 0 and state(cluster) == "PrepareCommit"
    cluster.later(3 * RETRY_MS)
    assert state(cluster) == "PrepareCommit"
    assert len([line for line in reports(cluster) if "no live leader" in line]) == 1
    cluster.lead("flights", partition, node_id)
    cluster.later(RETRY_MS)
    assert state(cluster) == "CompleteCommit" and committed_by_partition(cluster) == [[b"a"]] * 3


def test_a_leader_that_dies_takes_its_markers_in_its_next_life(cluster, producer):
    write_everywhere(producer, b"a")
    dead = cluster.kill(cluster.leader_of("flights", other_partitions(cluster)[0]).node_id)
    assert producer.end(True) == 0 and state(cluster) == "PrepareCommit"
    cluster.restart(dead)
    cluster.later(RETRY_MS)
    assert state(cluster) == "CompleteCommit" and committed_by_partition(cluster) == [[b"a"]] * 3


def test_a_coordinator_that_dies_before_its_markers_were_written_goes_on_in_its_next_life(cluster, producer):
    write_everywhere(producer, b"a")
    cluster.holds = lambda call: True
    send_commit(producer)
    other = other_partitions(cluster)
    dead = cluster.kill(cluster.coordinator_of("payments").node_id)
    assert not any(stable(cluster, other))
    cluster.holds = lambda call: False
    cluster.held.clear()
    cluster.restart(dead)
    cluster.later(2 * RETRY_MS)
    assert state(cluster) == "CompleteCommit" and committed_by_partition(cluster) == [[b"a"]] * 3


def test_a_deleted_topic_needs_no_marker_and_one_that_its_broker_does_not_know_yet_does(cluster, producer):
    cluster.create("gone", (1, 2, 3))
    partition = other_partitions(cluster)[0]
    producer.write("flights", b"a", partition=partition)
    producer.write("gone", b"a", partition=partition)
    leader = cluster.leader_of("flights", partition)
    topic = leader.services.metadata.topic("flights")
    leader.services.metadata.apply([Change({"flights": None})])
    cluster.delete("gone")
    assert producer.end(True) == 0 and state(cluster) == "PrepareCommit"
    leader.services.metadata.apply([Change({"flights": topic})])
    cluster.later(RETRY_MS)
    assert state(cluster) == "CompleteCommit"
    assert committed(leader.connect(), "flights", partition) == [b"a"]


def test_a_fenced_coordinator_writes_no_marker_and_leaves_the_end_open(cluster, producer):
    partition = other_partitions(cluster)[0]
    producer.write("flights", b"a", partition=partition)
    log = log_of(cluster, partition)
    assert mark(cluster, partition, producer.id, producer.epoch, 7) == 0
    end = log.log_end_offset
    assert producer.end(True) == 0
    cluster.later(3 * RETRY_MS)
    assert state(cluster) == "PrepareCommit" and log.log_end_offset == end
    assert len([line for line in reports(cluster) if "TRANSACTION_COORDINATOR_FENCED" in line]) == 1


def test_a_marker_of_a_fenced_producer_is_settled(cluster, producer):
    partition = other_partitions(cluster)[0]
    producer.write("flights", b"a", partition=partition)
    assert mark(cluster, partition, producer.id, producer.epoch + 1, 0) == 0
    assert producer.end(True) == 0 and state(cluster) == "CompleteCommit"
