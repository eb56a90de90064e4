"""Verification (KIP-890) when another broker coordinates the transaction: the partition's leader asks that broker."""

import pytest

from broker.metadata.topic import NO_LEADER
from broker.produce.validate import PARTITIONS_AT_ONCE
from broker.wire import produce
from broker.wire.errors import ErrorCode
from idgen.layout import Layout
from idgen.worker import IdWorker
from tests.broker.engine_client import ADD_PARTITIONS_TO_TXN, PRODUCE, WRITE_TXN_MARKERS, batch_of
from tests.broker.peers import ClusterProducer, PeerCluster
from tests.broker.transactional import committed


@pytest.fixture
def cluster():
    cluster = PeerCluster()
    cluster.create("flights", (1, 2, 3))
    return cluster


@pytest.fixture
def producer(cluster):
    producer = ClusterProducer(cluster)
    assert producer.init() == 0
    return producer


@pytest.fixture
def remote(cluster):
    """Return the partitions that the transaction's coordinator does not lead."""
    coordinator = cluster.coordinator_of("payments")
    return [partition for partition in range(3) if cluster.leader_of("flights", partition) is not coordinator]


def questions(cluster):
    """Return how many requests with questions were delivered."""
    return cluster.delivered[ADD_PARTITIONS_TO_TXN]


def end_of(cluster, partition):
    return cluster.leader_of("flights", partition).services.log_of("flights", partition).log_end_offset


def send_batch(producer, cluster, partition, value, sequence=0, client=None):
    """Send a batch without waiting for its answer; return the client."""
    client = client or cluster.leader_of("flights", partition).connect()
    batch = batch_of(
        value, producer_id=producer.id, producer_epoch=producer.epoch, base_sequence=sequence, transactional=True
    )
    records = [("flights", partition, memoryview(batch))]
    client.send(PRODUCE, 12, produce.ProduceRequest("payments", -1, 30_000, records, False))
    return client


def codes(client):
    return [result.error_code for _, results in client.replies() for result in results]


def test_a_batch_is_refused_before_its_partition_is_added_and_accepted_afterwards(cluster, producer, remote):
    partition = remote[0]
    assert producer.add(("flights", remote[1])) == 0
    assert producer.send("flights", b"a", partition=partition) == ErrorCode.TRANSACTION_ABORTABLE
    assert producer.send("flights", b"a", partition=partition, version=10) == ErrorCode.INVALID_TXN_STATE
    assert end_of(cluster, partition) == 0
    producer.write("flights", b"a", partition=partition)
    assert producer.end(True) == 0
    assert committed(cluster.leader_of("flights", partition).connect(), "flights", partition) == [b"a"]


def test_each_transaction_asks_once_for_each_partition(cluster, producer, remote):
    for transaction in (1, 2):
        for partition in range(3):
            producer.add(("flights", partition))
            for value in (b"a", b"b"):
                assert producer.send("flights", value, partition=partition) == 0
        assert questions(cluster) == 2 * transaction
        assert producer.end(True) == 0


def test_the_partitions_of_a_request_are_asked_about_together(cluster, producer, remote):
    leader = cluster.leader_of("flights", remote[0])
    cluster.create("wide", (leader.node_id,) * 3)
    assert producer.add(("wide", 0), ("wide", 2)) == 0
    fields = {"producer_id": producer.id, "producer_epoch": producer.epoch, "base_sequence": 0, "transactional": True}
    records = [("wide", partition, memoryview(batch_of(b"a", **fields))) for partition in range(3)]
    results = leader.connect().ask(PRODUCE, 12, produce.ProduceRequest("payments", -1, 30_000, records, False))
    assert [result.error_code for result in results] == [0, ErrorCode.TRANSACTION_ABORTABLE, 0]
    assert questions(cluster) == 1


def test_a_request_for_very_many_partitions_is_asked_about_in_parts(cluster, producer, remote):
    leader, number = cluster.leader_of("flights", remote[0]), PARTITIONS_AT_ONCE + 20
    cluster.create("wide", (leader.node_id,) * number)
    assert producer.add(*(("wide", partition) for partition in range(number))) == 0
    fields = {"producer_id": producer.id, "producer_epoch": producer.epoch, "base_sequence": 0, "transactional": True}
    records = [("wide", partition, memoryview(batch_of(b"a", **fields))) for partition in range(number)]
    client = leader.connect()
    client.send(PRODUCE, 12, produce.ProduceRequest("payments", -1, 30_000, records, False))
    cluster.later(100)
    assert codes(client) == [0] * number and questions(cluster) == 2


@pytest.fixture
def wide(cluster, remote):
    """Return the leader of all partitions of the topic `wide`; another broker coordinates the transaction."""
    leader = cluster.leader_of("flights", remote[0])
    cluster.create("wide", (leader.node_id,) * 3)
    return leader


def send_together(producer, leader, *requests, behind=b""):
    """Send a request for each (partition, sequence) of `wide`, and the bytes behind them, in one turn of the leader.

    Return the client.
    """
    client = leader.connect()
    with leader.turn():
        for partition, sequence in requests:
            fields = {"producer_id": producer.id, "producer_epoch": producer.epoch, "base_sequence": sequence}
            batch = memoryview(batch_of(b"a", transactional=True, **fields))
            request = produce.ProduceRequest("payments", -1, 30_000, [("wide", partition, batch)], False)
            client.send(PRODUCE, 12, request)
        if behind:
            client.feed(behind)
    return client


def test_requests_that_follow_on_a_connection_are_asked_about_together(cluster, producer, wide):
    producer.add(*(("wide", partition) for partition in range(3)))
    client = send_together(producer, wide, (0, 0), (1, 0), (2, 0), (0, 1))
    assert codes(client) == [0] * 4 and questions(cluster) == 1
    assert [wide.services.log_of("wide", partition).log_end_offset for partition in range(3)] == [2, 1, 1]


def test_a_request_that_follows_is_refused_by_itself(cluster, producer, wide):
    producer.add(("wide", 0), ("wide", 2))
    client = send_together(producer, wide, (0, 0), (1, 0), (2, 0))
    assert codes(client) == [0, ErrorCode.TRANSACTION_ABORTABLE, 0] and questions(cluster) == 1


def test_an_answer_about_a_request_that_follows_does_not_let_it_in_after_an_abort(cluster, producer, wide):
    producer.add(("wide", 0), ("wide", 1))
    cluster.holds_answer = lambda call: call.request.__api_key__ == ADD_PARTITIONS_TO_TXN
    client = send_together(producer, wide, (0, 0), (1, 0))
    assert producer.end(False) == 0
    ends = [wide.services.log_of("wide", partition).log_end_offset for partition in (0, 1)]
    cluster.release()
    assert codes(client) == [ErrorCode.TRANSACTION_ABORTABLE] * 2
    assert [wide.services.log_of("wide", partition).log_end_offset for partition in (0, 1)] == ends


def test_a_request_that_follows_leaves_nothing_behind_when_its_connection_is_closed(cluster, producer, wide):
    producer.add(("wide", 0), ("wide", 1))
    cluster.holds = lambda call: True
    client = send_together(producer, wide, (0, 0), (1, 0))
    wide.engine.closed(client.conn)
    cluster.release()
    assert [wide.services.log_of("wide", partition).log_end_offset for partition in (0, 1)] == [0, 0]
    assert codes(send_together(producer, wide, (1, 0))) == [0] and questions(cluster) == 1


@pytest.mark.parametrize("body", [b"", b"\x00\x00\x00\x01\xff\xff", b"\x00\x00\x00\x01\xff\xff\x80"])
def test_a_request_that_is_cut_short_closes_the_connection_after_the_answer_before_it(cluster, producer, wide, body):
    producer.add(("wide", 0))
    frame = b"\x00\x00\x00\x0c" + body
    client = send_together(producer, wide, (0, 0), behind=len(frame).to_bytes(4, "big") + frame)
    assert codes(client) == [0] and client.conn.close_reason is not None


def test_a_fenced_producer_and_an_unknown_one_are_refused(cluster, producer, remote):
    producer.add(("flights", remote[0]))
    late = ClusterProducer(cluster)
    late.id, late.epoch = producer.id, producer.epoch
    assert producer.end(True) == producer.init() == 0
    assert late.send("flights", b"a", partition=remote[0]) == ErrorCode.INVALID_PRODUCER_EPOCH
    late.id = 7
    assert late.send("flights", b"a", partition=remote[0]) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("lost", ["lost_requests", "lost_answers"])
def test_a_batch_is_retried_when_the_question_or_its_answer_is_lost(cluster, producer, remote, lost):
    producer.add(("flights", remote[0]))
    getattr(cluster, lost)[ADD_PARTITIONS_TO_TXN] = 1
    assert producer.send("flights", b"a", partition=remote[0]) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert producer.send("flights", b"a", partition=remote[0]) == 0


def test_a_batch_is_retried_while_its_transaction_has_no_coordinator(cluster, producer, remote):
    producer.add(("flights", remote[0]))
    dead = cluster.kill(cluster.coordinator_of("payments").node_id)
    assert producer.send("flights", b"a", partition=remote[0]) == ErrorCode.NOT_ENOUGH_REPLICAS
    cluster.restart(dead)
    assert producer.send("flights", b"a", partition=remote[0]) == 0
    producer.find_coordinator()
    assert producer.end(True) == 0


def test_a_coordinator_that_dies_before_it_answers_lets_the_batch_be_retried(cluster, producer, remote):
    producer.add(("flights", remote[0]))
    cluster.holds = lambda call: True
    client = send_batch(producer, cluster, remote[0], b"a")
    assert codes(client) == []
    cluster.kill(cluster.coordinator_of("payments").node_id)
    assert codes(client) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert end_of(cluster, remote[0]) == 0


def test_a_coordinator_that_never_answers_does_not_hold_the_batch_for_ever(cluster, producer, remote):
    producer.add(("flights", remote[0]))
    cluster.holds = lambda call: True
    client = send_batch(producer, cluster, remote[0], b"a")
    cluster.later(30_000)
    assert codes(client) == [ErrorCode.NOT_ENOUGH_REPLICAS]


def test_an_answer_from_before_an_abort_does_not_let_the_batch_in_after_it(cluster, producer, remote):
    partition = remote[0]
    producer.add(("flights", partition))
    cluster.holds_answer = lambda call: call.request.__api_key__ == ADD_PARTITIONS_TO_TXN
    client = send_batch(producer, cluster, partition, b"late")
    assert producer.end(False) == 0 and cluster.delivered[WRITE_TXN_MARKERS] > 0
    end = end_of(cluster, partition)
    assert len(cluster.held_answers) == 1 and codes(client) == []
    cluster.release()
    assert codes(client) == [ErrorCode.TRANSACTION_ABORTABLE]
    assert end_of(cluster, partition) == end and questions(cluster) == 2


def test_a_verified_partition_is_asked_about_again_after_a_marker(cluster, producer, remote):
    """The batch waits for ids after it was verified, and a marker comes between."""
    partition = remote[0]
    producer.add(("flights", partition))
    leader = cluster.leader_of("flights", partition)
    without_ids = IdWorker(Layout(), 9, start_ms=leader.now.wall_ms, limit_ms=leader.now.wall_ms)
    worker, leader.worker = leader.worker, without_ids
    client = send_batch(producer, cluster, partition, b"late")
    assert codes(client) == [] and questions(cluster) == 1
    leader.worker = worker
    assert producer.end(False) == 0 and cluster.delivered[WRITE_TXN_MARKERS] > 0
    cluster.later(5_000)
    assert codes(client) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert committed(leader.connect(), "flights", partition) == []


def test_a_later_batch_is_not_appended_before_the_first_one(cluster, producer, remote):
    """Otherwise the retry of the first would be out of order for ever."""
    partition = remote[0]
    producer.add(("flights", partition))
    cluster.lost_requests[ADD_PARTITIONS_TO_TXN] = 1
    client = send_batch(producer, cluster, partition, b"a", 0)
    assert codes(client) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    send_batch(producer, cluster, partition, b"b", 1, client)
    assert codes(client) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    send_batch(producer, cluster, partition, b"a", 0, client)
    send_batch(producer, cluster, partition, b"b", 1, client)
    assert codes(client) == [0, 0]


def test_later_requests_of_the_connection_wait_for_the_answer(cluster, producer, remote):
    partition = remote[0]
    producer.add(("flights", partition))
    cluster.holds = lambda call: True
    client = send_batch(producer, cluster, partition, b"a", 0)
    send_batch(producer, cluster, partition, b"b", 1, client)
    assert codes(client) == [] and len(cluster.held) == 1
    cluster.release()
    assert codes(client) == [0, 0] and questions(cluster) == 1


def test_a_connection_that_is_closed_while_it_waits_leaves_nothing_behind(cluster, producer, remote):
    partition = remote[0]
    producer.add(("flights", partition))
    cluster.holds = lambda call: True
    client = send_batch(producer, cluster, partition, b"a")
    client.broker.engine.closed(client.conn)
    cluster.release()
    assert end_of(cluster, partition) == 0
    assert producer.send("flights", b"a", partition=partition) == 0 and questions(cluster) == 1


def test_two_producers_with_one_transactional_id_are_not_mistaken_for_each_other(cluster, producer, remote):
    partition = remote[0]
    producer.add(("flights", partition))
    other = ClusterProducer(cluster)
    other.id, other.epoch = producer.id + 1, producer.epoch
    leader = cluster.leader_of("flights", partition)
    clients = leader.connect(), leader.connect()
    with leader.turn():
        for sender, client in zip((producer, other), clients, strict=True):
            send_batch(sender, cluster, partition, b"a", 0, client)
    assert [codes(client) for client in clients] == [[ErrorCode.NOT_ENOUGH_REPLICAS]] * 2
    assert producer.send("flights", b"a", partition=partition) == 0
    assert other.send("flights", b"a", partition=partition) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_the_question_of_a_later_epoch_replaces_that_of_an_earlier(cluster, producer, remote):
    partition = remote[0]
    producer.add(("flights", partition))
    cluster.holds = lambda call: call.request.__api_key__ == ADD_PARTITIONS_TO_TXN
    earlier = send_batch(producer, cluster, partition, b"a")
    assert producer.end(True) == producer.init() == producer.add(("flights", partition)) == 0
    later = send_batch(producer, cluster, partition, b"b")
    assert len(cluster.held) == 2
    cluster.release()
    assert codes(later) == [0]
    assert codes(earlier)[0] in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.INVALID_PRODUCER_EPOCH)


def test_a_partition_of_the_coordinators_own_broker_is_verified_without_a_request(cluster, producer, remote):
    (own,) = set(range(3)) - set(remote)
    producer.write("flights", b"a", partition=own)
    assert questions(cluster) == 0


# --- offsets ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def group(cluster):
    """Return a group that another broker coordinates than the transaction."""
    own = cluster.coordinator_of("payments")
    return next(name for name in map(str, range(99)) if cluster.group_coordinator_of(name) is not own)


def test_offsets_are_committed_if_their_group_was_added(cluster, producer, group):
    producer.add(("flights", 0))
    assert producer.commit_offset(group, "flights", 5) == ErrorCode.TRANSACTION_ABORTABLE
    assert producer.add_offsets(group) == 0
    assert producer.commit_offset(group, "flights", 5) == 0
    assert producer.commit_offset(group, "flights", 6) == 0
    assert questions(cluster) == 2
    assert producer.end(True) == 0
    offsets = cluster.group_coordinator_of(group).services.coordinators.group_offsets()
    assert (group, "flights", 0, 6) in list(offsets)


def test_a_commit_is_retried_while_the_transactions_coordinator_does_not_answer(cluster, producer, group):
    producer.add_offsets(group)
    cluster.lost_answers[ADD_PARTITIONS_TO_TXN] = 1
    assert producer.commit_offset(group, "flights", 5) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert producer.commit_offset(group, "flights", 5) == 0


def test_a_commit_is_retried_while_the_transaction_has_no_coordinator(cluster, producer, group):
    producer.add_offsets(group)
    for partition in range(3):
        cluster.lead("__transaction_state", partition, NO_LEADER)
    assert producer.commit_offset(group, "flights", 5) == ErrorCode.COORDINATOR_NOT_AVAILABLE
