"""Third-party admin clients, unchanged, against a real server: confluent-kafka's and kafka-python's.

The expected results are those for a single Kafka node without access rules.
"""

from itertools import count

import confluent_kafka
import kafka
import kafka.errors
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ConfigResourceType
from kafka.admin import NewTopic as PythonTopic

from tests.compat.cluster_servers import one_or_three
from tests.compat.stock_clients import QUIET
from tests.patience import SECONDS

SETTINGS = {"log.retention.ms": 86_400_000, "num.io.threads": 16}

_numbers = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with one_or_three(tmp_path_factory.mktemp("admin"), SETTINGS) as server:
        yield server


@pytest.fixture
def admin(server):
    return AdminClient({"bootstrap.servers": server.address, **QUIET})


@pytest.fixture
def python_admin(server):
    with kafka.KafkaAdminClient(bootstrap_servers=server.address) as admin:
        yield admin


@pytest.fixture
def topic(admin):
    name = f"admin-{next(_numbers)}"
    admin.create_topics([NewTopic(name, 1, config={"segment.bytes": "1048576"})])[name].result(SECONDS)
    return name


def only(futures):
    ((_, future),) = futures.items()
    return future.result(SECONDS)


def settings(admin, kind, name):
    return only(admin.describe_configs([ConfigResource(kind, name)]))


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated")
def test_confluent_describes_and_alters_a_topics_settings(admin, topic):
    before = settings(admin, ResourceType.TOPIC, topic)
    assert (before["segment.bytes"].value, before["segment.bytes"].source) == (
        "1048576",
        ConfigSource.DYNAMIC_TOPIC_CONFIG.value,
    )
    assert before["retention.ms"].source == ConfigSource.STATIC_BROKER_CONFIG.value
    assert list(before["retention.ms"].synonyms) == ["log.retention.ms", "log.retention.hours"]  # the default
    assert not before["retention.ms"].is_read_only
    changes = [
        ConfigEntry("retention.ms", "60000", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
        ConfigEntry("segment.bytes", None, incremental_operation=AlterConfigOpType.DELETE),
    ]
    only(admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)]))
    after = settings(admin, ResourceType.TOPIC, topic)
    values = {name: after[name].value for name in ("retention.ms", "cleanup.policy", "segment.bytes")}
    assert values == {"retention.ms": "60000", "cleanup.policy": "delete,compact", "segment.bytes": "1073741824"}
    only(admin.alter_configs([ConfigResource(ResourceType.TOPIC, topic, set_config={"max.message.bytes": "5000"})]))
    assert settings(admin, ResourceType.TOPIC, topic)["retention.ms"].value == "86400000"


def test_confluent_describes_and_alters_a_brokers_settings(admin, topic):
    configs = settings(admin, ResourceType.BROKER, "1")
    assert configs["node.id"].is_read_only and configs["num.io.threads"].value == "16"
    assert configs["log.dirs"].value.endswith("data") and len(configs) > 200
    change = [ConfigEntry("log.flush.interval.ms", "5000", incremental_operation=AlterConfigOpType.SET)]
    only(admin.incremental_alter_configs([ConfigResource(ResourceType.BROKER, "1", incremental_configs=change)]))
    flush_ms = settings(admin, ResourceType.TOPIC, topic)["flush.ms"]
    assert (flush_ms.value, flush_ms.source) == ("5000", ConfigSource.DYNAMIC_BROKER_CONFIG.value)
    change = [ConfigEntry("log.flush.interval.ms", None, incremental_operation=AlterConfigOpType.DELETE)]
    only(admin.incremental_alter_configs([ConfigResource(ResourceType.BROKER, "1", incremental_configs=change)]))
    change = [ConfigEntry("node.id", "2", incremental_operation=AlterConfigOpType.SET)]
    with pytest.raises(confluent_kafka.KafkaException, match=r"\[node.id\]; it is read once"):
        only(admin.incremental_alter_configs([ConfigResource(ResourceType.BROKER, "1", incremental_configs=change)]))


def test_confluent_adds_partitions_and_a_consumer_sees_them(admin, topic):
    only(admin.create_partitions([NewPartitions(topic, 3)]))
    assert len(admin.list_topics(topic, timeout=SECONDS).topics[topic].partitions) == 3
    with pytest.raises(confluent_kafka.KafkaException, match="has 3 partition"):
        only(admin.create_partitions([NewPartitions(topic, 2)]))


def test_confluent_describes_the_cluster_and_topics(admin, topic):
    cluster = admin.describe_cluster(include_authorized_operations=True).result(SECONDS)
    assert cluster.cluster_id and [node.id for node in cluster.nodes] == [cluster.controller.id] == [1]
    assert len(cluster.authorized_operations) == 7
    named = confluent_kafka.TopicCollection([topic])
    described = only(admin.describe_topics(named, include_authorized_operations=True))
    assert [partition.leader.id for partition in described.partitions] == [1]
    assert len(described.authorized_operations) == 8


def test_kafka_python_describes_and_alters_settings(python_admin, topic):
    def described(name):
        resources = [PythonResource(ConfigResourceType.TOPIC, topic)]
        return python_admin.describe_configs(resources, config_filter="all")["topic"][topic][name]

    assert described("segment.bytes")["value"] == "1048576"
    python_admin.alter_configs([PythonResource(ConfigResourceType.TOPIC, topic, {"segment.bytes": "2097152"})])
    assert described("segment.bytes")["value"] == "2097152"
    python_admin.reset_configs([PythonResource(ConfigResourceType.TOPIC, topic, ["segment.bytes"])])
    assert described("segment.bytes")["value"] == "1073741824"


def test_kafka_python_makes_grows_and_describes_topics(python_admin):
    name = f"admin-{next(_numbers)}"
    python_admin.create_topics([PythonTopic(name, 1, 1)])
    python_admin.create_partitions({name: 2})
    (described,) = python_admin.describe_topics([name])
    assert len(described["partitions"]) == 2
    pages = python_admin.describe_topic_partitions([name], response_partition_limit=1)
    assert pages["topics"][0]["partitions"][0]["leader_id"] == 1 and pages["next_cursor"]["partition_index"] == 1
    assert python_admin.describe_cluster()["controller_id"] == 1


def test_confluent_sets_and_describes_credentials(admin):
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8_192)
    only(admin.alter_user_scram_credentials([UserScramCredentialUpsertion("ann", info, b"secret")]))
    described = admin.describe_user_scram_credentials(["ann"])["ann"].result(SECONDS)
    assert [(info.mechanism, info.iterations) for info in described.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_256, 8_192)
    ]


def test_confluent_is_told_that_there_are_no_access_rules(admin):
    rule = AclBinding(
        ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:a", "*", AclOperation.READ, AclPermissionType.ALLOW
    )
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        only(admin.create_acls([rule]))
    assert caught.value.args[0].code() == confluent_kafka.KafkaError.SECURITY_DISABLED


def test_confluent_learns_that_no_leader_needs_to_be_elected(admin, topic):
    partition = confluent_kafka.TopicPartition(topic, 0)
    result = admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, [partition]).result(SECONDS)
    assert [error.code() for error in result.values()] == [confluent_kafka.KafkaError.ELECTION_NOT_NEEDED]


def test_kafka_python_describes_directories_features_and_reassignments(python_admin, topic):
    ((directory,),) = [broker["log_dirs"] for broker in python_admin.describe_log_dirs()]
    assert topic in [listed["name"] for listed in directory["topics"]] and directory["usable_bytes"] > 0
    assert python_admin.describe_features()["metadata.version"]["finalized"] == (25, 25)
    assert python_admin.update_features({"metadata.version": 25}) == {"metadata.version": "OK"}
    with pytest.raises(kafka.errors.InvalidUpdateVersionError):
        python_admin.update_features({"metadata.version": 24})
    assert python_admin.list_partition_reassignments() == {}
    partition = kafka.TopicPartition(topic, 0)
    (error,) = python_admin.alter_partition_reassignments({partition: [7]}).values()
    assert error is kafka.errors.InvalidReplicationAssignmentError
    assert ("topic", topic) in [
        (kind, name) for kind, names in python_admin.list_config_resources().items() for name in names
    ]
