"""DescribeQuorum, v0 to v2.

Behaviour: describes the quorum of the metadata, the only quorum here: the controller leads it and votes alone, in its
epoch. Kafka counts records of its metadata log, and this broker counts commits of its metadata file; both only rise
(KIP-595).
Version notes: v1 has the time at which a voter was last heard of (KIP-836), which for the leader is now; v2 the address
of the controllers (KIP-853), of which a cluster has one.
"""

from typing import Any

from broker.metadata.image import NO_NODE
from broker.metadata.topic import CLUSTER_METADATA_TOPIC
from broker.now import Now
from broker.services.context import RequestContext
from broker.services.kafka_messages import NOT_HOSTED
from broker.steps import LazyArray
from broker.wire.errors import ErrorCode

EPOCH_ALONE = 1  # on a server alone, no other leader was ever elected


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    requested = [
        (topic.topic_name, [partition.partition_index for partition in topic.partitions])
        for topic in call.request.topics
    ]
    if requested != [(CLUSTER_METADATA_TOPIC, [0])]:
        topics = LazyArray(
            requested,
            lambda topic_partitions: {
                "topic_name": topic_partitions[0],
                "partitions": LazyArray(topic_partitions[1], _unknown),
            },
        )
        return {"error_code": ErrorCode.NONE, "error_message": "", "topics": topics, "nodes": ()}
    metadata = call.services.metadata
    node = metadata.node(metadata.controller_id, call.listener) or NO_NODE
    listener = {"name": call.listener, "host": node.host, "port": node.port}
    return {
        "error_code": ErrorCode.NONE,
        "error_message": "",
        "topics": [{"topic_name": CLUSTER_METADATA_TOPIC, "partitions": [_partition(call, now)]}],
        "nodes": [{"node_id": node.id, "listeners": [listener]}],
    }


def _unknown(index: int) -> dict[str, Any]:
    message = f"{NOT_HOSTED} Only {CLUSTER_METADATA_TOPIC}-0 has a quorum."
    error = {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "error_message": message}
    return {"partition_index": index, "current_voters": (), "observers": ()} | error


def _partition(call: RequestContext, now: Now) -> dict[str, Any]:
    services = call.services
    controller_id, commits = services.metadata.controller_id, services.local.commits
    leader = {
        "replica_id": controller_id,
        "log_end_offset": commits,
        "last_fetch_timestamp": now.wall_ms,
        "last_caught_up_timestamp": now.wall_ms,
    }
    return {
        "partition_index": 0,
        "error_code": ErrorCode.NONE,
        "error_message": "",
        "leader_id": controller_id,
        "leader_epoch": EPOCH_ALONE if services.member is None else services.member.controller_epoch,
        "high_watermark": commits,
        "current_voters": [leader],
        "observers": (),
    }
