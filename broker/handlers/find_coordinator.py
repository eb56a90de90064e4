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
from broker.wire.errors import ApiError, ErrorCode

GROUP, TRANSACTION = 0, 1
KEYS_VERSION = 4
NO_NODE = Node(-1, "", -1)


def handle(call: RequestContext, now: Now) -> dict[str, Any]:
    keys = call.request.coordinator_keys if call.version >= KEYS_VERSION else (call.original.key,)
    found = [_find(call, key) for key in keys]
    first = found[0] if found and call.version < KEYS_VERSION else {}
    return {"throttle_time": 0, "coordinators": found} | first


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
