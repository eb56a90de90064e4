"""Rule S6: a broker that stops has its leaders moved, and holds up no producer until its session ends."""

from broker.wire.errors import ErrorCode
from broker.wire.inter_broker import ControlledShutdownRequest
from tests.broker.engine_client import PRODUCE, produce_request
from tests.broker.membership.replicated_cluster import ReplicatedCluster

JOINED_MS = 5_000
RETRIED_MS = 1_500
"""Within this time a leader has proposed again an ISR that the controller refused."""


def leave(cluster, broker_id):
    """Have the controller move what a broker leads, as its stop does. Return the number of partitions that it keeps."""
    member, answers = cluster.nodes[broker_id].member, []
    member.leave()
    request = ControlledShutdownRequest(broker_id=broker_id, broker_epoch=member.broker_epoch)
    controller_id = member.image.controller_id
    member.peers.ask(controller_id, request, lambda answer, now: answers.append(answer), cluster.now, timeout_ms=30_000)
    cluster.settle()
    (answer,) = answers
    assert not answer.error_code
    return len(answer.remaining_partitions)


def test_a_broker_that_leaves_copies_nothing_more_of_what_it_has_led():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.later(JOINED_MS)
    assert leave(cluster, 1) == 0 and cluster.isr("flights") == (2, 3)
    assert cluster.produce("flights", b"a") == (ErrorCode.NONE, 0)
    cluster.later(JOINED_MS)
    assert cluster.ends("flights") == {1: 0, 2: 1, 3: 1}


def test_a_controller_that_leaves_holds_up_no_producer_until_its_session_ends():
    """A leader that proposed the broker for the ISR would wait for an answer, and for the broker to copy more."""
    cluster = ReplicatedCluster()
    leaving = cluster.controller.id
    others = [broker_id for broker_id in (1, 2, 3) if broker_id != leaving]
    cluster.create("flights", replicas=(leaving, *others))
    cluster.later(JOINED_MS)
    assert leave(cluster, leaving) == 0
    leader = cluster.leader("flights")
    cluster.nodes[leaving].member.controller.stop(cluster.now)
    cluster.later(RETRIED_MS)
    cluster.cut_pairs = {(leaving, leader), (leader, leaving)}
    cluster.later(JOINED_MS)
    client = cluster.nodes[leader].broker.connect(listener="CLIENTS")
    client.send(PRODUCE, 9, produce_request("flights", b"a", acks=-1))
    cluster.later(JOINED_MS)
    ((_, answer),) = client.replies()
    assert not answer[0].error_code
