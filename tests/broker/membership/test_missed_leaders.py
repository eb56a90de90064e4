"""A leader that did not hear of the one between its epochs: what it counts on when it leads again (rule E4)."""

from tests.broker.engine_client import ELECT_LEADERS
from tests.broker.membership.replicated_cluster import FETCHED_MS, ReplicatedCluster

CONTROLLER, PREFERRED, LEADER, FOLLOWER = 1, 2, 3, 4


def led_by_the_second():
    """Return a cluster whose partition is led by its second replica, while the first is in sync too."""
    cluster = ReplicatedCluster(4, auto_leader_rebalance_enable=False)
    assert cluster.controller.id == CONTROLLER
    cluster.create("flights", replicas=(PREFERRED, LEADER, FOLLOWER))
    cluster.kill_and_expire(PREFERRED)
    cluster.restart(PREFERRED)
    cluster.later(5_000)
    assert cluster.leader("flights") == LEADER and set(cluster.isr("flights")) == {PREFERRED, LEADER, FOLLOWER}
    return cluster


def elect_preferred(cluster):
    partitions = [{"topic": "flights", "partitions": [0]}]
    fields = {"election_type": 0, "topic_partitions": partitions, "timeout": 30_000}
    client = cluster.client(CONTROLLER)
    client.send(ELECT_LEADERS, 2, fields)
    cluster.later(FETCHED_MS)


def ends(cluster):
    brokers = [broker_id for broker_id in (PREFERRED, LEADER, FOLLOWER) if cluster.nodes[broker_id].is_alive]
    return {broker_id: cluster.log(broker_id, "flights").log_end_offset for broker_id in brokers}


def test_e4_a_leader_that_missed_another_counts_on_no_end_that_its_followers_had_before():
    """The follower had two records, and dropped them for the one of the leader between."""
    cluster = led_by_the_second()
    cluster.cut_pairs = {(PREFERRED, LEADER), (CONTROLLER, LEADER)}
    cluster.later(FETCHED_MS)
    cluster.produce("flights", b"a", acks=1), cluster.produce("flights", b"b", acks=1)
    cluster.later(FETCHED_MS)
    assert ends(cluster) == {PREFERRED: 0, LEADER: 2, FOLLOWER: 2}
    elect_preferred(cluster)
    cluster.produce("flights", b"between", acks=1)
    cluster.later(FETCHED_MS)
    assert ends(cluster) == {PREFERRED: 1, LEADER: 2, FOLLOWER: 1}
    cluster.cut_pairs |= {(FOLLOWER, LEADER)}
    cluster.kill_and_expire(PREFERRED)
    assert cluster.leader("flights") == LEADER
    cluster.kill_and_expire(CONTROLLER)  # it has told the leader of neither decision
    assert cluster.controller.id == LEADER
    cluster.later(FETCHED_MS)
    assert cluster.log(LEADER, "flights").high_watermark == 0, "the follower has not fetched in this epoch"
    cluster.cut_pairs = set()
    cluster.later(5_000)
    assert ends(cluster) == {LEADER: 2, FOLLOWER: 2} and cluster.consume("flights") == [b"a", b"b"]
