"""The rights that each API asks for, one row for each row of the API table, named by the module of its handler.

They are Kafka's: those that KafkaApis and ControllerApis check. Only brokers hold CLUSTER_ACTION.
"""

from collections.abc import Mapping

from broker.security.authorization.acl import Operation, ResourceType
from broker.security.authorization.rights import ApiRights

READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE, CLUSTER_ACTION = Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID

_OF_MEMBERS = ApiRights(named=((GROUP, READ),), waits=True)
_OF_BROKERS = ApiRights(cluster=(CLUSTER_ACTION,))
_OPEN = ApiRights()

RIGHTS: Mapping[str, ApiRights] = {
    "produce": ApiRights(items=((TOPIC, WRITE), (TRANSACTIONAL_ID, WRITE))),
    "fetch": ApiRights(items=((TOPIC, READ), (CLUSTER, CLUSTER_ACTION))),
    "list_offsets": ApiRights(items=((TOPIC, DESCRIBE),)),
    "metadata": ApiRights(items=((TOPIC, DESCRIBE), (TOPIC, CREATE), (CLUSTER, CREATE), (CLUSTER, DESCRIBE))),
    "offset_commit": ApiRights(named=((GROUP, READ),), items=((TOPIC, READ),)),
    "offset_fetch": ApiRights(items=((GROUP, DESCRIBE), (TOPIC, DESCRIBE))),
    "find_coordinator": ApiRights(items=((GROUP, DESCRIBE), (TRANSACTIONAL_ID, DESCRIBE))),
    "join_group": _OF_MEMBERS,
    "heartbeat": _OF_MEMBERS,
    "leave_group": _OF_MEMBERS,
    "sync_group": _OF_MEMBERS,
    "describe_groups": ApiRights(items=((GROUP, DESCRIBE),)),
    "list_groups": ApiRights(items=((CLUSTER, DESCRIBE), (GROUP, DESCRIBE))),
    "sasl_handshake": _OPEN,
    "api_versions": _OPEN,
    "create_topics": ApiRights(items=((CLUSTER, CREATE), (TOPIC, CREATE), (TOPIC, DESCRIBE_CONFIGS))),
    "delete_topics": ApiRights(items=((CLUSTER, DELETE), (TOPIC, DESCRIBE), (TOPIC, DELETE))),
    "delete_records": ApiRights(items=((TOPIC, DELETE),)),
    "init_producer_id": ApiRights(
        items=((TRANSACTIONAL_ID, WRITE), (CLUSTER, Operation.IDEMPOTENT_WRITE), (TOPIC, WRITE))
    ),
    "offset_for_leader_epoch": ApiRights(items=((CLUSTER, CLUSTER_ACTION), (TOPIC, DESCRIBE))),
    "add_partitions_to_txn": ApiRights(named=((TRANSACTIONAL_ID, WRITE),), items=((TOPIC, WRITE),)),
    "add_offsets_to_txn": ApiRights(named=((TRANSACTIONAL_ID, WRITE), (GROUP, READ))),
    "end_txn": ApiRights(named=((TRANSACTIONAL_ID, WRITE),)),
    "write_txn_markers": ApiRights(cluster=(ALTER, CLUSTER_ACTION)),
    "txn_offset_commit": ApiRights(named=((TRANSACTIONAL_ID, WRITE), (GROUP, READ)), items=((TOPIC, READ),)),
    "describe_acls": ApiRights(cluster=(DESCRIBE,)),
    "create_acls": ApiRights(cluster=(ALTER,)),
    "delete_acls": ApiRights(cluster=(ALTER,)),
    "describe_configs": ApiRights(
        items=((TOPIC, DESCRIBE_CONFIGS), (GROUP, DESCRIBE_CONFIGS), (CLUSTER, DESCRIBE_CONFIGS))
    ),
    "alter_configs": ApiRights(items=((TOPIC, ALTER_CONFIGS), (GROUP, ALTER_CONFIGS), (CLUSTER, ALTER_CONFIGS))),
    "incremental_alter_configs": ApiRights(
        items=((TOPIC, ALTER_CONFIGS), (GROUP, ALTER_CONFIGS), (CLUSTER, ALTER_CONFIGS))
    ),
    "alter_replica_log_dirs": ApiRights(cluster=(ALTER,)),
    "describe_log_dirs": ApiRights(cluster=(DESCRIBE,)),
    "sasl_authenticate": _OPEN,
    "create_partitions": ApiRights(items=((TOPIC, ALTER),)),
    "delete_groups": ApiRights(items=((GROUP, DELETE),)),
    "elect_leaders": ApiRights(cluster=(ALTER,), lists_all=True),
    "alter_partition_reassignments": ApiRights(cluster=(ALTER,), lists_all=True),
    "list_partition_reassignments": ApiRights(cluster=(DESCRIBE,)),
    "describe_client_quotas": ApiRights(cluster=(DESCRIBE_CONFIGS,)),
    "alter_client_quotas": ApiRights(items=((CLUSTER, ALTER_CONFIGS),)),
    "describe_user_scram_credentials": ApiRights(cluster=(DESCRIBE,), lists_all=True),
    "alter_user_scram_credentials": ApiRights(items=((CLUSTER, ALTER),)),
    "describe_quorum": ApiRights(cluster=(DESCRIBE,)),
    "update_features": ApiRights(cluster=(ALTER,)),
    "offset_delete": ApiRights(named=((GROUP, DELETE),), items=((TOPIC, READ),)),
    "describe_cluster": ApiRights(items=((CLUSTER, DESCRIBE),)),
    "describe_producers": ApiRights(items=((TOPIC, READ),)),
    "unregister_broker": ApiRights(cluster=(ALTER,)),
    "describe_transactions": ApiRights(items=((TRANSACTIONAL_ID, DESCRIBE), (TOPIC, DESCRIBE))),
    "list_transactions": ApiRights(items=((TRANSACTIONAL_ID, DESCRIBE),)),
    "list_config_resources": ApiRights(cluster=(DESCRIBE_CONFIGS,)),
    "describe_topic_partitions": ApiRights(items=((TOPIC, DESCRIBE),)),
    "leader_and_isr": ApiRights(cluster=(CLUSTER_ACTION,), lists_all=True),
    "stop_replica": ApiRights(cluster=(CLUSTER_ACTION,), lists_all=True),
    "update_metadata": _OF_BROKERS,
    "controlled_shutdown": _OF_BROKERS,
    "add_partitions_for_brokers": _OF_BROKERS,
    "alter_partition": _OF_BROKERS,
    "allocate_producer_ids": _OF_BROKERS,
    "envelope": _OF_BROKERS,
}
