"""The metrics of partitions with several copies, over real engines: what each broker of a cluster shows."""

import pytest

from flakelog.console.overview import counters
from flakelog.metric_table import REPLICATION
from flakelog.replication_figures import replication_figures
from tests.broker.engine_cluster import EngineCluster
from tests.broker.membership.cluster_steps import delete
from tests.broker.membership.replicated_cluster import FETCHED_MS, ReplicatedCluster

LATE_MS = 25_000
"""By then a leader has found out that a follower does not fetch (replica.lag.time.max.ms is 10,000)."""


@pytest.fixture
def cluster():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    return cluster


def families(cluster, broker_id, partitions_max=100):
    services = cluster.nodes[broker_id].broker.services
    total = services.metrics.total(services.logs.all())
    return list(replication_figures(services, total, partitions_max))


def figures(cluster, broker_id, partitions_max=100):
    """Return {name: value}, and {name: {labels: value}} of figures with labels, without `flakelog_`."""
    figures = {}
    for family in families(cluster, broker_id, partitions_max):
        for sample in family.samples:
            name = sample.name.removeprefix("flakelog_")
            if sample.labels:
                figures.setdefault(name, {})[tuple(sample.labels.values())] = sample.value
            else:
                figures[name] = sample.value
    return figures


def shown(cluster, broker_id, *names):
    values = figures(cluster, broker_id)
    return tuple(values[name] for name in names)


def isr_states(cluster, broker_id):
    """Return how many partitions are (led, under-replicated, under min ISR, at min ISR)."""
    names = "partitions_led", "under_replicated_partitions", "under_min_isr_partitions", "at_min_isr_partitions"
    return shown(cluster, broker_id, *names)


def test_a_broker_has_exactly_the_metrics_of_the_table(cluster):
    names = {row.name.removesuffix("_total") for rows in REPLICATION.values() for row in rows}
    assert {family.name for family in families(cluster, 1)} == names


def test_a_cluster_without_replication_has_none_of_them():
    cluster = EngineCluster(3, replication_enable=False)
    cluster.create("flights")
    assert families(cluster, 1) == []


def test_the_leader_counts_partitions_by_the_state_of_their_isr(cluster):
    assert isr_states(cluster, 1) == (1, 0, 0, 0) and isr_states(cluster, 2) == (0, 0, 0, 0)
    cluster.kill_and_expire(3)
    assert isr_states(cluster, 1) == (1, 1, 0, 1)
    cluster.kill_and_expire(2)
    assert isr_states(cluster, 1) == (1, 1, 1, 0)
    cluster.restart(2)
    cluster.restart(3)
    cluster.later(3_000)
    assert isr_states(cluster, 1) == (1, 0, 0, 0)


def test_the_only_copy_of_a_partition_is_at_the_minimum_as_in_kafka(cluster):
    cluster.create("single", replicas=(2,), min_insync_replicas=1)
    assert isr_states(cluster, 2) == (1, 0, 0, 1)


def test_isrs_that_shrink_and_expand_are_counted_by_the_leader(cluster):
    names = "isr_shrinks_total", "isr_expands_total", "failed_isr_updates_total"
    cluster.cut_pairs = {(3, 1)}
    cluster.produce("flights", b"a", acks=1)
    cluster.later(LATE_MS)
    assert shown(cluster, 1, *names) == (1, 0, 0)
    cluster.cut_pairs = set()
    cluster.later(3_000)
    assert shown(cluster, 1, *names) == (1, 1, 0) and shown(cluster, 2, *names) == (0, 0, 0)


def test_an_isr_that_the_controller_gives_no_answer_to_is_a_failed_update():
    cluster = ReplicatedCluster()
    controller = cluster.controller.id
    leader, follower = (broker_id for broker_id in (1, 2, 3) if broker_id != controller)
    cluster.create("flights", replicas=(leader, follower, controller))
    cluster.cut_pairs = {(follower, leader), (leader, controller)}
    cluster.produce("flights", b"a", acks=1)
    cluster.later(LATE_MS)
    shrinks, failed = shown(cluster, leader, "isr_shrinks_total", "failed_isr_updates_total")
    assert shrinks == 0 and failed > 1


def test_the_controller_counts_the_leaders_that_may_lack_messages():
    cluster = ReplicatedCluster()
    controller = cluster.controller.id
    first, last = (broker_id for broker_id in (1, 2, 3) if broker_id != controller)
    cluster.create("flights", replicas=(first, last), min_insync_replicas=1, unclean_leader_election_enable="true")
    cluster.kill_and_expire(first)
    cluster.kill_and_expire(last)
    assert shown(cluster, controller, "unclean_leader_elections_total") == (0,)
    cluster.restart(first)
    assert shown(cluster, controller, "unclean_leader_elections_total") == (1,)


def test_followers_that_fetch_lag_by_nothing(cluster):
    cluster.produce("flights", b"a", b"b")
    cluster.later(FETCHED_MS)
    assert figures(cluster, 1)["follower_lag_messages"] == {("flights", "0", "2"): 0, ("flights", "0", "3"): 0}
    assert figures(cluster, 2)["fetcher_lag_messages"] == {("flights", "0"): 0}


def test_a_leader_shows_how_far_a_follower_is_behind(cluster):
    cluster.later(FETCHED_MS)
    cluster.cut_pairs = {(3, 1)}
    cluster.produce("flights", b"a", b"b", acks=1)
    assert figures(cluster, 1)["follower_lag_messages"] == {("flights", "0", "2"): 0, ("flights", "0", "3"): 2}


def test_lags_have_samples_for_a_limited_number_of_partitions(cluster):
    cluster.create("storms", partitions=3)
    cluster.later(FETCHED_MS)
    assert len(figures(cluster, 1, 2)["follower_lag_messages"]) == 2 * 2
    assert len(figures(cluster, 2, 2)["fetcher_lag_messages"]) == 2


def test_copies_count_as_bytes_of_replication_and_not_as_bytes_of_clients(cluster):
    cluster.produce("flights", b"a", b"b")
    cluster.consume("flights")
    totals = {}
    for broker_id in (1, 2, 3):
        services = cluster.nodes[broker_id].broker.services
        totals[broker_id] = services.metrics.total(services.logs.all())
    size = totals[1].bytes_in
    assert [totals[id].messages_in for id in (1, 2, 3)] == [2, 0, 0]
    assert [totals[id].bytes_in for id in (1, 2, 3)] == [size, 0, 0] and size > 0
    assert [totals[id].bytes_out for id in (1, 2, 3)] == [size, 0, 0]
    assert [counters(cluster.nodes[id].broker.engine)[0] for id in (1, 2, 3)] == [2, 0, 0], "as the console shows it"
    bytes_of_replication = "replication_in_bytes_total", "replication_out_bytes_total"
    assert shown(cluster, 1, *bytes_of_replication) == (0, 2 * size)
    assert shown(cluster, 2, *bytes_of_replication) == shown(cluster, 3, *bytes_of_replication) == (size, 0)


def test_a_log_that_is_truncated_takes_no_figure_with_it(cluster):
    """A counter that falls would look like a start of the server, and the next scrape like a burst."""
    cluster.cut_pairs = {(2, 1)}
    cluster.produce("flights", b"only broker 3 copies it", acks=1)
    cluster.later(FETCHED_MS)
    copied = shown(cluster, 3, "replication_in_bytes_total")
    cluster.kill_and_expire(1)
    cluster.later(5_000)
    assert cluster.leader("flights") == 2 and cluster.ends("flights") == {2: 0, 3: 0}
    assert shown(cluster, 3, "replication_in_bytes_total") == copied > (0,)


def test_the_controller_counts_what_concerns_the_whole_cluster(cluster):
    names = "active_controller", "controller_offline_partitions", "controller_preferred_replica_imbalance"
    assert shown(cluster, 1, *names) == (1, 0, 0) and shown(cluster, 2, *names) == (0, 0, 0)
    cluster.create("single", replicas=(3,), min_insync_replicas=1)
    cluster.kill_and_expire(3)
    assert shown(cluster, 1, *names) == (1, 1, 1)
    cluster.kill_and_expire(1)
    assert shown(cluster, 2, *names) == (1, 1, 2), "flights is led by 2 now, and 1 is its preferred leader"


def test_partitions_with_a_problem_are_named_by_the_broker_that_counts_them(cluster):
    assert "partition_problem" not in figures(cluster, 1)
    cluster.create("late-flights", replicas=(3,), min_insync_replicas=1)
    cluster.kill_and_expire(3)
    lacks_a_copy, no_leader = ("flights", "0", "under_replicated"), ("late-flights", "0", "no_leader")
    assert figures(cluster, 1)["partition_problem"] == {lacks_a_copy: 1, no_leader: 1}
    assert "partition_problem" not in figures(cluster, 2)
    cluster.kill_and_expire(2)
    assert ("flights", "0", "under_min_isr") in figures(cluster, 1)["partition_problem"]


def test_fifty_partitions_of_a_problem_are_named(cluster):
    cluster.create("storms", partitions=60)
    cluster.kill_and_expire(3)
    assert shown(cluster, 1, "under_replicated_partitions") == (61,)
    assert len(figures(cluster, 1)["partition_problem"]) == 50


def test_the_controller_counts_topics_and_copies_that_are_being_deleted_and_those_that_wait_for_a_broker(cluster):
    names = (
        "controller_topics_to_delete", "controller_topics_ineligible_to_delete",
        "controller_replicas_to_delete", "controller_replicas_ineligible_to_delete",
    )  # fmt: skip
    assert shown(cluster, 1, *names) == (0, 0, 0, 0)
    cluster.create("storms", partitions=2)
    cluster.kill_and_expire(3)
    delete(cluster, "flights")
    delete(cluster, "storms")
    cluster.settle()
    assert shown(cluster, 1, *names) == (2, 2, 3, 3), "broker 3 has one copy of flights and two of storms"
    assert shown(cluster, 2, *names) == (0, 0, 0, 0)
    cluster.restart(3)
    cluster.later(3_000)
    assert shown(cluster, 1, *names) == (0, 0, 0, 0)


def test_the_controller_counts_live_brokers_topics_and_partitions(cluster):
    names = "controller_live_brokers", "controller_topics", "controller_partitions"
    live, topics, partitions = shown(cluster, 1, *names)
    assert live == 3 and topics >= 1 and shown(cluster, 2, *names) == (0, 0, 0)
    cluster.create("single", replicas=(3,), min_insync_replicas=1)
    assert shown(cluster, 1, *names) == (3, topics + 1, partitions + 1)
    cluster.kill_and_expire(3)
    assert shown(cluster, 1, *names) == (2, topics + 1, partitions + 1)


def test_a_broker_shows_whether_its_coordinator_answers_and_how_often_it_was_lost(cluster):
    """As the SessionState, ZooKeeperDisconnectsPerSec and ZooKeeperExpiresPerSec of Kafka's brokers."""
    names = "zookeeper_connected", "zookeeper_disconnects_total", "zookeeper_expirations_total"
    assert shown(cluster, 2, *names) == (1, 0, 0)
    coordinator = cluster.nodes[2].coordinator
    coordinator.cut()
    cluster.later(1_000)
    assert shown(cluster, 2, *names) == (0, 1, 0)
    coordinator.heal()
    cluster.later(1_000)
    assert shown(cluster, 2, *names) == (1, 1, 0)
    coordinator.cut()
    coordinator.expire()
    coordinator.heal()
    cluster.later(1_000)
    assert shown(cluster, 2, *names) == (1, 2, 1)


def test_a_partition_that_a_follower_has_stopped_to_copy_is_counted(cluster):
    cluster.produce("flights", b"a", acks=1)
    cluster.later(5_000)
    cluster.log(3, "flights").last_id = 1 << 62  # so that each batch of the leader has ids below the last one
    cluster.produce("flights", b"b", acks=1)
    cluster.later(5_000)
    assert shown(cluster, 3, "failed_partitions") == (1,) and shown(cluster, 2, "failed_partitions") == (0,)
