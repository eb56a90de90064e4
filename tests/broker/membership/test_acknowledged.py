"""What an answer to acks=all promises, when leaders, epochs and disks change while the request waits."""

from broker.cluster.documents import TopicPartition
from broker.metadata.topic import NO_LEADER
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import PRODUCE, produce_request
from tests.broker.membership.cluster_steps import alter
from tests.broker.membership.replicated_cluster import FETCHED_MS, ReplicatedCluster


def send(cluster, broker_id, value, topic="flights"):
    """Send a Produce with acks=all to a broker; return the client, which waits for the answer."""
    client = cluster.client(broker_id)
    client.send(PRODUCE, 9, produce_request(topic, value, acks=-1))
    cluster.later(1_000)
    return client


def errors(client):
    return [ErrorCode(result.error_code) for _, results in client.replies() for result in results]


def test_a_new_epoch_confirms_no_record_that_a_followers_disk_does_not_have():
    cluster = ReplicatedCluster()
    cluster.create("flights", flakelog_durable_acks="true")
    cluster.later(FETCHED_MS)
    cluster.nodes[3].broker.hold_syncs()
    client = send(cluster, 1, b"a")
    cluster.kill_and_expire(2)
    cluster.later(2_000)
    assert cluster.isr("flights") == (1, 3) and cluster.ends("flights") == {1: 1, 3: 1}
    assert not errors(client)
    cluster.nodes[3].broker.release()
    cluster.later(1_000)
    assert errors(client) == [ErrorCode.NONE]


def test_a_member_that_joins_the_isr_while_the_leader_waits_for_its_disk_must_have_the_record_too():
    cluster = ReplicatedCluster()
    cluster.create("flights", replicas=(2, 1), flakelog_visible_after_flush="true", min_insync_replicas=1)
    cluster.produce("flights", b"a")
    cluster.kill_and_expire(2)
    assert cluster.isr("flights") == (1,)
    cluster.nodes[1].broker.hold_syncs()
    client = send(cluster, 1, b"b")
    cluster.nodes[2].storage.free_bytes = 0
    cluster.restart(2)
    cluster.later(1_000)
    assert cluster.isr("flights") == (2, 1) and cluster.log(2, "flights").log_end_offset == 1
    cluster.nodes[1].broker.release()
    assert not errors(client)
    cluster.nodes[2].storage.free_bytes = None
    cluster.later(3_000)
    assert errors(client) == [ErrorCode.NONE] and cluster.log(2, "flights").log_end_offset == 2


def test_an_eligible_leader_whose_disk_has_failed_does_not_lead_after_its_restart():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.produce("flights", b"a")
    cluster.kill_and_expire(3)
    cluster.cut_pairs = {(2, 1)}
    cluster.later(FETCHED_MS)
    cluster.produce("flights", b"b", acks=1)
    cluster.later(30_000)
    assert cluster.isr("flights") == (1,) and elr(cluster) == (2,)
    cluster.log(2, "flights").take_offline("a sync failed: I/O error")
    cluster.later(2_000)
    cluster.kill_and_expire(2)
    cluster.restart(2)
    cluster.kill_and_expire(1)
    cluster.later(2_000)
    assert elr(cluster) == () and cluster.leader("flights") == NO_LEADER
    cluster.restart(1)
    cluster.later(2_000)
    assert cluster.leader("flights") == 1


def elr(cluster):
    return cluster.controller.member.controller.context.leadership[TopicPartition("flights", 0)].elr


def test_a_coordinators_decision_takes_effect_once_enough_copies_are_in_sync_again():
    """It is in the log, and stays there. While the ISR lacks members it counts as stored nowhere."""
    cluster = ReplicatedCluster(4)
    cluster.create("flights", replicas=(2, 3, 4), flakelog_durable_acks="true")
    cluster.kill_and_expire(4)
    cluster.later(2_000)
    leader = cluster.nodes[2].broker
    leader.hold_syncs()
    send(cluster, 2, b"a")
    log, decided = cluster.log(2, "flights"), []
    leader.services.coordinators.transactions.topic.once_stored(log, decided.append, cluster.now)
    assert alter(cluster, 1, 2, "flights", min_insync_replicas="3") == ErrorCode.NONE
    cluster.later(1_000)
    leader.release()
    cluster.later(1_000)
    assert cluster.isr("flights") == (2, 3) and not decided
    cluster.restart(4)
    cluster.later(3_000)
    assert cluster.isr("flights") == (2, 3, 4) and len(decided) == 1
