"""What becomes of partitions with several copies where `flakelog.replication.enable` is false."""

from broker.metadata.topic import NO_LEADER
from broker.wire.errors import ErrorCode
from tests.broker.membership.replicated_cluster import ReplicatedCluster


def restart(cluster, broker_id, *, replicates):
    before = cluster.settings
    cluster.settings = before | {"replication_enable": replicates}
    cluster.restart(broker_id)
    cluster.settings = before
    cluster.later(3_000)


def test_a_broker_that_does_not_replicate_leads_no_partition_with_several_copies_and_says_why():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.create("alone", replicas=(1,), min_insync_replicas=1)
    cluster.produce("flights", b"a")
    for broker_id in (2, 3, 1):
        cluster.stop(broker_id)
    for broker_id in (1, 2, 3):
        restart(cluster, broker_id, replicates=False)
    assert cluster.leader("flights") == NO_LEADER
    assert cluster.produce("alone", b"a") == (ErrorCode.NONE, 0)
    assert [line for line in cluster.nodes[1].reported if "set it to true" in line]


def test_others_lead_in_its_place():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.produce("flights", b"a")
    cluster.stop(1)
    restart(cluster, 1, replicates=False)
    assert cluster.leader("flights") == 2 and cluster.produce("flights", b"b") == (ErrorCode.NONE, 1)
    cluster.create("new")
    cluster.later(1_000)
    assert cluster.leader("new") == 2 and cluster.produce("new", b"a") == (ErrorCode.NONE, 0)
    cluster.stop(1)
    restart(cluster, 1, replicates=True)
    cluster.later(20_000)
    assert set(cluster.isr("flights")) == set(cluster.isr("new")) == {1, 2, 3}


def test_its_clean_stop_does_not_make_data_whole_that_a_power_cut_took_before():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.produce("flights", b"a")
    cluster.later(5_000)
    cluster.cut_power(3)
    cluster.expire(3)
    controller = cluster.controller.id
    cluster.cut_pairs = {(controller, 3)}
    restart(cluster, 3, replicates=False)
    cluster.stop(3)
    restart(cluster, 3, replicates=True)
    assert not cluster.controller.member.controller.context.brokers[3].life.whole
