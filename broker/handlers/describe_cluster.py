"""DescribeCluster, v0 to v2.

Behaviour: returns the cluster's id, its nodes and the controller. The message beside error code NONE, which Kafka's
clients ignore, has the problems that this broker sees in its cluster, for clients that may describe the cluster.
Version notes: v1 asks for brokers or for controllers (KIP-919), which clients cannot reach here; v2 also shows fenced
brokers (KIP-1073), which do not exist here.
"""

from typing import Any

from broker.now import Now
from broker.security.authorization.acl import CLUSTER_NAME, Operation, ResourceType
from broker.services.authorized_operations import cluster_operations
from broker.services.context import RequestContext
from broker.wire.errors import ErrorCode

BROKERS, CONTROLLERS = 1, 2
PROBLEMS_SHOWN = 20


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    metadata = call.services.metadata
    kind = call.request.endpoint_type
    if kind != BROKERS:
        return _refused(kind)
    wants_operations = call.request.include_cluster_authorized_operations
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "error_message": _problems(call),
        "endpoint_type": BROKERS,
        "cluster_id": metadata.cluster_id,
        "controller_id": metadata.controller_id,
        "brokers": [
            {"broker_id": node.id, "host": node.host, "port": node.port, "rack": node.rack}
            for node in metadata.nodes(call.listener)
        ],
        "cluster_authorized_operations": cluster_operations(call, wants_operations),
    }


def _problems(call: RequestContext) -> str | None:
    """Return the problems that this broker sees, a line for each; None if all is well, or the client may not know."""
    member, rights = call.services.member, call.rights
    if member is None or not member.problems:
        return None
    if rights is not None and not rights.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return None
    return "\n".join(member.problems[:PROBLEMS_SHOWN])


def _refused(kind: int) -> dict[str, Any]:
    if kind == CONTROLLERS:
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        message = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
    else:
        code, message = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {kind}"
    return {"throttle_time": 0, "error_code": code, "error_message": message, "cluster_id": "", "brokers": ()}
