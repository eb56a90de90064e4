"""Administrative acts, as requests that Kafka's brokers and ours take alike, and the answers' error codes."""

from broker.wire.errors import ErrorCode
from tests.broker.any_api import KEYS, answer_of, codes_of, request_of
from tests.compat.raw_connection import SocketLine
from tests.patience import until

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND = 0, 1, 2
NOT_YET = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
TIMEOUT_MS = 60_000


def ask(address, api, version, fields):
    """Return the errors in the answer to a request; one that may pass is asked again."""
    frame = request_of(KEYS[api], version, 1, fields)

    def answered():
        line = SocketLine(address)
        line.send(frame)
        codes = codes_of(answer_of(KEYS[api], version, line.receive())[1])
        return None if NOT_YET.intersection(codes) else [set(codes) - {ErrorCode.NONE}]

    return until(answered, f"an answer to {api}")[0]


def create(name, *leaders, **settings):
    """Create a topic whose partitions have these leaders."""
    assignments = [{"partition_index": index, "broker_ids": [leader]} for index, leader in enumerate(leaders)]
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in settings.items()]
    topic = {"name": name, "num_partitions": -1, "replication_factor": -1}
    topic |= {"assignments": assignments, "configs": configs}
    return "CreateTopics", 7, {"topics": [topic], "timeout": TIMEOUT_MS, "validate_only": False}


def grow(name, count, *leaders):
    assignments = [{"broker_ids": [leader]} for leader in leaders]
    topic = {"name": name, "count": count, "assignments": assignments}
    return "CreatePartitions", 3, {"topics": [topic], "timeout": TIMEOUT_MS, "validate_only": False}


def delete(name):
    return "DeleteTopics", 6, {"topics": [{"name": name, "topic_id": None}], "timeout": TIMEOUT_MS}


def configure(kind, name, *operations):
    """Alter settings of a topic or of brokers: (SET, name, value) and the like."""
    configs = [{"name": key, "config_operation": how, "value": value} for how, key, value in operations]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    return "IncrementalAlterConfigs", 1, {"resources": [resource], "validate_only": False}


def replace_settings(kind, name, **settings):
    """Replace all settings of a topic or of brokers."""
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in settings.items()]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    return "AlterConfigs", 2, {"resources": [resource], "validate_only": False}


def quotas(owner, **values):
    """Set quotas of an owner, such as {"user": "ann"}; None removes one."""
    entity = [{"entity_type": kind.replace("_", "-"), "entity_name": name} for kind, name in owner.items()]
    ops = [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items()]
    return "AlterClientQuotas", 1, {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}


def password(user, mechanism):
    """Give a user a password (SCRAM-SHA-256 is mechanism 1, SCRAM-SHA-512 is 2)."""
    upsertion = {"name": user, "mechanism": mechanism, "iterations": 4_096, "salt": b"salt"}
    upsertion["salted_password"] = b"p" * (32 * mechanism)
    return "AlterUserScramCredentials", 0, {"deletions": [], "upsertions": [upsertion]}


def no_password(user, mechanism):
    deletion = {"name": user, "mechanism": mechanism}
    return "AlterUserScramCredentials", 0, {"deletions": [deletion], "upsertions": []}


def elect_preferred(topic=None, partitions=()):
    """Let preferred leaders lead partitions of a topic, without one all partitions."""
    topic_partitions = None if topic is None else [{"topic": topic, "partitions": list(partitions)}]
    return "ElectLeaders", 2, {"election_type": 0, "topic_partitions": topic_partitions, "timeout": TIMEOUT_MS}


def producer_id():
    fields = {"transactional_id": None, "transaction_timeout": TIMEOUT_MS, "producer_id": -1, "producer_epoch": -1}
    return "InitProducerId", 4, fields
