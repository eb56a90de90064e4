"""Metadata, v0 to v13.

Behaviour: nodes, at the addresses advertised for the listener the request came in on, the controller, and the topics
asked for, or all of them. A topic that is not there is made when both the client and `auto.create.topics.enable` allow
it, with `num.partitions` partitions, and answered at once; of many the first, and the others are LEADER_NOT_AVAILABLE,
at which clients ask again: each waits for the disk, and everybody with it.
Version notes: v0 asks for all topics with an empty list, later versions with null; v4 lets the client forbid
auto-creation; from v8 on a client may ask what it is allowed to do (KIP-430), with the cluster to v10; v10 and v11 have
a topic's id, from v12 on it can be asked for by it; v13 has a top-level error.
"""

from collections.abc import Iterable
from typing import Any

from broker.handlers.authorized_operations import CLUSTER, TOPIC, operations
from broker.handlers.call import Call, Services
from broker.metadata import Topic, check_name
from broker.now import Now
from broker.wire.errors import ApiError, ErrorCode
from idgen.config import InvalidSetting

BY_ID_VERSION = 12
MADE_AT_ONCE = 50  # topics; each takes some milliseconds


def handle(call: Call, now: Now) -> dict[str, Any]:
    metadata = call.services.metadata
    allowed = {"topic_authorized_operations": operations(call.request.include_topic_authorized_operations, TOPIC)}
    nodes = [metadata.reached(node, call.listener) for node in metadata.nodes]
    return {
        "throttle_time": 0,
        "brokers": [{"node_id": n.id, "host": n.host, "port": n.port, "rack": n.rack} for n in nodes],
        "cluster_id": metadata.cluster_id,
        "controller_id": metadata.node.id,
        "topics": [topic | allowed for topic in _topics(call)],
        "cluster_authorized_operations": operations(
            getattr(call.original, "include_cluster_authorized_operations", False), CLUSTER
        ),
        "error_code": ErrorCode.NONE,
    }


def _topics(call: Call) -> Iterable[dict[str, Any]]:
    metadata = call.services.metadata
    asked = call.request.topics
    if asked is None or (call.version == 0 and not asked):
        yield from (_describe(topic) for topic in metadata.topics())
        return
    create = call.request.allow_auto_topic_creation and call.services.config.auto_create_topics_enable
    last = metadata.generation + MADE_AT_ONCE
    # Each once, as Kafka does: a topic of many partitions named a thousand times would fill the memory.
    for name, topic_id in dict.fromkeys((each.name, each.topic_id) for each in asked):
        if name is not None:
            yield _by_name(call, str(name), create, metadata.generation < last)
        elif call.version < BY_ID_VERSION:
            yield {"error_code": ErrorCode.INVALID_REQUEST, "name": "", "topic_id": topic_id}
        else:
            topic = metadata.topic(topic_id) if topic_id else None
            unknown = {"error_code": ErrorCode.UNKNOWN_TOPIC_ID, "name": None, "topic_id": topic_id}
            yield unknown if topic is None else _describe(topic)


def _by_name(call: Call, name: str, create: bool, now: bool) -> dict[str, Any]:
    topic = call.services.metadata.topic(name)
    try:
        if topic is None and create and now:
            topic = _make(call.services, name)
        if topic is None:
            check_name(name)
    except ApiError as error:
        return {"error_code": error.code, "name": name}
    except InvalidSetting:
        return {"error_code": ErrorCode.INVALID_CONFIG, "name": name}
    if topic is None:
        missing = ErrorCode.LEADER_NOT_AVAILABLE if create else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return {"error_code": missing, "name": name}
    return _describe(topic)


def _make(services: Services, name: str) -> Topic:
    internal = services.coordinator_topic(name)
    return services.create_topic(name, services.config.num_partitions, {}) if internal is None else internal.make()


def _describe(topic: Topic) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.NONE,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.is_internal,
        "partitions": [
            {
                "error_code": ErrorCode.NONE,
                "partition_index": index,
                "leader_id": state.leader,
                "leader_epoch": state.leader_epoch,
                "replica_nodes": state.replicas,
                "isr_nodes": state.replicas,
                "offline_replicas": (),
            }
            for index, state in enumerate(topic.partitions)
        ],
    }
