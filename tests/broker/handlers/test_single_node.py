"""Replicas, directories, features and access rules as a single Kafka node answers for them (KIP-113, KIP-183, KIP-455,
KIP-584, KIP-1142)."""

import pytest

from broker.log.storage.port import StorageError
from broker.wire.codec import API_VERSIONS
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import (
    ALTER_REASSIGNMENTS,
    ALTER_REPLICA_LOG_DIRS,
    CREATE_ACLS,
    DELETE_ACLS,
    DESCRIBE_ACLS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_QUORUM,
    ELECT_LEADERS,
    LIST_CONFIG_RESOURCES,
    LIST_REASSIGNMENTS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    UNREGISTER_BROKER,
    UPDATE_FEATURES,
    EngineBroker,
)

NO_PREFERRED, NO_ELIGIBLE = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


@pytest.fixture
def broker():
    broker = EngineBroker()
    broker.create("flights", 2)
    broker.create("trains")
    return broker


@pytest.fixture
def client(broker):
    return broker.connect()


# --- authentication ----------------------------------------------------------------------------------------------


def test_a_client_that_says_who_it_is_is_told_that_nobody_asks_and_so_is_the_operator(broker, client):
    """Kafka gives the same error on a PLAINTEXT listener and leaves the peer to find out why."""
    assert client.ask(SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"}).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert client.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": b"?"}).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert client.conn.peer in broker.reported[0] and "security.protocol=PLAINTEXT" in broker.reported[0]
    assert client.produce("flights", b"still").error_code == 0


# --- unregistering brokers -----------------------------------------------------------------------------------------


def test_a_broker_that_is_not_there_cannot_be_unregistered(client):
    answer = client.ask(UNREGISTER_BROKER, 0, {"broker_id": 7})
    assert answer.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED and "7" in answer.error_message


def test_the_one_node_is_not_unregistered_by_a_client(broker, client):
    """Kafka unregisters it and then has partitions without a leader."""
    answer = client.ask(UNREGISTER_BROKER, 0, {"broker_id": broker.services.node.id})
    assert answer.error_code == ErrorCode.INVALID_REQUEST and "stop it" in answer.error_message


# --- directories -------------------------------------------------------------------------------------------------


def log_dirs(client, topics=None, version=5):
    request_topics = None if topics is None else [{"topic": name, "partitions": ids} for name, ids in topics.items()]
    (directory,) = client.ask(DESCRIBE_LOG_DIRS, version, {"topics": request_topics}).results
    sizes = {topic.name: {p.partition_index: p.partition_size for p in topic.partitions} for topic in directory.topics}
    return directory, sizes


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_the_directory_is_told_with_the_size_of_every_log(broker, client, version):
    client.produce("flights", b"x" * 100, partition=1)
    directory, sizes = log_dirs(client, version=version)
    assert (directory.error_code, directory.log_dir) == (0, "/memory")
    assert sizes == {"flights": {0: 0, 1: broker.services.logs.get("flights", 1).segments.size}, "trains": {0: 0}}
    if version >= 4:
        assert 0 < directory.usable_bytes < directory.total_bytes


def test_only_the_logs_asked_for_are_told_and_those_that_are_not_there_left_out(client):
    assert log_dirs(client, {"flights": [1, 7], "nowhere": [0]})[1] == {"flights": {1: 0}}
    assert log_dirs(client, {})[1] == {}


def test_a_directory_that_cannot_be_looked_at_says_so(broker, client, monkeypatch):
    def fail():
        raise StorageError("/memory", "Input/output error")

    monkeypatch.setattr(broker.storage, "space", fail)
    assert log_dirs(client)[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "Input/output error" in broker.reported[-1]


def test_a_log_can_be_moved_to_where_it_is(client):
    def moved(path, *partitions):
        directory = {"path": path, "topics": [{"name": "flights", "partitions": partitions}]}
        answer = client.ask(ALTER_REPLICA_LOG_DIRS, 2, {"dirs": [directory]})
        return [(partition.partition_index, partition.error_code) for partition in answer.results[0].partitions]

    assert moved("/memory", 0, 1) == [(0, 0), (1, 0)]
    assert moved("/elsewhere", 0) == [(0, ErrorCode.LOG_DIR_NOT_FOUND)]


# --- leaders and replicas ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version, kind", [(0, None), (1, 0), (2, 0), (2, 1)])
def test_no_leader_needs_to_be_elected(client, version, kind):
    election = {} if kind is None else {"election_type": kind}
    topic_partitions = [{"topic": "flights", "partitions": [0, 9]}, {"topic": "nowhere", "partitions": [0]}]
    answer = client.ask(ELECT_LEADERS, version, {"topic_partitions": topic_partitions} | election)
    results = [(result.topic, part) for result in answer.replica_election_results for part in result.partition_result]
    assert [(topic, part.partition_id, part.error_code) for topic, part in results] == [
        ("flights", 0, ErrorCode.ELECTION_NOT_NEEDED),
        ("flights", 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("nowhere", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    answer = client.ask(ELECT_LEADERS, version, {"topic_partitions": None} | election)
    assert not answer.replica_election_results


@pytest.mark.parametrize("version, kind, nobody", [(0, None, NO_PREFERRED), (2, 0, NO_PREFERRED), (2, 1, NO_ELIGIBLE)])
def test_a_partition_that_is_offline_has_nobody_to_elect(broker, client, version, kind, nobody):
    broker.services.log_of("flights", 1).offline = "its disk is gone"
    election = {} if kind is None else {"election_type": kind}

    def elected(topic_partitions):
        answer = client.ask(ELECT_LEADERS, version, {"topic_partitions": topic_partitions} | election)
        return [
            (result.topic, part.partition_id, part.error_code)
            for result in answer.replica_election_results
            for part in result.partition_result
        ]

    topic_partitions = [{"topic": "flights", "partitions": [0, 1]}]
    assert elected(topic_partitions) == [("flights", 0, ErrorCode.ELECTION_NOT_NEEDED), ("flights", 1, nobody)]
    assert elected(None) == [("flights", 1, nobody)]


def test_an_unknown_kind_of_election_is_refused(client):
    answer = client.ask(ELECT_LEADERS, 2, {"topic_partitions": None, "election_type": 7})
    assert answer.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    "topic, partition, replicas, code",
    [
        ("flights", 1, [1], ErrorCode.NONE),
        ("flights", 1, [2], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("flights", 1, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("flights", 1, [1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("flights", 1, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ("flights", 2, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("nowhere", 0, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_partition_can_be_on_the_one_node_only(client, version, topic, partition, replicas, code):
    reassignment = {"name": topic, "partitions": [{"partition_index": partition, "replicas": replicas}]}
    answer = client.ask(ALTER_REASSIGNMENTS, version, {"topics": [reassignment]})
    (result,) = answer.responses[0].partitions
    assert (answer.error_code, answer.responses[0].name, result.error_code) == (0, topic, code)


def test_no_partition_is_being_moved(client):
    for topics in (None, [{"name": "flights", "partition_indexes": [0]}]):
        answer = client.ask(LIST_REASSIGNMENTS, 0, {"topics": topics})
        assert (answer.error_code, answer.topics) == (0, ())


def test_the_quorum_is_one_node_that_counts_what_it_commits(broker, client):
    """DescribeQuorum is from KIP-595 and KIP-836."""

    def committed(broker):
        fields = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
        (partition,) = broker.connect().ask(DESCRIBE_QUORUM, 2, fields).topics[0].partitions
        (voter,) = partition.current_voters
        assert voter.log_end_offset == partition.high_watermark
        return partition.high_watermark

    before = committed(broker)
    broker.create("planes")
    assert committed(broker) == before + 1
    assert committed(broker.restarted()) == before + 1


# --- access rules ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3])
def test_without_access_rules_security_is_disabled(client, version):
    disabled = ErrorCode.SECURITY_DISABLED
    any_rule = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    assert client.ask(DESCRIBE_ACLS, version, any_rule).error_code == disabled
    deleted = client.ask(DELETE_ACLS, version, {"filters": [any_rule] * 2}).filter_results
    assert [result.error_code for result in deleted] == [disabled] * 2
    rule = {"resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:a", "host": "*"}
    created = client.ask(CREATE_ACLS, version, {"creations": [rule | {"operation": 3, "permission_type": 3}]}).results
    assert [result.error_code for result in created] == [disabled]


# --- features ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 4])
def test_features_are_told_but_none_that_changes_what_producers_do(client, version):
    """With a transaction.version of 2 Java's producer would use Produce and EndTxn as in KIP-890."""
    answer = client.ask(API_VERSIONS, version, {"client_software_name": "t", "client_software_version": "1"})
    levels = [(feature.name, feature.max_version_level) for feature in answer.finalized_features]
    assert levels == [("metadata.version", 25)]
    assert [(feature.name, feature.min_version) for feature in answer.supported_features] == [("metadata.version", 7)]
    assert answer.finalized_features_epoch == 0


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(
    "feature, level, code",
    [
        ("metadata.version", 25, ErrorCode.NONE),
        ("metadata.version", 24, ErrorCode.INVALID_UPDATE_VERSION),
        ("metadata.version", 26, ErrorCode.INVALID_UPDATE_VERSION),
        ("transaction.version", 2, ErrorCode.INVALID_UPDATE_VERSION),
    ],
)
def test_features_stay_what_they_are(client, version, feature, level, code):
    fields = {"feature_updates": [{"feature": feature, "max_version_level": level}]}
    answer = client.ask(UPDATE_FEATURES, version, fields)
    assert answer.error_code == code and bool(answer.error_message) == bool(code)
    if version < 2 and not code:
        assert [(result.feature, result.error_code) for result in answer.results] == [(feature, 0)]


# --- resources that have settings --------------------------------------------------------------------------------


def resources(client, *kinds, version=1):
    answer = client.ask(LIST_CONFIG_RESOURCES, version, {"resource_types": kinds} if version else {})
    return answer.error_code, [(resource.resource_type, resource.resource_name) for resource in answer.config_resources]


def test_resources_with_settings_are_listed_by_type(client):
    topics, brokers = [(2, "flights"), (2, "trains")], [(4, "1")]
    assert resources(client) == (0, topics + brokers)
    assert resources(client, 4) == (0, brokers)
    assert resources(client, 8, 16, 32) == (0, [])
    assert resources(client, 2, 77) == (ErrorCode.UNSUPPORTED_VERSION, [])


def test_the_oldest_version_lists_client_metrics_only(client):
    answer = client.ask(LIST_CONFIG_RESOURCES, 0, {})
    assert (answer.error_code, answer.config_resources) == (0, ())
