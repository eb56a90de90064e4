"""Rows of the table of errors: the node and its administration."""

from broker.log.storage.port import StorageError
from broker.wire.errors import ErrorCode as E
from tests.broker.every_error.case import ELSEWHERE, NOWHERE, Case, full, offline

MOVES = {"timeout": 10_000, "topics": None}
NO_FEATURES = {"timeout": 10_000, "feature_updates": []}
ANY_RULE = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
RULE = {
    "resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:a", "host": "*",
    "operation": 3, "permission_type": 3,
}  # fmt: skip


def directory(world):
    """Return the broker's log directory."""
    (result,) = directory_of(world).results
    return result.log_dir


def directory_of(world):
    return world.ask("DescribeLogDirs", {"topics": []})


def lost(world):
    """Make every query of the data directory's space fail."""

    def space():
        raise StorageError("", "Input/output error")

    world.broker.storage.space = space
    return world


def move(world, path=None, topic=None, partition=0):
    topics = [{"name": topic or world.topic, "partitions": [partition]}]
    return world.ask("AlterReplicaLogDirs", {"dirs": [{"path": path or directory(world), "topics": topics}]})


def quorum(world, topic="__cluster_metadata", partition=0):
    topic_fields = {"topic_name": topic, "partitions": [{"partition_index": partition}]}
    return world.ask("DescribeQuorum", {"topics": [topic_fields]})


def elect(world, topic=None, partition=0, kind=0, timeout=10_000):
    fields = {"topic_partitions": [{"topic": topic or world.topic, "partitions": [partition]}], "timeout": timeout}
    return world.ask("ElectLeaders", fields | {"election_type": kind})


def reassign(world, replicas, topic=None, partition=0, **more):
    reassignment = {"name": topic or world.topic, "partitions": [{"partition_index": partition, "replicas": replicas}]}
    return world.ask("AlterPartitionReassignments", {"timeout": 10_000, "topics": [reassignment]} | more)


def quota(world, entity, *ops, twice=1, validate_only=True):
    parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity]
    changes = [{"key": key, "value": value, "remove": False} for key, value in ops or (("producer_byte_rate", 1000.0),)]
    entries = {"entries": [{"entity": parts, "ops": changes}] * twice, "validate_only": validate_only}
    return world.ask("AlterClientQuotas", entries)


def another_quota(world):
    quota(world, [("user", "a")], validate_only=False)
    return quota(world, [("user", "b")], validate_only=False)


def quotas(world, *components):
    filters = [dict(zip(("entity_type", "match_type", "match"), component, strict=True)) for component in components]
    return world.ask("DescribeClientQuotas", {"components": filters, "strict": False})


def credential(world, name="ann", mechanism=1, iterations=4_096, twice=1):
    given = {"name": name, "mechanism": mechanism, "iterations": iterations, "salt": b"s", "salted_password": b"p"}
    return world.ask("AlterUserScramCredentials", {"deletions": [], "upsertions": [given] * twice})


def no_credential(world, name="nobody", mechanism=1):
    fields = {"deletions": [{"name": name, "mechanism": mechanism}], "upsertions": []}
    return world.ask("AlterUserScramCredentials", fields)


def credentials(world, *names):
    return world.ask("DescribeUserScramCredentials", {"users": [{"name": name} for name in names]})


def feature(world, name, level, kind=1):
    feature_updates = [{"feature": name, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": False}]
    return world.ask("UpdateFeatures", {"timeout": 10_000, "feature_updates": feature_updates})


NODE = [
    Case("ApiVersions", E.INVALID_REQUEST, lambda w: w.ask(w.name, {"client_software_name": "-"}), oldest=3),
    Case("DescribeCluster", E.MISMATCHED_ENDPOINT_TYPE, lambda w: w.ask(w.name, {"endpoint_type": 2}), oldest=1),
    Case("DescribeCluster", E.UNSUPPORTED_ENDPOINT_TYPE, lambda w: w.ask(w.name, {"endpoint_type": 7}), oldest=1),
    Case("AlterReplicaLogDirs", E.LOG_DIR_NOT_FOUND, lambda w: move(w, "/nowhere")),
    Case("AlterReplicaLogDirs", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: move(w, topic=NOWHERE)),
    Case("AlterReplicaLogDirs", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: move(w, partition=7)),
    Case("AlterReplicaLogDirs", E.KAFKA_STORAGE_ERROR, lambda w: move(w, topic=offline(w)), inside=True),
    Case("DescribeQuorum", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: quorum(w, NOWHERE)),
    Case("DescribeQuorum", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: quorum(w, partition=7)),
    Case("ElectLeaders", E.NOT_CONTROLLER, lambda w: elect(w, NOWHERE), **ELSEWHERE),
    Case("AlterPartitionReassignments", E.NOT_CONTROLLER, lambda w: reassign(w, [1], NOWHERE), **ELSEWHERE),
    Case("ListPartitionReassignments", E.NOT_CONTROLLER, lambda w: w.ask(w.name, MOVES), **ELSEWHERE),
    Case("UpdateFeatures", E.NOT_CONTROLLER, lambda w: w.ask(w.name, NO_FEATURES), **ELSEWHERE),
    Case("AlterUserScramCredentials", E.NOT_CONTROLLER, credential, **ELSEWHERE),
    Case("ElectLeaders", E.ELECTION_NOT_NEEDED, elect),
    Case("ElectLeaders", E.PREFERRED_LEADER_NOT_AVAILABLE, lambda w: elect(w, offline(w)), inside=True),
    Case("ElectLeaders", E.ELIGIBLE_LEADERS_NOT_AVAILABLE, lambda w: elect(w, offline(w), kind=1), oldest=1,
         inside=True),
    Case("ElectLeaders", E.REQUEST_TIMED_OUT, lambda w: elect(w, timeout=0)),
    Case("AlterPartitionReassignments", E.REQUEST_TIMED_OUT, lambda w: reassign(w, [1], timeout=0)),
    Case("ElectLeaders", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: elect(w, NOWHERE)),
    Case("ElectLeaders", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: elect(w, partition=7)),
    Case("ElectLeaders", E.INVALID_REQUEST, lambda w: elect(w, kind=7), oldest=1),
    Case("AlterPartitionReassignments", E.INVALID_REPLICA_ASSIGNMENT, lambda w: reassign(w, [7])),
    Case("AlterPartitionReassignments", E.INVALID_REPLICA_ASSIGNMENT, lambda w: reassign(w, [])),
    Case("AlterPartitionReassignments", E.INVALID_REPLICA_ASSIGNMENT, lambda w: reassign(w, [1, 1])),
    Case("AlterPartitionReassignments", E.NO_REASSIGNMENT_IN_PROGRESS, lambda w: reassign(w, None)),
    Case("AlterPartitionReassignments", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: reassign(w, [1], NOWHERE)),
    Case("AlterPartitionReassignments", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: reassign(w, [1], partition=7)),
    Case("DescribeAcls", E.SECURITY_DISABLED, lambda w: w.ask(w.name, ANY_RULE)),
    Case("CreateAcls", E.SECURITY_DISABLED, lambda w: w.ask(w.name, {"creations": [RULE]})),
    Case("DeleteAcls", E.SECURITY_DISABLED, lambda w: w.ask(w.name, {"filters": [ANY_RULE]})),
    Case("SaslHandshake", E.ILLEGAL_SASL_STATE, lambda w: w.ask(w.name, {"mechanism": "PLAIN"})),
    Case("SaslAuthenticate", E.ILLEGAL_SASL_STATE, lambda w: w.ask(w.name, {"auth_bytes": b"\0me\0secret"})),
    Case("UnregisterBroker", E.BROKER_ID_NOT_REGISTERED, lambda w: w.ask(w.name, {"broker_id": 7})),
    # Kafka unregisters the broker and leaves its partitions without a leader.
    Case("UnregisterBroker", E.INVALID_REQUEST, lambda w: w.ask(w.name, {"broker_id": 1}), inside=True),
    Case("AlterClientQuotas", E.INVALID_REQUEST, lambda w: quota(w, [])),
    Case("AlterClientQuotas", E.INVALID_REQUEST, lambda w: quota(w, [("planet", "mars")])),
    # Kafka uses the last of the two.
    Case("AlterClientQuotas", E.INVALID_REQUEST, lambda w: quota(w, [("user", "a"), ("user", "b")]), kafka=E.NONE),
    Case("AlterClientQuotas", E.INVALID_REQUEST, lambda w: quota(w, [("ip", "1.2.3.4"), ("user", "b")])),
    Case("AlterClientQuotas", E.INVALID_REQUEST, lambda w: quota(w, [("user", "a")], ("no_such_quota", 1.0))),
    Case("AlterClientQuotas", E.INVALID_REQUEST, lambda w: quota(w, [("user", "a")], ("producer_byte_rate", 0.5))),
    Case("AlterClientQuotas", E.INVALID_REQUEST, lambda w: quota(w, [("user", "a")], ("producer_byte_rate", -1.0))),
    Case("AlterClientQuotas", E.KAFKA_STORAGE_ERROR,
         lambda w: quota(full(w), [("user", "a")], validate_only=False), inside=True),
    Case("AlterClientQuotas", E.POLICY_VIOLATION, another_quota, inside=True, settings={"max_client_quotas": 1}),
    Case("DescribeClientQuotas", E.INVALID_REQUEST, lambda w: quotas(w, ("user", 0, "a"), ("user", 0, "b"))),
    Case("DescribeClientQuotas", E.INVALID_REQUEST, lambda w: quotas(w, ("user", 7, "a"))),
    Case("DescribeClientQuotas", E.INVALID_REQUEST, lambda w: quotas(w, ("user", 0, None))),
    Case("DescribeClientQuotas", E.UNSUPPORTED_VERSION, lambda w: quotas(w, ("planet", 0, "mars"))),
    Case("AlterUserScramCredentials", E.UNACCEPTABLE_CREDENTIAL, lambda w: credential(w, iterations=1)),
    Case("AlterUserScramCredentials", E.UNACCEPTABLE_CREDENTIAL, lambda w: credential(w, iterations=1 << 20)),
    Case("AlterUserScramCredentials", E.UNACCEPTABLE_CREDENTIAL, lambda w: credential(w, "")),
    Case("AlterUserScramCredentials", E.UNSUPPORTED_SASL_MECHANISM, lambda w: credential(w, mechanism=7)),
    Case("AlterUserScramCredentials", E.DUPLICATE_RESOURCE, lambda w: credential(w, twice=2)),
    Case("AlterUserScramCredentials", E.RESOURCE_NOT_FOUND, no_credential),
    Case("AlterUserScramCredentials", E.KAFKA_STORAGE_ERROR, lambda w: credential(full(w)), inside=True),
    Case("AlterUserScramCredentials", E.POLICY_VIOLATION, lambda w: credential(w) and credential(w, "bob"), inside=True,
         settings={"max_scram_credentials": 1}),
    Case("DescribeLogDirs", E.KAFKA_STORAGE_ERROR, lambda w: directory_of(lost(w)), inside=True),
    Case("DescribeUserScramCredentials", E.RESOURCE_NOT_FOUND, lambda w: credentials(w, "nobody")),
    Case("DescribeUserScramCredentials", E.DUPLICATE_RESOURCE, lambda w: credentials(w, "nobody", "nobody")),
    Case("UpdateFeatures", E.INVALID_UPDATE_VERSION, lambda w: feature(w, "metadata.version", 99)),
    Case("UpdateFeatures", E.INVALID_UPDATE_VERSION, lambda w: feature(w, "no.such.feature", 1)),
]  # fmt: skip
