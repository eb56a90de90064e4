"""/health of a cluster with several copies: what fails is named, and what only lacks a copy is a note."""

import json
from types import SimpleNamespace

import pytest

from broker.security.altered_tls import AlteredTls
from broker.services.replica_states import one_copy_warnings
from flakelog.console.overview import problems
from flakelog.health import health, ready
from flakelog.settings import Settings
from tests.broker.engine_cluster import EngineCluster
from tests.broker.membership.cluster_steps import delete
from tests.broker.membership.replicated_cluster import ReplicatedCluster
from tests.flakelog.console.world import Clock

WELL = {
    "under_min_isr": (), "offline": (), "failed": {}, "stalled": {}, "under_replicated": (),
    "coordinators_with_one_copy": (),
}  # fmt: skip


@pytest.fixture
def cluster():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    return cluster


def server_of(cluster, broker_id):
    return SimpleNamespace(
        settings=Settings({}), engine=cluster.nodes[broker_id].broker.engine, service=None, peers=None, clock=Clock(),
        tls=AlteredTls({}, {}, print), claims=(), scope="memory", addresses={}, serving=True, stopped=False,
    )  # fmt: skip


def health_of(cluster, broker_id):
    healthy, details = health(server_of(cluster, broker_id))
    json.dumps(details)  # it is a page
    return healthy, details


def replication(cluster, broker_id):
    """Return whether the broker is healthy, and what differs from a sound cluster."""
    healthy, details = health_of(cluster, broker_id)
    states = details["cluster"]["replication"]
    assert states.keys() == WELL.keys()
    return healthy, {name: value for name, value in states.items() if value}


def sentences(cluster, broker_id):
    return problems(health_of(cluster, broker_id)[1])


def test_a_sound_cluster_is_healthy_and_names_nothing(cluster):
    assert all(replication(cluster, broker_id) == (True, {}) for broker_id in (1, 2, 3))
    assert sentences(cluster, 1) == []


def test_without_replication_there_is_nothing_to_tell_of_it():
    cluster = EngineCluster(3, replication_enable=False, offsets_topic_num_partitions=1)
    cluster.group_coordinator_of("readers")
    healthy, details = health_of(cluster, 1)
    assert healthy and "replication" not in details["cluster"]
    assert one_copy_warnings(cluster.nodes[1].broker.services) == []


def test_neither_a_broker_with_an_old_image_nor_the_controller_that_does_not_reach_it_is_healthy(cluster):
    cluster.cut_pairs = {(2, 3), (3, 2)}
    cluster.kill_and_expire(1)
    cluster.later(25_000)
    for broker_id in (2, 3):
        healthy, details = health_of(cluster, broker_id)
        assert not healthy and any("The logs of both say why" in problem for problem in details["cluster"]["problems"])
    cluster.cut_pairs = set()
    cluster.later(5_000)
    assert health_of(cluster, 2)[0] and health_of(cluster, 3)[0]


def test_a_partition_that_lacks_a_copy_is_a_note_and_no_failure(cluster):
    cluster.kill_and_expire(3)
    assert replication(cluster, 1) == (True, {"under_replicated": ("flights-0",)})
    assert replication(cluster, 2) == (True, {})
    assert sentences(cluster, 1) == ["partitions with a copy that is not in sync: 1"]


def test_a_leader_with_too_few_in_sync_is_unhealthy(cluster):
    cluster.kill_and_expire(2)
    cluster.kill_and_expire(3)
    both = {"under_min_isr": ("flights-0",), "under_replicated": ("flights-0",)}
    assert replication(cluster, 1) == (False, both)
    assert sentences(cluster, 1)[0] == "flights-0 has too few copies in sync for acks=all"


def test_a_partition_without_a_leader_is_named_by_the_brokers_that_have_a_copy(cluster):
    cluster.create("pair", replicas=(3, 2), min_insync_replicas=1)
    cluster.kill_and_expire(2)
    cluster.kill_and_expire(3)
    cluster.restart(2)
    cluster.later(3_000)
    assert replication(cluster, 2)[1]["offline"] == ("pair-0",) and not replication(cluster, 2)[0]
    assert "offline" not in replication(cluster, 1)[1]
    assert "pair-0 has no leader" in sentences(cluster, 2)


def test_a_partition_that_is_copied_no_more_is_named_with_the_reason(cluster):
    cluster.produce("flights", b"a", acks=1)
    cluster.later(5_000)
    cluster.log(3, "flights").last_id = 1 << 62  # so that each batch of the leader has ids below the last one
    cluster.produce("flights", b"b", acks=1)
    cluster.later(5_000)
    healthy, states = replication(cluster, 3)
    assert not healthy and "the id of offset 1 is" in states["failed"]["flights-0"]
    assert sentences(cluster, 3)[0].startswith("flights-0 is copied no more: ")
    assert replication(cluster, 2) == (True, {})


def test_a_partition_that_is_not_copied_while_the_disk_is_full_is_named_with_the_reason(cluster):
    cluster.nodes[3].storage.free_bytes = 0
    cluster.produce("flights", b"a", acks=1)
    cluster.later(1_000)
    healthy, states = replication(cluster, 3)
    assert not healthy and "No space left" in states["stalled"]["flights-0"]
    assert any(line.startswith("flights-0 is not copied now: ") for line in sentences(cluster, 3))
    cluster.nodes[3].storage.free_bytes = None
    cluster.later(20_000)
    assert replication(cluster, 3) == (True, {})


def test_a_topic_of_a_coordinator_that_has_one_copy_is_a_note():
    cluster = ReplicatedCluster(offsets_topic_replication_factor=1, transaction_state_log_replication_factor=3)
    cluster.group_coordinator_of("readers")
    cluster.coordinator_of("payments")
    assert replication(cluster, 2) == (True, {"coordinators_with_one_copy": ("__consumer_offsets",)})
    (warning,) = one_copy_warnings(cluster.nodes[2].broker.services)
    assert warning.startswith("__consumer_offsets has one copy: if a broker dies, its groups have no coordinator")
    assert sentences(cluster, 2) == [warning]
    cluster.kill_and_expire(2)
    cluster.kill_and_expire(3)
    assert replication(cluster, 1)[1].get("coordinators_with_one_copy") is None, "no other broker could have a copy"


def test_a_topic_whose_deletion_waits_for_a_broker_is_named_by_the_controller_and_no_failure(cluster):
    cluster.kill_and_expire(3)
    delete(cluster, "flights")
    cluster.settle()
    (line,) = health_of(cluster, 1)[1]["cluster"]["problems"]
    assert line.startswith("the deletion of topic flights waits for broker 3") and sentences(cluster, 1) == [line]
    assert health_of(cluster, 1)[0] and sentences(cluster, 2) == []


def test_a_broker_whose_coordinator_does_not_answer_is_not_healthy_and_says_so(cluster):
    cluster.nodes[2].coordinator.cut()
    cluster.later(1_000)
    (sentence,) = sentences(cluster, 2)
    assert "does not answer since" in sentence and health_of(cluster, 2)[1]["cluster"]["problems"] == [sentence]
    assert [health_of(cluster, broker_id)[0] for broker_id in (1, 2, 3)] == [True, False, True]
    cluster.nodes[2].coordinator.heal()
    cluster.later(1_000)
    assert health_of(cluster, 2)[0] and sentences(cluster, 2) == []


def test_a_read_only_disk_makes_the_server_unready_and_moves_the_leaders_of_partitions_without_writes(cluster):
    cluster.create("written", replicas=(1, 2, 3))
    cluster.create("silent", partitions=3, replicas=(1, 2, 3))
    led = [("written", 0), *(("silent", partition) for partition in range(3))]
    assert {cluster.leader(*key) for key in led} == {1} and ready(server_of(cluster, 1))[0]
    cluster.nodes[1].storage.is_read_only = True
    cluster.produce("written", b"meets the read-only disk", within_ms=30_000)
    cluster.later(2_000)
    assert not any(cluster.leader(*key) == 1 for key in led)
    is_ready, details = ready(server_of(cluster, 1))
    assert not is_ready and set(details["partitions_offline"]) >= {"written-0", "silent-0", "silent-1", "silent-2"}
    assert not health_of(cluster, 1)[0]
    assert ready(server_of(cluster, 2))[0]
