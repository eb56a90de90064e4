"""Where the copies of a cluster's partitions are and which of them fail, as `find_placement` asks the brokers."""

import pytest

from broker.client.blocking import Client
from broker.client.connection import ClientConnection
from broker.client.errors import Unreachable
from flakelog.commands.cluster import disk_cell, why_waiting
from flakelog.operations.cluster import Cluster
from flakelog.operations.partitions import Replicas
from flakelog.operations.placement import find_placement, placement_of
from flakelog.operations.replica_details import ReplicaDetails
from tests.broker.engine_cluster import EngineCluster
from tests.broker.membership.replicated_cluster import FETCHED_MS, ReplicatedCluster

FLIGHTS = ("flights", 0)


class ClusterClient(Client):
    """The blocking client of a cluster in memory."""

    def __init__(self, cluster):
        super().__init__(",".join(f"localhost:{9_000 + broker_id}" for broker_id in cluster.nodes))
        self._cluster = cluster
        self._connections = {}

    def give_up(self, address):
        self._connections.pop(address, None)

    def send(self, exchange):
        node = self._cluster.nodes[exchange.address.port - 9_000]
        if not node.is_alive:
            raise Unreachable(exchange.address, "it is dead")
        connection = self._connections.get(exchange.address)
        if connection is None:
            connection = self._cluster.client(node.id), ClientConnection("placement")
            self._connections[exchange.address] = connection
        peer, frames = connection
        peer.feed(frames.request(exchange)[1])
        self._cluster.settle()

    def receive(self, address):
        peer, frames = self._connections[address]
        size = 4 + int.from_bytes(peer.received[:4], "big")
        frame = memoryview(bytes(peer.received[4:size]))
        del peer.received[:size]
        return frames.take(frame).body


@pytest.fixture
def cluster():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.later(FETCHED_MS)
    return cluster


def placement(cluster):
    return find_placement(ClusterClient(cluster))


def flights(cluster):
    return next(partition for partition in placement(cluster).placed if partition.topic == "flights")


def failures(partition):
    """Return the filters of `flakelog cluster describe` that list a partition."""
    states = {
        "under-replicated": partition.is_under_replicated,
        "under-min-isr": partition.is_under_min_isr,
        "at-min-isr": partition.is_at_min_isr,
        "offline": partition.is_offline,
    }
    return [name for name, is_so in states.items() if is_so]


def test_a_partition_has_its_copies_its_minimum_and_the_lag_of_each_follower(cluster):
    partition = flights(cluster)
    assert partition.nodes == Replicas(1, 0, (1, 2, 3), (1, 2, 3), ())
    assert (partition.leader, partition.preferred_leader, partition.eligible_leaders) == (1, 1, ())
    assert (partition.min_in_sync, partition.lags) == (2, {2: 0, 3: 0})
    assert failures(partition) == [] and placement(cluster).has_copies


def test_without_one_copy_a_partition_is_at_the_minimum(cluster):
    cluster.kill_and_expire(3)
    partition = flights(cluster)
    assert partition.nodes.offline == (3,) and partition.nodes.in_sync == (1, 2)
    assert failures(partition) == ["under-replicated", "at-min-isr"]


def test_with_too_few_in_sync_it_is_under_the_minimum_and_names_the_eligible_leaders(cluster):
    cluster.kill_and_expire(3)
    cluster.kill_and_expire(2)
    partition = flights(cluster)
    assert failures(partition) == ["under-replicated", "under-min-isr"]
    assert partition.eligible_leaders == (2,)


def test_after_a_failover_another_than_the_preferred_broker_leads(cluster):
    cluster.kill_and_expire(1)
    partition = flights(cluster)
    assert (partition.leader, partition.preferred_leader) == (2, 1)


def test_a_follower_that_does_not_reach_its_leader_has_no_known_lag(cluster):
    cluster.cut_pairs = {(3, 1)}
    cluster.later(FETCHED_MS)
    assert flights(cluster).lags == {2: 0}
    cluster.cut_pairs = set()
    cluster.later(3_000)
    assert flights(cluster).lags == {2: 0, 3: 0}


def test_a_partition_without_a_leader_is_offline_and_under_the_minimum(cluster):
    """Its last leader stays in the ISR as of Kafka 3.9, and is not named as an eligible leader beside."""
    cluster.create("pair", replicas=(3, 2), min_insync_replicas=1)
    cluster.kill_and_expire(2)
    cluster.kill_and_expire(3)
    (pair,) = [partition for partition in placement(cluster).placed if partition.topic == "pair"]
    assert failures(pair) == ["under-replicated", "under-min-isr", "at-min-isr", "offline"]
    assert pair.leader is None and pair.lags == {}
    assert (pair.nodes.in_sync, pair.eligible_leaders) == ((3,), ())


def test_many_partitions_take_several_answers(cluster, monkeypatch):
    monkeypatch.setattr("flakelog.operations.replica_details.PARTITIONS_AT_ONCE", 2)
    cluster.create("storms", partitions=5)
    placed = placement(cluster).placed
    assert [partition.name for partition in placed] == ["flights-0", *(f"storms-{number}" for number in range(5))]
    assert all(partition.eligible_leaders == () for partition in placed)


def test_a_coordinators_topic_with_one_copy_is_named_where_it_could_have_more():
    replicated = ReplicatedCluster(offsets_topic_replication_factor=1)
    replicated.group_coordinator_of("readers")
    assert placement(replicated).coordinators_with_one_copy == ("__consumer_offsets",)
    single = EngineCluster(3, offsets_topic_num_partitions=1)
    single.group_coordinator_of("readers")
    assert placement(single).coordinators_with_one_copy == ()


def test_single_copies_are_described_without_asking_more():
    cluster = EngineCluster(3)
    cluster.create("flights", 3)
    placed = placement(cluster).placed
    assert [(partition.leader, partition.min_in_sync, partition.lags) for partition in placed] == [
        (1, 1, {}), (2, 1, {}), (3, 1, {})
    ]  # fmt: skip
    assert not placement(cluster).has_copies
    assert all(failures(partition) == ["at-min-isr"] for partition in placed)


def test_a_minimum_above_the_number_of_copies_counts_as_all_copies():
    details = ReplicaDetails(min_in_sync={"flights": 5})
    nodes = {FLIGHTS: Replicas(1, 0, (1, 2), (1, 2))}
    (partition,) = placement_of(Cluster("c", 1, ()), nodes, details).placed
    assert partition.min_in_sync == 2 and failures(partition) == ["at-min-isr"]


def test_a_table_of_disks_counts_partitions_in_full_and_gives_bytes_a_unit():
    assert [disk_cell("partitions", 3_034), disk_cell("usable_bytes", 3_034)] == [3_034, "3.0 kB"]
    assert [disk_cell("total_bytes", None), disk_cell("error", None), disk_cell("bytes", 7)] == [None, None, 7]


def test_the_cluster_is_described_while_its_controller_is_dead_and_still_registered(cluster):
    client = ClusterClient(cluster)
    find_placement(client)
    cluster.kill(cluster.controller.id)
    placed = find_placement(client)
    assert placed.controller == 1 and placed.partitions == 1
    assert placed.placed[0].lags == {}, "its leader was the same broker"


def test_an_offline_partition_names_the_live_brokers_that_may_lack_records_and_those_it_waits_for(cluster):
    for broker_id in (1, 3):
        cluster.cut_power(broker_id)
    cluster.kill(2)
    for broker_id in (1, 2, 3):
        cluster.expire(broker_id)
    cluster.restart(1)
    cluster.restart(3)
    cluster.later(3_000)
    partition = flights(cluster)
    assert (partition.is_offline, partition.untrusted, partition.waits_for) == (True, (1, 3), (2,))
    problems = placement(cluster).problems[cluster.controller.id]
    reason = why_waiting(partition, problems)
    assert reason == "flights-0 waits for broker 2: brokers 1, 3 may lack records since an unclean stop"
    cluster.restart(2)
    cluster.later(3_000)
    partition = flights(cluster)
    assert (partition.is_offline, partition.untrusted, partition.waits_for) == (False, (), ())


def test_a_partition_whose_leader_has_just_died_is_not_said_to_lack_records():
    """In the seconds before the controller elects, its ISR is whole: an unclean election would lose records."""
    nodes = {FLIGHTS: Replicas(-1, 0, (1, 2, 3), (1, 2, 3), offline=(2,))}
    (partition,) = placement_of(Cluster("c", 1, ()), nodes).placed
    others = "pair-0 has no leader: broker 3 may lack records since an unclean stop, and broker 2 may have them"
    for problems in ((), (others,)):
        assert why_waiting(partition, problems).startswith("flights-0 has no leader now: an election is under way")
