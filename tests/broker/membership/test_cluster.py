"""Three brokers with one coordinator: topics and leaders are those that the controller decided, whoever dies."""

import gc
from types import TracebackType

import pytest

from broker.wire.current_leader import CurrentLeader, NodeEndpoint
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import (
    ALTER_REASSIGNMENTS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DESCRIBE_CLUSTER,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    UNREGISTER_BROKER,
    fetch_request,
)
from tests.broker.engine_cluster import SESSION_MS, EngineCluster
from tests.broker.membership.cluster_steps import ALL, delete, epochs, leaders, logs


@pytest.fixture
def cluster():
    return EngineCluster(3, offsets_topic_num_partitions=3, transaction_state_log_num_partitions=3)


# --- topics ----------------------------------------------------------------------------------------------------------


def test_the_partitions_of_a_topic_lie_on_all_brokers_and_each_has_the_logs_that_it_leads(cluster):
    assert cluster.create("flights", 6) == 0
    assert leaders(cluster, "flights", 1) == leaders(cluster, "flights", 3) == [1, 2, 3, 1, 2, 3]
    cluster.later(1_000)
    assert logs(cluster, "flights") == {1: [0, 3], 2: [1, 4], 3: [2, 5]}


@pytest.mark.parametrize("name", [".hidden", "t" * 249])
def test_a_topic_may_have_each_name_that_kafka_takes(cluster, name):
    assert cluster.create(name, 3) == 0
    assert cluster.client(2).produce(name, b"a", partition=1).error_code == 0
    assert delete(cluster, name) == 0


def test_a_broker_that_is_not_the_controller_keeps_nothing_of_the_requests_that_it_refuses(cluster):
    """An exception that is raised again and again keeps the frames of each time, with all that they refer to."""
    other = next(broker_id for broker_id in ALL if broker_id != cluster.controller.id)
    request = {"topics": [{"name": "flights", "num_partitions": 1, "replication_factor": 1}], "timeout": 30_000}
    client = cluster.client(other)

    def tracebacks():
        for _ in range(10):
            client.ask(CREATE_TOPICS, 7, request | {"validate_only": False})
        gc.collect()
        return sum(isinstance(item, TracebackType) for item in gc.get_objects())

    assert tracebacks() >= tracebacks()


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


def test_more_than_one_copy_is_refused_by_name_without_replication():
    cluster = EngineCluster(3, replication_enable=False)
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


@pytest.mark.parametrize("broker_id", ALL)
def test_a_topic_that_is_made_by_asking_comes_to_be_on_whichever_broker_was_asked(cluster, broker_id):
    request = {"topics": [{"name": "flights"}], "allow_auto_topic_creation": True}
    (described,) = cluster.client(broker_id).ask(METADATA, 12, request).topics
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


@pytest.mark.parametrize("replicas, code", [([2], 0), ([3], ErrorCode.INVALID_REPLICA_ASSIGNMENT)])
def test_a_partition_is_not_said_to_move_while_it_stays(cluster, replicas, code):
    cluster.create("flights", assignments=(2,))
    partitions = [{"partition_index": 0, "replicas": replicas}]
    request = {"timeout": 10_000, "topics": [{"name": "flights", "partitions": partitions}]}
    (topic,) = cluster.client(cluster.controller.id).ask(ALTER_REASSIGNMENTS, 0, request).responses
    assert topic.partitions[0].error_code == code
    assert leaders(cluster, "flights") == [2]


@pytest.mark.parametrize(
    "broker_id, code", [(3, ErrorCode.INVALID_REQUEST), (7, ErrorCode.BROKER_ID_NOT_REGISTERED)]
)
def test_a_broker_that_runs_is_not_unregistered_by_a_client(cluster, broker_id, code):
    assert cluster.client(1).ask(UNREGISTER_BROKER, 0, {"broker_id": broker_id}).error_code == code


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
    cluster.later(SESSION_MS + 3_000)
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


# --- the cluster as clients see it -----------------------------------------------------------------------------------


def test_each_broker_names_the_cluster_its_brokers_and_its_controller(cluster):
    answers = [cluster.client(broker_id).ask(DESCRIBE_CLUSTER, 0, {}) for broker_id in ALL]
    assert {answer.controller_id for answer in answers} == {cluster.controller.id}
    assert {answer.cluster_id for answer in answers} == {cluster.cluster_id}
    for answer in answers:
        assert [(node.broker_id, node.port) for node in answer.brokers] == [(1, 9_001), (2, 9_002), (3, 9_003)]


def test_a_broker_without_its_coordinator_says_what_stands_still_beside_no_error(cluster):
    cluster.nodes[2].coordinator.cut()
    cluster.later(1_000)
    answers = [cluster.client(broker_id).ask(DESCRIBE_CLUSTER, 0, {}) for broker_id in ALL]
    assert [answer.error_code for answer in answers] == [0, 0, 0]
    messages = [answer.error_message for answer in answers]
    assert messages[0] is None and messages[2] is None
    assert messages[1] == "\n".join(cluster.nodes[2].member.problems) and "does not answer since" in messages[1]


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


def test_an_administrator_is_told_that_the_coordinator_is_away_and_not_the_disk(cluster):
    client = cluster.client(cluster.controller.id)
    for node in cluster.nodes.values():
        node.coordinator.cut()
    fields = {"name": "new", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    client.send(CREATE_TOPICS, 7, {"topics": [fields], "timeout": 5_000, "validate_only": False})
    cluster.later(6_000)
    ((_, answer),) = client.replies()
    assert answer.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert answer.topics[0].error_message.startswith("ZooKeeper, or the directory of --processes, did not take")
