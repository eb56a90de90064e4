"""Every row of the API table, in each version from the lowest to the highest: a good request and its answer.

kio reads the answers by Kafka's own schemas (tests/broker/any_api.py). The tests in tests/broker/handlers cover the
behaviour of each API; these tests leave out no API and no version.
"""

import pytest

from broker.engine.api_table import APIS
from broker.settings.kafka_apis import KAFKA_APIS, NOT_SERVED
from tests.broker.any_api import EngineLine, World, code_of, codes_of, create_topic, offsets_of
from tests.broker.engine_client import EngineBroker

ASKS = {}
VERSIONS = [(api.name, version) for api in APIS.values() for version in range(api.oldest, api.newest + 1)]
ANY_RULE = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
RULE = {
    "resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:a", "host": "*",
    "operation": 3, "permission_type": 3,
}  # fmt: skip
SECURITY_DISABLED = 54
ELECTION_NOT_NEEDED = 84
BROKER_ID_NOT_REGISTERED = 102
ILLEGAL_SASL_STATE = 34


def asks(test):
    """Register a test for the API that has the function's name."""
    ASKS["".join(word.capitalize() for word in test.__name__.split("_"))] = test
    return test


@pytest.mark.parametrize("name, version", VERSIONS)
def test_every_api_is_answered_in_every_version(name, version):
    broker = EngineBroker(group_initial_rebalance_delay_ms=0, offsets_topic_num_partitions=1)
    ASKS[name](World(EngineLine(broker), name, version))


def test_no_api_is_left_out():
    assert ASKS.keys() == {api.name for api in APIS.values()}


def test_the_rows_are_those_of_kafka_or_a_part_of_them():
    for key, api in APIS.items():
        name, oldest, newest = KAFKA_APIS[key]
        assert api.name == name and oldest <= api.oldest <= api.newest <= newest


def test_of_every_api_that_is_not_served_the_reason_is_told():
    assert NOT_SERVED.keys() == {name for name, _, _ in KAFKA_APIS.values()} - ASKS.keys()


# --- records ---------------------------------------------------------------------------------------------------------


@asks
def produce(world):
    (topic,) = world.produce().responses
    (result,) = topic.partition_responses
    assert (result.index, result.error_code, result.base_offset) == (0, 0, 0)
    assert (topic.topic_id == world.id_of(world.topic)) if world.version >= 13 else (topic.name == world.topic)


@asks
def fetch(world):
    world.produce()
    (topic,) = world.fetch().responses
    (result,) = topic.partitions
    assert (result.partition_index, result.error_code, result.high_watermark, result.last_stable_offset) == (0, 0, 1, 1)
    assert bytes(result.records).endswith(b"v\0")


@asks
def list_offsets(world):
    world.produce()
    fields = {"replica_id": -1, "isolation_level": 0, "topics": [offsets_of(world.topic, [0, 1])], "timeout": 1_000}
    (topic,) = world.ask("ListOffsets", fields).topics
    offsets = [(partition.partition_index, partition.error_code, partition.offset) for partition in topic.partitions]
    assert offsets == [(0, 0, 1), (1, 0, 0)]


@asks
def offset_for_leader_epoch(world):
    world.produce()
    requested = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    topics = [{"topic": world.topic, "partitions": [requested]}]
    (topic,) = world.ask("OffsetForLeaderEpoch", {"replica_id": -1, "topics": topics}).topics
    (partition,) = topic.partitions
    assert (partition.error_code, partition.leader_epoch, partition.end_offset) == (0, 0, 1)


@asks
def delete_records(world):
    world.produce()
    requested = {"name": world.topic, "partitions": [{"partition_index": 0, "offset": -1}]}
    (topic,) = world.ask("DeleteRecords", {"topics": [requested], "timeout": 1_000}).topics
    assert [(partition.error_code, partition.low_watermark) for partition in topic.partitions] == [(0, 1)]


# --- the cluster -----------------------------------------------------------------------------------------------------


@asks
def api_versions(world):
    fields = {"client_software_name": "tests", "client_software_version": "1"}
    answer = world.ask("ApiVersions", fields)
    ranges = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    assert answer.error_code == 0
    assert ranges == {api.key: (api.advertised_oldest, api.newest) for api in APIS.values()}


@asks
def metadata(world):
    fields = {"topics": [{"name": world.topic, "topic_id": None}], "allow_auto_topic_creation": False}
    answer = world.ask("Metadata", fields)
    (topic,) = answer.topics
    assert code_of(answer) == 0 and [node.node_id for node in answer.brokers] == [1]
    assert (topic.name, [partition.leader_id for partition in topic.partitions]) == (world.topic, [1, 1])


@asks
def describe_cluster(world):
    answer = world.ask("DescribeCluster", {"endpoint_type": 1})
    assert (answer.error_code, answer.controller_id, [node.broker_id for node in answer.brokers]) == (0, 1, [1])


@asks
def describe_topic_partitions(world):
    fields = {"topics": [{"name": world.topic}], "response_partition_limit": 1, "cursor": None}
    answer = world.ask("DescribeTopicPartitions", fields)
    assert code_of(answer) == 0 and [len(topic.partitions) for topic in answer.topics] == [1]
    assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == (world.topic, 1)


@asks
def describe_log_dirs(world):
    fields = {"topics": [{"topic": world.topic, "partitions": [0, 1]}]}
    (directory,) = world.ask("DescribeLogDirs", fields).results
    assert directory.error_code == 0 and [len(topic.partitions) for topic in directory.topics] == [2]


@asks
def alter_replica_log_dirs(world):
    path = world.broker.services.logs.storage.location
    fields = {"dirs": [{"path": path, "topics": [{"name": world.topic, "partitions": [0, 1]}]}]}
    assert codes_of(world.ask("AlterReplicaLogDirs", fields)) == [0, 0]


@asks
def describe_quorum(world):
    fields = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
    answer = world.ask("DescribeQuorum", fields)
    (partition,) = answer.topics[0].partitions
    voters = [voter.replica_id for voter in partition.current_voters]
    assert (code_of(answer), partition.leader_id, voters) == (0, 1, [1])


@asks
def elect_leaders(world):
    fields = {"topic_partitions": [{"topic": world.topic, "partitions": [0]}], "timeout": 1_000}
    assert code_of(world.ask("ElectLeaders", fields)) == ELECTION_NOT_NEEDED


@asks
def unregister_broker(world):
    answer = world.ask("UnregisterBroker", {"broker_id": 7})
    assert answer.error_code == BROKER_ID_NOT_REGISTERED and "7" in answer.error_message


@asks
def alter_partition_reassignments(world):
    reassignment = {"name": world.topic, "partitions": [{"partition_index": 0, "replicas": [1]}]}
    answer = world.ask("AlterPartitionReassignments", {"timeout": 1_000, "topics": [reassignment]})
    assert codes_of(answer) == [0, 0]


@asks
def list_partition_reassignments(world):
    answer = world.ask("ListPartitionReassignments", {"timeout": 1_000, "topics": None})
    assert (answer.error_code, answer.topics) == (0, ())


@asks
def update_features(world):
    fields = {"feature_updates": [{"feature": "metadata.version", "max_version_level": 25}], "timeout": 1_000}
    assert set(codes_of(world.ask("UpdateFeatures", fields))) == {0}


# --- topics and settings ---------------------------------------------------------------------------------------------


@asks
def create_topics(world):
    (topic,) = world.ask("CreateTopics", create_topic("made", num_partitions=3)).topics
    assert (topic.name, topic.error_code) == ("made", 0)
    assert world.fetch("made", partition=2, version=12).responses


@asks
def create_partitions(world):
    fields = {"topics": [{"name": world.topic, "count": 3, "assignments": None}], "timeout": 1_000}
    (result,) = world.ask("CreatePartitions", fields).results
    assert (result.name, result.error_code) == (world.topic, 0)


@asks
def delete_topics(world):
    fields = {"topic_names": [world.topic], "topics": [{"name": world.topic, "topic_id": None}], "timeout": 1_000}
    (answer,) = world.ask("DeleteTopics", fields).responses
    assert (answer.name, answer.error_code) == (world.topic, 0)


def settings(world, **more):
    return {"resource_type": 2, "resource_name": world.topic} | more


@asks
def describe_configs(world):
    resource = settings(world, configuration_keys=["retention.ms"])
    (result,) = world.ask("DescribeConfigs", {"resources": [resource]}).results
    assert (result.error_code, [(config.name, config.value) for config in result.configs]) == (
        0, [("retention.ms", "604800000")],
    )  # fmt: skip


@asks
def alter_configs(world):
    resource = settings(world, configs=[{"name": "retention.ms", "value": "1000"}])
    assert codes_of(world.ask("AlterConfigs", {"resources": [resource], "validate_only": False})) == [0]


@asks
def incremental_alter_configs(world):
    resource = settings(world, configs=[{"name": "retention.ms", "config_operation": 0, "value": "1000"}])
    assert codes_of(world.ask("IncrementalAlterConfigs", {"resources": [resource], "validate_only": False})) == [0]


@asks
def list_config_resources(world):
    answer = world.ask("ListConfigResources", {"resource_types": [4]})
    assert answer.error_code == 0
    assert [resource.resource_name for resource in answer.config_resources] == (["1"] if world.version >= 1 else [])


# --- groups ----------------------------------------------------------------------------------------------------------


@asks
def find_coordinator(world):
    answer = world.ask("FindCoordinator", {"key": "g", "coordinator_keys": ["g"], "key_type": 0})
    answer = answer.coordinators[0] if world.version >= 4 else answer
    assert (answer.error_code, answer.node_id, answer.port) == (0, 1, 9092)


@asks
def join_group(world):
    world.coordinated()
    answer = world.join()
    if world.version >= 4:
        assert code_of(answer) == 79, "a new member is given its id first (KIP-394)"
        answer = world.join(answer.member_id)
    assert (answer.error_code, answer.generation_id, answer.leader) == (0, 1, answer.member_id)
    assert [member.member_id for member in answer.members] == [answer.member_id]


@asks
def sync_group(world):
    assert world.sync(*world.joined()).assignment == b"x"


@asks
def heartbeat(world):
    assert world.heartbeat(*world.member()).error_code == 0


@asks
def leave_group(world):
    member, _ = world.member()
    assert set(codes_of(world.leave(member))) == {0}


@asks
def offset_commit(world):
    answer = world.commit(*world.member())
    assert codes_of(answer) == [0]


@asks
def offset_fetch(world):
    world.coordinated()
    world.commit()
    answer = world.committed()
    answer = answer.groups[0] if world.version >= 8 else answer
    (result,) = answer.topics[0].partitions
    assert (result.committed_offset, code_of(answer)) == (3, 0)


@asks
def describe_groups(world):
    member, _ = world.member()
    (group,) = world.ask("DescribeGroups", {"groups": [world.group]}).groups
    members = [joined.member_id for joined in group.members]
    assert (group.error_code, group.group_state, members) == (0, "Stable", [member])


@asks
def list_groups(world):
    world.member()
    answer = world.ask("ListGroups", {"states_filter": ["Stable"], "types_filter": []})
    assert (answer.error_code, [group.group_id for group in answer.groups]) == (0, [world.group])


@asks
def delete_groups(world):
    world.coordinated()
    world.commit()
    assert codes_of(world.ask("DeleteGroups", {"groups_names": [world.group]})) == [0]


@asks
def offset_delete(world):
    world.coordinated()
    world.commit()
    topics = [{"name": world.topic, "partitions": [{"partition_index": 0}]}]
    assert codes_of(world.ask("OffsetDelete", {"group_id": world.group, "topics": topics})) == [0, 0]


# --- transactions ----------------------------------------------------------------------------------------------------


@asks
def init_producer_id(world):
    answer = world.init()
    assert (answer.error_code, answer.producer_epoch) == (0, 0)


@asks
def add_partitions_to_txn(world):
    assert codes_of(world.add(world.producer(), (world.topic, 0), (world.topic, 1))) == [0, 0]


@asks
def add_offsets_to_txn(world):
    assert world.add_offsets(world.producer()).error_code == 0


@asks
def txn_offset_commit(world):
    producer = world.producer()
    world.coordinated()
    world.add_offsets(producer)
    assert codes_of(world.commit_in(producer)) == [0]


@asks
def end_txn(world):
    producer = world.producer()
    world.add(producer)
    assert code_of(world.write(producer)) == 0
    answer = world.end(producer)
    assert answer.error_code == 0
    if world.version >= 5:
        assert (answer.producer_id, answer.producer_epoch) == (producer[0], producer[1] + 1)


@asks
def write_txn_markers(world):
    producer = world.producer()
    world.add(producer)
    world.write(producer)
    assert codes_of(world.mark(producer)) == [0]
    (topic,) = world.ask("DescribeProducers", {"topics": [{"name": world.topic, "partition_indexes": [0]}]}).topics
    assert [active.current_txn_start_offset for active in topic.partitions[0].active_producers] == [-1]


@asks
def describe_producers(world):
    producer = world.producer()
    world.add(producer)
    world.write(producer)
    (topic,) = world.ask("DescribeProducers", {"topics": [{"name": world.topic, "partition_indexes": [0]}]}).topics
    (partition,) = topic.partitions
    assert [active.producer_id for active in partition.active_producers] == [producer[0]]


@asks
def describe_transactions(world):
    producer = world.producer()
    world.add(producer)
    (state,) = world.ask("DescribeTransactions", {"transactional_ids": [world.transactional_id]}).transaction_states
    assert (state.error_code, state.transaction_state, state.producer_id) == (0, "Ongoing", producer[0])


@asks
def list_transactions(world):
    world.producer()
    answer = world.ask("ListTransactions", {"state_filters": ["Empty"], "producer_id_filters": []})
    assert (answer.error_code, [transaction.transactional_id for transaction in answer.transaction_states]) == (
        0, [world.transactional_id],
    )  # fmt: skip


# --- security and quotas ---------------------------------------------------------------------------------------------


@asks
def sasl_handshake(world):
    answer = world.ask("SaslHandshake", {"mechanism": "PLAIN"})
    assert (answer.error_code, answer.mechanisms) == (ILLEGAL_SASL_STATE, ())


@asks
def sasl_authenticate(world):
    answer = world.ask("SaslAuthenticate", {"auth_bytes": b"\0me\0secret"})
    assert (answer.error_code, answer.auth_bytes) == (ILLEGAL_SASL_STATE, b"")
    assert "SASL" in answer.error_message


@asks
def describe_acls(world):
    assert world.ask("DescribeAcls", ANY_RULE).error_code == SECURITY_DISABLED


@asks
def create_acls(world):
    assert codes_of(world.ask("CreateAcls", {"creations": [RULE]})) == [SECURITY_DISABLED]


@asks
def delete_acls(world):
    assert codes_of(world.ask("DeleteAcls", {"filters": [ANY_RULE]})) == [SECURITY_DISABLED]


QUOTA = {"entity": [{"entity_type": "user", "entity_name": "ann"}]}


@asks
def alter_client_quotas(world):
    entry = QUOTA | {"ops": [{"key": "producer_byte_rate", "value": 1000.0, "remove": False}]}
    assert codes_of(world.ask("AlterClientQuotas", {"entries": [entry], "validate_only": False})) == [0]


@asks
def describe_client_quotas(world):
    alter_client_quotas(world)
    fields = {"components": [{"entity_type": "user", "match_type": 0, "match": "ann"}], "strict": False}
    (entry,) = world.ask("DescribeClientQuotas", fields).entries
    assert [(quota.key, quota.value) for quota in entry.values] == [("producer_byte_rate", 1000.0)]


@asks
def alter_user_scram_credentials(world):
    given = {"name": "ann", "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"password"}
    answer = world.ask("AlterUserScramCredentials", {"deletions": [], "upsertions": [given]})
    assert [(result.user, result.error_code) for result in answer.results] == [("ann", 0)]


@asks
def describe_user_scram_credentials(world):
    alter_user_scram_credentials(world)
    (user,) = world.ask("DescribeUserScramCredentials", {"users": None}).results
    assert [(info.mechanism, info.iterations) for info in user.credential_infos] == [(1, 4096)]
