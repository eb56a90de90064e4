"""FindCoordinator, v0 to v6.

Behaviour: returns the node that leads the partition of `__consumer_offsets` for a group, or of `__transaction_state`
for a transactional id. The topic is made at the first request for it.
Version notes: v1 has the type of the key and a message; v4 asks for several keys at once (KIP-699); v6 adds share
groups (KIP-932), not served.
"""

from typing import Any

from broker.now import Now
from broker.services.context import RequestContext
from broker.services.metadata import Node
from broker.steps import Each
from broker.wire.errors import ApiError, ErrorCode

GROUP, TRANSACTION = 0, 1
KEYS_VERSION = 4
NO_NODE = Node(-1, "", -1)


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    if call.version < KEYS_VERSION:
        found = _find(call, call.original.key)
        return {"throttle_time": 0, "coordinators": (found,)} | found
    keys = call.request.coordinator_keys
    if keys and _topic_is_missing(call):
        first = _find(call, keys[0])  # it makes the topic; if that fails, it is not tried again for each key
        if _topic_is_missing(call):
            return {"throttle_time": 0, "coordinators": Each(keys, lambda key: first | {"key": key})}
    return {"throttle_time": 0, "coordinators": Each(keys, lambda key: _find(call, key))}


def _topic_is_missing(call: RequestContext) -> bool:
    services, kind = call.services, call.request.key_type
    if kind == TRANSACTION:
        return services.transactions.topic.topic is None
    return kind == GROUP and services.groups.topic.topic is None


def _find(call: RequestContext, key: str) -> dict[str, Any]:
    try:
        node = _coordinator(call, key)
    except ApiError as error:
        return _answer(key, NO_NODE, error.code, error.message)
    return _answer(key, call.services.metadata.reached(node, call.listener), ErrorCode.NONE, None)


def _coordinator(call: RequestContext, key: str) -> Node:
    kind = call.request.key_type
    if kind == TRANSACTION:
        return call.services.transactions.topic.find(key)
    if kind != GROUP:
        served = f"{GROUP} (groups) and {TRANSACTION} (transactional ids) are"
        raise ApiError(ErrorCode.INVALID_REQUEST, f"coordinators of type {kind} are not served; {served}")
    return call.services.groups.find(key)


def _answer(key: str, node: Node, error: ErrorCode, message: str | None) -> dict[str, Any]:
    place = {"node_id": node.id, "host": node.host, "port": node.port}
    return {"key": key, "error_code": error, "error_message": message} | place
