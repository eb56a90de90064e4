"""Three brokers with one coordinator: topics, leaders, settings and producer ids are those that the controller decided.

The rules (E2, S4, ...) are those of the cluster's design; each has a test that names it.
"""

import pytest

from broker.client.address import Address
from broker.client.connection import ClientConnection
from broker.client.message_exchange import exchange_of, response_to
from broker.metadata.document import FILE, decode
from broker.wire.current_leader import CurrentLeader, NodeEndpoint
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import (
    ALTER_QUOTAS,
    ALTER_SCRAM,
    CREATE_PARTITIONS,
    DELETE_TOPICS,
    DESCRIBE_CLUSTER,
    DESCRIBE_SCRAM,
    FETCH,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    METADATA,
    fetch_request,
)
from tests.broker.engine_cluster import BROKERS, SESSION_MS, EngineCluster
from tests.broker.membership.orders import leader_and_isr, stop_replica, update_metadata

ALL = (1, 2, 3)


@pytest.fixture
def cluster():
    return EngineCluster(3, offsets_topic_num_partitions=3, transaction_state_log_num_partitions=3)


def leaders(cluster, topic, broker_id=1):
    """Return the leader of each partition, as a broker's clients hear it."""
    (described,) = cluster.client(broker_id).ask(METADATA, 12, {"topics": [{"name": topic}]}).topics
    return [partition.leader_id for partition in sorted(described.partitions, key=lambda row: row.partition_index)]


def epochs(cluster, topic):
    (described,) = cluster.client(1).ask(METADATA, 12, {"topics": [{"name": topic}]}).topics
    return [partition.leader_epoch for partition in sorted(described.partitions, key=lambda row: row.partition_index)]


def logs(cluster, topic):
    """Return the partitions that each broker has a log of."""
    return {
        broker_id: sorted(log.partition for log in node.broker.services.logs.all() if log.topic == topic)
        for broker_id, node in cluster.nodes.items()
    }


def order(cluster, broker_id, request):
    """Send a controller's order to a broker; return the response."""
    client = cluster.nodes[broker_id].broker.connect(listener=BROKERS)
    frames = ClientConnection()
    _, data = frames.request(exchange_of(Address("localhost", 1), request))
    client.feed(data)
    cluster.settle()
    (answer,) = frames.receive(memoryview(client.received))
    return response_to(request, answer.body)


def delete(cluster, topic):
    request = {"topics": [{"name": topic, "topic_id": None}], "timeout": 30_000}
    return cluster.client(cluster.controller.id).ask(DELETE_TOPICS, 6, request).responses[0].error_code


def alter(cluster, broker_id, kind, name, **properties):
    configs = [
        {"name": key.replace("_", "."), "config_operation": 0, "value": str(value)} for key, value in properties.items()
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    request = {"resources": [resource], "validate_only": False}
    return cluster.client(broker_id).ask(INCREMENTAL_ALTER_CONFIGS, 1, request).responses[0].error_code


# --- topics ----------------------------------------------------------------------------------------------------------


def test_the_partitions_of_a_topic_lie_on_all_brokers_and_each_has_the_logs_that_it_leads(cluster):
    assert cluster.create("flights", 6) == 0
    assert leaders(cluster, "flights", 1) == leaders(cluster, "flights", 3) == [1, 2, 3, 1, 2, 3]
    cluster.later(1_000)
    assert logs(cluster, "flights") == {1: [0, 3], 2: [1, 4], 3: [2, 5]}


def test_a_record_is_taken_by_the_leader_of_its_partition_only(cluster):
    cluster.create("flights", 3)
    for broker_id in ALL:
        codes = [cluster.client(broker_id).produce("flights", b"a", partition=n).error_code for n in range(3)]
        assert codes == [0 if n + 1 == broker_id else ErrorCode.NOT_LEADER_OR_FOLLOWER for n in range(3)]
    assert cluster.client(2).fetch("flights", partition=1) == [b"a"]
    assert cluster.client(2).produce("nowhere", b"a").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_has_the_brokers_that_its_request_names(cluster):
    assert cluster.create("flights", assignments=(3, 3, 1)) == 0
    assert leaders(cluster, "flights") == [3, 3, 1]


def test_more_than_one_copy_is_refused_by_name(cluster):
    fields = {"name": "flights", "num_partitions": 1, "replication_factor": 2, "assignments": (), "configs": ()}
    request = {"topics": [fields], "timeout": 30_000, "validate_only": False}
    (answer,) = cluster.client(cluster.controller.id).ask(19, 7, request).topics
    assert answer.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "flakelog.lower.replication" in answer.error_message


def test_a_topic_grows_over_all_brokers(cluster):
    cluster.create("flights", 2)
    request = {"topics": [{"name": "flights", "count": 5, "assignments": None}], "timeout": 30_000}
    answer = cluster.client(cluster.controller.id).ask(CREATE_PARTITIONS, 3, request | {"validate_only": False})
    assert answer.results[0].error_code == 0
    assert leaders(cluster, "flights", 2) == [1, 2, 3, 1, 2]
    request = {"topics": [{"name": "flights", "count": 6, "assignments": [{"broker_ids": [2]}]}], "timeout": 30_000}
    answer = cluster.client(cluster.controller.id).ask(CREATE_PARTITIONS, 3, request | {"validate_only": False})
    assert answer.results[0].error_code == 0 and leaders(cluster, "flights", 2)[-1] == 2


def test_a_deleted_topic_leaves_no_log_and_one_of_its_name_begins_anew_with_its_own_settings(cluster):
    cluster.create("flights", 3, retention_ms=77_777)
    cluster.client(1).produce("flights", b"old")
    assert delete(cluster, "flights") == 0
    assert logs(cluster, "flights") == {1: [], 2: [], 3: []}
    assert not [path for path in cluster.ensemble.nodes if "flights" in path]
    assert cluster.create("flights", 3, retention_ms=88_888) == 0
    for node in cluster.nodes.values():
        topic = node.broker.services.hosted.topic("flights")
        assert node.broker.services.config_of(topic).retention_ms == 88_888
    assert cluster.client(1).fetch("flights") == []


@pytest.mark.parametrize("asked", ALL)
def test_a_topic_that_is_made_by_asking_comes_to_be_on_whichever_broker_was_asked(cluster, asked):
    request = {"topics": [{"name": "flights"}], "allow_auto_topic_creation": True}
    (described,) = cluster.client(asked).ask(METADATA, 12, request).topics
    assert described.error_code == 0 and [row.leader_id for row in described.partitions] == [1]
    assert all(node.member.image.topic("flights") is not None for node in cluster.nodes.values())


def test_a_coordinators_topic_is_made_once_when_several_brokers_are_asked_for_it(cluster):
    with cluster.nodes[2].broker.turn(), cluster.nodes[3].broker.turn():
        clients = [cluster.client(broker_id) for broker_id in (2, 3)]
        for client in clients:
            client.send(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["readers"]})
    cluster.later(1_000)
    answers = [client.replies()[0][1].coordinators[0] for client in clients]
    assert [answer.error_code for answer in answers] == [0, 0]
    assert len({answer.node_id for answer in answers}) == 1
    assert leaders(cluster, "__consumer_offsets") == [1, 2, 3]


# --- deaths and returns ----------------------------------------------------------------------------------------------


def test_a_dead_broker_takes_its_own_partitions_away_until_it_is_back(cluster):
    cluster.create("flights", 3)
    cluster.client(3).produce("flights", b"a", partition=2)
    cluster.kill(3)
    cluster.expire(3)
    assert leaders(cluster, "flights") == [1, 2, -1] and epochs(cluster, "flights") == [0, 0, 1]
    assert cluster.client(1).produce("flights", b"b").error_code == 0
    cluster.restart(3)
    cluster.later(1_000)
    assert leaders(cluster, "flights", 3) == [1, 2, 3] and epochs(cluster, "flights") == [0, 0, 2]
    assert cluster.client(3).fetch("flights", partition=2) == [b"a"]
    assert cluster.client(3).produce("flights", b"c", partition=2).base_offset == 1


def test_the_next_controller_goes_on_where_the_last_one_died(cluster):
    cluster.create("flights", 3)
    dead = cluster.controller.id
    cluster.kill(dead)
    cluster.expire(dead)
    assert cluster.controller.id != dead
    assert cluster.create("storms", 4) == 0
    assert dead not in leaders(cluster, "storms", cluster.controller.id)
    cluster.restart(dead)
    cluster.later(1_000)
    assert all(leaders(cluster, "flights", broker_id) == [1, 2, 3] for broker_id in ALL)
    assert all(leaders(cluster, "storms", broker_id) == leaders(cluster, "storms") for broker_id in ALL)


def test_a_broker_that_comes_back_before_its_death_was_seen_waits_for_its_old_session(cluster):
    cluster.create("flights", 3)
    session = cluster.nodes[3].coordinator
    cluster.kill(3)
    cluster.restart(3)
    assert "broker id 3 is registered" in cluster.nodes[3].member.waiting_for
    cluster.later(SESSION_MS - 1_000)
    session.expire()
    cluster.later(2_000)
    assert leaders(cluster, "flights", 3) == [1, 2, 3]


def test_a_broker_whose_id_is_taken_for_longer_gives_up_by_name(cluster):
    cluster.kill(3)
    cluster.restart(3)
    cluster.later(SESSION_MS + 1_000)
    assert "Another broker with id 3 is registered" in str(cluster.nodes[3].member.problem)


def test_a_broker_that_has_lost_its_session_serves_on_and_registers_again_as_rule_e7_says(cluster):
    cluster.create("flights", 3)
    before = cluster.nodes[2].member.broker_epoch
    cluster.nodes[2].coordinator.cut()
    cluster.settle()
    assert cluster.client(2).produce("flights", b"a", partition=1).error_code == 0
    cluster.nodes[2].coordinator.expire()
    cluster.settle()
    assert leaders(cluster, "flights") == [1, -1, 3]
    assert cluster.client(2).produce("flights", b"b", partition=1).error_code == 0, "it has not heard of it"
    cluster.nodes[2].coordinator.heal()
    cluster.later(1_000)
    assert cluster.nodes[2].member.broker_epoch > before
    assert leaders(cluster, "flights") == [1, 2, 3]
    assert cluster.client(2).fetch("flights", partition=1) == [b"a", b"b"]


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


def test_the_requests_of_brokers_are_served_on_their_listener_only(cluster):
    client = cluster.client(2)
    _, data = ClientConnection().request(exchange_of(Address("localhost", 1), stop_replica("flights", 1, delete=True)))
    client.feed(data)
    assert "API key 5" in client.closed


# --- settings, quotas, credentials -----------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ALL)
def test_any_broker_takes_settings_and_all_brokers_hear_of_them(cluster, asked):
    cluster.create("flights", 3)
    assert alter(cluster, asked, 2, "flights", retention_ms=88_888) == 0
    for node in cluster.nodes.values():
        (log,) = [log for log in node.broker.services.logs.all() if log.topic == "flights"]
        assert log.config.retention_ms == 88_888
    assert alter(cluster, asked, 4, "", log_retention_ms=99_999) == 0
    assert alter(cluster, asked, 2, "flights", cleanup_policy="compact") == 0
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


# --- the cluster as clients see it -----------------------------------------------------------------------------------


def test_each_broker_names_the_cluster_its_brokers_and_its_controller(cluster):
    answers = [cluster.client(broker_id).ask(DESCRIBE_CLUSTER, 0, {}) for broker_id in ALL]
    assert {answer.controller_id for answer in answers} == {cluster.controller.id}
    assert {answer.cluster_id for answer in answers} == {cluster.cluster_id}
    for answer in answers:
        assert [(node.broker_id, node.port) for node in answer.brokers] == [(1, 9_001), (2, 9_002), (3, 9_003)]


@pytest.mark.parametrize("version", [9, 10, 12])
def test_a_produce_that_went_to_another_broker_is_answered_with_the_leader(cluster, version):
    """KIP-951: from version 10 on, with the address on the listener of the client."""
    cluster.create("flights", 3)
    result = cluster.client(1).produce("flights", b"a", partition=2, version=version)
    assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert result.leader == (None if version < 10 else CurrentLeader(3, 0, NodeEndpoint(3, "localhost", 9_003)))


@pytest.mark.parametrize("version", [15, 16, 17])
def test_a_fetch_that_went_to_another_broker_is_answered_with_the_leader(cluster, version):
    """KIP-951: from version 16 on. The partition of a dead broker has no leader, and an epoch."""
    cluster.create("flights", 3)
    topic_id = cluster.nodes[1].member.image.topic("flights").id
    (result,) = cluster.client(1).ask(FETCH, version, fetch_request(topic_id, partition=2)).partitions
    assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert result.leader == (None if version < 16 else CurrentLeader(3, 0, NodeEndpoint(3, "localhost", 9_003)))
    cluster.kill(3)
    cluster.expire(3)
    (result,) = cluster.client(1).ask(FETCH, version, fetch_request(topic_id, partition=2)).partitions
    assert result.leader == (None if version < 16 else CurrentLeader(-1, 1))


def test_producer_ids_are_never_given_twice_whoever_is_the_controller(cluster):
    def new_ids(number):
        request = {"transactional_id": None, "transaction_timeout": 0, "producer_id": -1, "producer_epoch": -1}
        living = [broker_id for broker_id, node in cluster.nodes.items() if node.is_alive]
        answers = [cluster.client(living[n % len(living)]).ask(INIT_PRODUCER_ID, 4, request) for n in range(number)]
        assert {answer.error_code for answer in answers} == {0}
        return [answer.producer_id for answer in answers]

    ids = new_ids(9)
    dead = cluster.controller.id
    cluster.kill(dead)
    cluster.expire(dead)
    ids += new_ids(9)
    cluster.restart(dead)
    cluster.later(1_000)
    ids += new_ids(9)
    assert len(set(ids)) == 27


def test_a_producer_id_is_waited_for_while_no_controller_answers(cluster):
    """Clients try again at COORDINATOR_LOAD_IN_PROGRESS, and would give up at an error of the disk."""
    other = next(broker_id for broker_id in ALL if broker_id != cluster.controller.id)
    cluster.kill(cluster.controller.id)
    client = cluster.client(other)
    request = {"transactional_id": None, "transaction_timeout": 0, "producer_id": -1, "producer_epoch": -1}
    client.send(INIT_PRODUCER_ID, 4, request)
    cluster.later(10_000)
    ((_, answer),) = client.replies()
    assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_a_request_for_the_controller_waits_no_longer_than_its_time_while_the_coordinator_is_away(cluster):
    cluster.create("flights", 3)
    for node in cluster.nodes.values():
        node.coordinator.cut()
    cluster.settle()
    client = cluster.client(2)
    client.send(METADATA, 12, {"topics": [{"name": "new"}], "allow_auto_topic_creation": True})
    cluster.later(20_000)
    ((_, answer),) = client.replies()
    assert answer.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert cluster.client(2).produce("flights", b"a", partition=1).error_code == 0, "reads and writes go on"
