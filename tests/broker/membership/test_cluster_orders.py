"""Three brokers with one coordinator take orders, settings and their own file as the cluster's rules say.

docs/rules-of-the-cluster.md has the rules (E2, S4, ...).
"""

import pytest

from broker.client.address import Address
from broker.client.connection import ClientConnection
from broker.client.message_exchange import exchange_of
from broker.cluster.controller import PAUSE_AFTER_DISK_MS
from broker.membership.hosted_partitions import STORED_EVERY
from broker.metadata.document import FILE, decode
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import (
    ALTER_QUOTAS,
    ALTER_SCRAM,
    CREATE_PARTITIONS,
    DELETE_TOPICS,
    DESCRIBE_SCRAM,
    INCREMENTAL_ALTER_CONFIGS,
)
from tests.broker.engine_cluster import BROKERS, EngineCluster
from tests.broker.membership.cluster_steps import ALL, alter, altering, leaders, order
from tests.broker.membership.orders import leader_and_isr, stop_replica, update_metadata


@pytest.fixture
def cluster():
    return EngineCluster(3, offsets_topic_num_partitions=3, transaction_state_log_num_partitions=3)


# --- the orders of a controller --------------------------------------------------------------------------------------


def test_a_broker_refuses_an_earlier_controller_as_rule_e2_says(cluster):
    cluster.create("flights", 3)
    dead = cluster.controller.id
    cluster.kill(dead)
    cluster.expire(dead)
    other = next(broker_id for broker_id in ALL if broker_id != dead)
    topic, member = cluster.nodes[other].member.image.topic("flights"), cluster.nodes[other].member
    stale = {"controller_epoch": member.controller_epoch - 1, "broker_epoch": member.broker_epoch}
    leading = leader_and_isr("flights", (other - 1, other, 99), topic_id=topic.id, **stale)
    deleting = stop_replica("flights", other - 1, delete=True, **stale)
    updating = update_metadata("flights", (other - 1, 9, 99), topic_id=topic.id, controller_epoch=0)
    for request in (leading, deleting, updating):
        assert order(cluster, other, request).error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    assert member.image.topic("flights") == topic
    assert cluster.client(other).produce("flights", b"a", partition=other - 1).error_code == 0


def test_a_broker_learns_at_its_registration_which_controller_to_refuse_as_rule_e2_says(cluster):
    cluster.create("flights", 3)
    other = next(broker_id for broker_id in ALL if broker_id != cluster.controller.id)
    cluster.kill(cluster.controller.id)
    cluster.kill(other)
    cluster.expire(other)
    cluster.restart(other)
    assert cluster.nodes[other].member.controller_epoch == 1


def test_an_order_for_an_earlier_life_is_refused_as_rule_e3_says(cluster):
    cluster.create("flights", 3)
    member = cluster.nodes[2].member
    late = {"controller_epoch": member.controller_epoch, "broker_epoch": member.broker_epoch - 1}
    response = order(cluster, 2, stop_replica("flights", 1, delete=True, **late))
    assert response.error_code == ErrorCode.STALE_BROKER_EPOCH
    assert cluster.client(2).produce("flights", b"a", partition=1).error_code == 0


def test_an_order_in_the_same_leader_epoch_changes_nothing_as_rule_e4_says(cluster):
    cluster.create("flights", 3)
    member = cluster.nodes[2].member
    topic_id = member.image.topic("flights").id
    present = {"controller_epoch": member.controller_epoch, "broker_epoch": member.broker_epoch, "topic_id": topic_id}
    response = order(cluster, 2, leader_and_isr("flights", (1, 9, 0), replicas=(2, 9), **present))
    (errors,) = response.topics[0].partition_errors
    assert errors.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    assert cluster.client(2).produce("flights", b"a", partition=1).error_code == 0


def test_a_hosted_partition_is_in_the_file_before_the_order_is_answered_as_rule_s4_says(cluster):
    """Coordinator, then orders, then directories: a kill right after the answer leaves no stray log."""
    cluster.create("flights", 3)
    cluster.client(2).produce("flights", b"a", partition=1)
    cluster.kill(2)
    cluster.expire(2)
    cluster.restart(2)
    cluster.later(1_000)
    assert cluster.client(2).fetch("flights", partition=1) == [b"a"]
    assert not [line for line in cluster.nodes[2].reported if "records of no topic" in line]


def test_an_order_that_comes_before_the_registration_is_repeated(cluster):
    """A controller sees the node of a broker before that broker hears that it has registered."""
    cluster.create("flights", 3)
    dead = cluster.controller.id
    cluster.kill(dead)
    cluster.expire(dead)
    cluster.create("storms", 4)
    cluster.restart(dead)
    cluster.later(1_000)
    assert leaders(cluster, "storms", dead) == leaders(cluster, "storms", cluster.controller.id)


def test_an_order_that_a_full_disk_refuses_is_repeated_once_there_is_room(cluster):
    disk = cluster.nodes[2].storage
    disk.free_bytes = 0
    assert cluster.create("flights", 3) == 0
    assert cluster.client(2).produce("flights", b"a", partition=1).error_code != 0
    cluster.later(30_000)
    assert cluster.client(2).produce("flights", b"a", partition=1).error_code != 0
    disk.free_bytes = None
    cluster.later(PAUSE_AFTER_DISK_MS + 1_000)
    assert cluster.client(2).produce("flights", b"a", partition=1).error_code == 0
    assert cluster.controller.member.controller.is_idle


def test_a_deletion_that_a_full_disk_refuses_goes_on_once_there_is_room(cluster):
    cluster.create("flights", 3)
    disk = cluster.nodes[2].storage
    disk.free_bytes = 0
    request = {"topics": [{"name": "flights", "topic_id": None}], "timeout": 30_000}
    cluster.client(cluster.controller.id).send(DELETE_TOPICS, 6, request)
    cluster.later(30_000)
    assert "flights" in cluster.controller.member.controller.context.topics_to_delete
    disk.free_bytes = None
    cluster.later(PAUSE_AFTER_DISK_MS + 1_000)
    assert not cluster.controller.member.controller.context.topics_to_delete
    assert cluster.create("flights", 3) == 0
    assert cluster.client(2).produce("flights", b"a", partition=1).error_code == 0


def test_the_requests_of_brokers_are_served_on_their_listener_only(cluster):
    client = cluster.client(2)
    _, data = ClientConnection().request(exchange_of(Address("localhost", 1), stop_replica("flights", 1, delete=True)))
    client.feed(data)
    assert "API key 5" in client.closed


# --- settings, quotas, credentials -----------------------------------------------------------------------------------


@pytest.mark.parametrize("broker_id", ALL)
def test_any_broker_takes_settings_and_all_brokers_hear_of_them(cluster, broker_id):
    cluster.create("flights", 3)
    assert alter(cluster, broker_id, 2, "flights", retention_ms=88_888) == 0
    for node in cluster.nodes.values():
        (log,) = [log for log in node.broker.services.logs.all() if log.topic == "flights"]
        assert log.config.retention_ms == 88_888
    assert alter(cluster, broker_id, 4, "", log_retention_ms=99_999) == 0
    assert alter(cluster, broker_id, 2, "flights", cleanup_policy="compact") == 0
    for node in cluster.nodes.values():
        assert node.broker.services.config.topic_defaults.retention_ms == 99_999
        assert dict(node.member.image.topic("flights").properties) == {
            "retention.ms": "88888", "cleanup.policy": "compact",
        }  # fmt: skip


def test_quotas_and_credentials_of_one_user_are_kept_beside_each_other(cluster):
    entry = {"entity": [{"entity_type": "user", "entity_name": "ann"}]}
    ops = [{"key": "producer_byte_rate", "value": 1_024.0, "remove": False}]
    request = {"entries": [entry | {"ops": ops}], "validate_only": False}
    assert cluster.client(2).ask(ALTER_QUOTAS, 1, request).entries[0].error_code == 0
    upsertion = {"name": "ann", "mechanism": 1, "iterations": 4_096, "salt": b"s", "salted_password": b"p" * 32}
    credentials = {"deletions": [], "upsertions": [upsertion]}
    answer = cluster.client(cluster.controller.id).ask(ALTER_SCRAM, 0, credentials)
    assert answer.results[0].error_code == 0
    for node in cluster.nodes.values():
        assert dict(node.member.image.quotas) == {(("user", "ann"),): {"producer_byte_rate": 1_024.0}}
        (described,) = node.broker.connect().ask(DESCRIBE_SCRAM, 0, {"users": [{"name": "ann"}]}).results
        assert [info.iterations for info in described.credential_infos] == [4_096]


def test_settings_that_are_altered_while_new_partitions_are_stored_hold_for_all_logs(cluster):
    cluster.create("flights", assignments=(2,), retention_ms=77_777)
    broker = cluster.nodes[2].broker
    broker.hold_syncs()
    topics = [{"name": "flights", "count": 2, "assignments": [{"broker_ids": [2]}]}]
    request = {"topics": topics, "timeout": 30_000, "validate_only": False}
    cluster.client(cluster.controller.id).send(CREATE_PARTITIONS, 3, request)
    cluster.client(1).send(INCREMENTAL_ALTER_CONFIGS, 1, altering(2, "flights", retention_ms=88_888))
    cluster.settle()
    broker.release()
    cluster.later(1_000)
    logs = [log for log in broker.services.logs.all() if log.topic == "flights"]
    assert [log.config.retention_ms for log in logs] == [88_888, 88_888]
    assert broker.services.hosted.topic("flights").properties == {"retention.ms": "88888"}


def test_settings_that_are_altered_while_a_full_disk_refuses_an_epoch_hold_for_the_log(cluster):
    """Found by the simulation (seed 7144): the log went back to the settings of before the order."""
    cluster.create("flights", assignments=(2,), retention_ms=77_777)
    node = cluster.nodes[2]
    node.broker.hold_syncs()
    life = {"controller_epoch": node.member.controller_epoch, "broker_epoch": node.member.broker_epoch}
    request = leader_and_isr("flights", (0, 2, STORED_EVERY), topic_id=node.member.image.topic("flights").id, **life)
    _, data = ClientConnection().request(exchange_of(Address("localhost", 1), request))
    node.broker.connect(listener=BROKERS).feed(data)
    assert alter(cluster, 1, 2, "flights", retention_ms=88_888) == 0
    node.storage.free_bytes = 0
    node.broker.release()
    node.storage.free_bytes = None
    cluster.settle()
    (log,) = [log for log in node.broker.services.logs.all() if log.topic == "flights"]
    assert (log.leader_epoch, log.config.retention_ms) == (STORED_EVERY, 88_888)
    assert node.broker.services.hosted.topic("flights").properties == {"retention.ms": "88888"}


def test_settings_survive_the_brokers(cluster):
    cluster.create("flights", 3, retention_ms=77_777)
    alter(cluster, 2, 4, "", log_retention_ms=99_999)
    for broker_id in ALL:
        cluster.kill(broker_id)
        cluster.expire(broker_id)
    for broker_id in ALL:
        cluster.restart(broker_id)
    cluster.later(1_000)
    for node in cluster.nodes.values():
        (log,) = [log for log in node.broker.services.logs.all() if log.topic == "flights"]
        assert log.config.retention_ms == 77_777
        assert node.broker.services.config.topic_defaults.retention_ms == 99_999


def test_a_broker_comes_back_to_settings_that_were_altered_meanwhile(cluster):
    """Its logs are opened with them: the settings of before might delete records that shall be kept."""
    cluster.create("flights", 3, retention_ms=77_777)
    cluster.kill(3)
    cluster.expire(3)
    assert alter(cluster, 2, 2, "flights", retention_ms=88_888) == 0
    cluster.restart(3)
    (log,) = [log for log in cluster.nodes[3].broker.services.logs.all() if log.topic == "flights"]
    assert log.config.retention_ms == 88_888


# --- the broker's file -----------------------------------------------------------------------------------------------


def stored_epochs(cluster, broker_id, topic):
    """Return the leader epoch of each partition in the file of a broker."""
    file = cluster.nodes[broker_id].storage.open(FILE)
    return [state.leader_epoch for state in decode(file.read(0, file.size)).topics[topic].partitions]


def test_the_file_has_the_leader_epochs_and_is_never_far_behind(cluster):
    """Recovery takes an epoch far above that of the file for damage, and would cut the log there."""
    cluster.create("flights", 1)
    cluster.kill(1)
    cluster.expire(1)
    cluster.restart(1)
    cluster.later(1_000)
    assert stored_epochs(cluster, 1, "flights") == [1], "the first order of a process is stored"
    member = cluster.nodes[1].member
    present = {"controller_epoch": member.controller_epoch, "broker_epoch": member.broker_epoch}
    topic_id = member.image.topic("flights").id
    for epoch, stored in ((3, 1), (255, 1), (256, 256), (400, 256), (700, 700)):
        response = order(cluster, 1, leader_and_isr("flights", (0, 1, epoch), topic_id=topic_id, **present))
        assert response.topics[0].partition_errors[0].error_code == 0
        assert stored_epochs(cluster, 1, "flights") == [stored]


def test_a_log_that_is_made_after_its_leader_epoch_began_has_that_epoch():
    cluster = EngineCluster(1, max_new_logs_at_once=1)
    cluster.create("flights", 3)
    member = cluster.nodes[1].member
    present = {"controller_epoch": member.controller_epoch, "broker_epoch": member.broker_epoch}
    topic_id = member.image.topic("flights").id
    order(cluster, 1, leader_and_isr("flights", *((n, 1, 5) for n in range(3)), topic_id=topic_id, **present))
    for partition in range(3):
        assert cluster.client(1).produce("flights", b"a", partition=partition).error_code == 0
        assert cluster.nodes[1].broker.services.log_of("flights", partition).leader_epoch == 5


def test_a_full_disk_keeps_no_records_from_readers_and_takes_no_new_partition(cluster):
    cluster.create("flights", 3)
    cluster.client(3).produce("flights", b"a", partition=2)
    cluster.kill(3)
    cluster.expire(3)
    cluster.nodes[3].storage.free_bytes = 0
    cluster.restart(3)
    cluster.later(1_000)
    assert cluster.client(3).fetch("flights", partition=2) == [b"a"]
    cluster.create("storms", assignments=(3,))
    cluster.later(10_000)
    assert cluster.client(3).produce("storms", b"b").error_code != 0
    assert [line for line in cluster.nodes[3].reported if "could not be stored" in line]
