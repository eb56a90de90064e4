"""CreateTopics, v2 to v7.

Behaviour: each topic is made or refused by itself, with a message. -1 partitions mean `num.partitions`. A replication
factor above the number of nodes is refused, as by Kafka; an unknown setting is refused by name.
Version notes: v5 answers with partitions, replicas and settings (KIP-525); v7 with the topic id (KIP-516).
"""

from collections import Counter
from typing import Any

from broker.config import TopicConfig
from broker.handlers.call import Call
from broker.metadata import INTERNAL_TOPICS
from broker.now import Now
from broker.wire.errors import ApiError, ErrorCode
from idgen.config import InvalidSetting

PARTITIONS_MAX = 10_000  # in one request; each takes four files


def handle(call: Call, now: Now) -> dict[str, Any]:
    named = Counter(topic.name for topic in call.request.topics)
    results = []
    left = PARTITIONS_MAX
    for topic in call.request.topics:
        try:
            if named[topic.name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"topic {topic.name} stands in the request more than once")
            results.append(_create(call, topic, left))
            left -= results[-1]["num_partitions"]
        except InvalidSetting as error:
            results.append(_refused(topic.name, ErrorCode.INVALID_CONFIG, str(error)))
        except ApiError as error:
            results.append(_refused(topic.name, error.code, error.message))
    return {"throttle_time": 0, "topics": results}


def _refused(name: str, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {"name": name, "error_code": code, "error_message": message, "configs": ()}


def _create(call: Call, topic: Any, partitions_max: int) -> dict[str, Any]:
    services = call.services
    if topic.name in INTERNAL_TOPICS:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is made by the broker itself")
    partitions = _partitions(call, topic)
    if not 1 <= partitions <= partitions_max:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"{partitions} partitions; a topic has 1 or more, and one request makes {PARTITIONS_MAX} at most",
        )
    properties = {config.name: config.value for config in topic.configs if config.value is not None}
    services.metadata.check_new(topic.name)
    TopicConfig.check_names(properties)
    services.config.topic_defaults.with_properties(properties)
    result = {
        "name": topic.name,
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": (),
    }
    if not call.request.validate_only:
        result["topic_id"] = services.create_topic(topic.name, partitions, properties).id
    return result


def _partitions(call: Call, topic: Any) -> int:
    nodes = len(call.services.metadata.nodes)
    if topic.assignments:
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, "give an assignment, or partitions and replication factor, not both"
            )
        indexes = sorted(each.partition_index for each in topic.assignments)
        known = {node.id for node in call.services.metadata.nodes}
        replicas = [each.broker_ids for each in topic.assignments]
        good = all(ids and known.issuperset(ids) and len(set(ids)) == len(ids) for ids in replicas)
        if indexes != list(range(len(indexes))) or not good:
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"partitions 0 to n-1 on nodes of {sorted(known)}")
        return len(indexes)
    if topic.replication_factor not in (-1, *range(1, nodes + 1)):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {topic.replication_factor}; there are {nodes} nodes",
        )
    return call.services.config.num_partitions if topic.num_partitions == -1 else int(topic.num_partitions)
