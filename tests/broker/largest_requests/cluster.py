"""The largest requests about the cluster, its nodes and its users."""

from uuid import UUID

from broker.metadata.change import Change, Credential
from broker.metadata.staged import Staged
from tests.broker.largest_requests.case import PARTITIONS, SOME, case, logs, names, one_topic, topics


@case("Metadata", most=SOME)
def metadata_of_unknown_topics(world, number):
    requested = [{"name": name, "topic_id": None} for name in names(number)]
    return {"topics": requested, "allow_auto_topic_creation": False}


@case("Metadata", most=SOME)
def metadata_that_makes_topics(world, number):
    requested = [{"name": name, "topic_id": None} for name in names(number)]
    return {"topics": requested, "allow_auto_topic_creation": True}


@case("Metadata", 1, 13, most=SOME)
def metadata_of_all_topics(world, number):
    topics(world, number)
    return {"topics": None}


@case("Metadata", most=PARTITIONS)
def metadata_of_a_topic_with_many_partitions(world, number):
    one_topic(world, number)
    return {"topics": [{"name": "wide", "topic_id": None}]}


@case("Metadata")
def metadata_of_ids(world, number):
    return {"topics": [{"name": None, "topic_id": UUID(int=index + 1)} for index in range(number)]}


@case("DescribeTopicPartitions", most=SOME)
def describe_topic_partitions(world, number):
    topics(world, number)
    requested = [{"name": name} for name in names(number)]
    return {"topics": requested, "response_partition_limit": 1 << 30, "cursor": None}


@case("DescribeTopicPartitions")
def describe_unknown_topic_partitions(world, number):
    requested = [{"name": name} for name in names(number)]
    return {"topics": requested, "response_partition_limit": 1 << 30, "cursor": None}


@case("DescribeLogDirs", most=PARTITIONS)
def describe_log_dirs(world, number):
    requested = [{"topic": logs(world, number), "partitions": list(range(number))}]
    return {"topics": requested}


@case("DescribeLogDirs", most=PARTITIONS)
def describe_all_log_dirs(world, number):
    logs(world, number)
    return {"topics": None}


@case("AlterReplicaLogDirs", most=PARTITIONS)
def alter_replica_log_dirs(world, number):
    path = world.broker.services.logs.storage.location
    return {"dirs": [{"path": path, "topics": [{"name": logs(world, number), "partitions": list(range(number))}]}]}


@case("DescribeQuorum")
def describe_quorum(world, number):
    return {"topics": [{"topic_name": name, "partitions": [{"partition_index": 0}]} for name in names(number)]}


@case("ElectLeaders", most=PARTITIONS)
def elect_leaders(world, number):
    requested = [{"topic": one_topic(world, number), "partitions": list(range(number))}]
    return {"topic_partitions": requested, "timeout": 1_000}


@case("AlterPartitionReassignments", most=PARTITIONS)
def alter_partition_reassignments(world, number):
    parts = [{"partition_index": index, "replicas": [1]} for index in range(number)]
    return {"timeout": 1_000, "topics": [{"name": one_topic(world, number), "partitions": parts}]}


@case("ListPartitionReassignments")
def list_partition_reassignments(world, number):
    requested = [{"name": name, "partition_indexes": [0]} for name in names(number)]
    return {"timeout": 1_000, "topics": requested}


@case("UpdateFeatures")
def update_features(world, number):
    feature_updates = [{"feature": "metadata.version", "max_version_level": 25}] * number
    return {"feature_updates": feature_updates, "timeout": 1_000}


RULE = {
    "resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:a", "host": "*",
    "operation": 3, "permission_type": 3,
}  # fmt: skip
ANY_RULE = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip


@case("CreateAcls")
def create_acls(world, number):
    return {"creations": [RULE] * number}


@case("DeleteAcls")
def delete_acls(world, number):
    return {"filters": [ANY_RULE] * number}


def quota_entries(number):
    ops = [{"key": "producer_byte_rate", "value": 1000.0, "remove": False}]
    return [
        {"entity": [{"entity_type": "user", "entity_name": name}], "ops": ops} for name in names(number)
    ]


@case("AlterClientQuotas")
def alter_client_quotas(world, number):
    return {"entries": quota_entries(number), "validate_only": False}


@case("AlterClientQuotas")
def validate_client_quotas(world, number):
    return {"entries": quota_entries(number), "validate_only": True}


@case("AlterClientQuotas")
def alter_many_quotas_of_a_client(world, number):
    (entry,) = quota_entries(1)
    return {"entries": [entry | {"ops": entry["ops"] * number}], "validate_only": True}


@case("DescribeClientQuotas")
def describe_client_quotas(world, number):
    quotas = {(("user", name),): {"producer_byte_rate": 1000.0} for name in names(number)}
    world.broker.change(Staged(Change(quotas=quotas)))
    return {"components": [], "strict": False}


@case("DescribeClientQuotas")
def describe_client_quotas_by_many_components(world, number):
    components = [{"entity_type": name, "match_type": 0, "match": "ann"} for name in names(number)]
    return {"components": components, "strict": False}


@case("AlterUserScramCredentials")
def alter_credentials(world, number):
    given = {"mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"password"}
    return {"deletions": [], "upsertions": [given | {"name": name} for name in names(number)]}


@case("AlterUserScramCredentials")
def delete_unknown_credentials(world, number):
    return {"deletions": [{"name": name, "mechanism": 1} for name in names(number)], "upsertions": []}


@case("DescribeUserScramCredentials")
def describe_credentials(world, number):
    credential = Credential(b"salt", 4096, b"stored", b"server")
    credentials = {(name, 1): credential for name in names(number)}
    world.broker.change(Staged(Change(credentials=credentials)))
    return {"users": None}


@case("DescribeUserScramCredentials")
def describe_credentials_of_users(world, number):
    credential = Credential(b"salt", 4096, b"stored", b"server")
    credentials = {(name, 1): credential for name in names(number)}
    world.broker.change(Staged(Change(credentials=credentials)))
    return {"users": [{"name": name} for name in names(number)]}
