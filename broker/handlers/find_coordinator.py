"""FindCoordinator, v0 to v6.

Behaviour: returns the node that leads the partition of `__consumer_offsets` for a group, or of `__transaction_state`
for a transactional id. The topic is made at the first request for it.
Version notes: v1 has the type of the key and a message; v4 asks for several keys at once (KIP-699); v6 adds share
groups (KIP-932), not served.
"""

from collections.abc import Sequence

from broker.metadata.changes import Planned
from broker.metadata.image import NO_NODE, Node
from broker.metadata.topic import topic_keys
from broker.now import Now
from broker.security.authorization.acl import Operation, ResourceType
from broker.security.authorization.rights import check, sees
from broker.services.context import RequestContext
from broker.services.coordinator_topic import Answer, CoordinatorTopic
from broker.services.lower_replication import lowered_topic
from broker.services.topic_changes import is_there_already, plan_creation
from broker.steps import LazyArray
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode
from idgen.settings import InvalidSetting

GROUP, TRANSACTION = 0, 1
KEYS_VERSION = 4
_KEYS_OF = {GROUP: ResourceType.GROUP, TRANSACTION: ResourceType.TRANSACTIONAL_ID}


def handle(call: RequestContext, now: Now) -> Answer | Delayed[Answer]:
    topic = _topic(call)
    if topic is None or topic.topic is not None or not _sees_any(call):
        return _answers(call, None)

    def begin(at: Now) -> Answer | Planned:
        if topic.topic is not None:
            return _answers(call, None)
        try:
            call.services.metadata.check_new(topic.name)
            (made,), staged = plan_creation(call.services, [lowered_topic(call.services, topic.new)])
        except (InvalidSetting, ApiError) as error:
            return _answers(call, topic.not_made(error))
        if isinstance(made, ApiError):
            return _answers(call, topic.not_made(made))

        def answer(error: ApiError | None, at: Now) -> Answer:
            failure = error or staged.errors.get(topic.name)
            if failure is None or is_there_already(failure) or topic.topic is not None:
                return _answers(call, None)
            return _answers(call, topic.not_made(failure))

        return Planned(staged, answer)

    return call.services.changes.submit(topic_keys([topic.name]), begin, now)


def _sees_any(call: RequestContext) -> bool:
    """Return True if the client may see one of the groups or transactional ids that it asks for."""
    return any(sees(call.rights, Operation.DESCRIBE, _KEYS_OF[call.request.key_type], key) for key in _keys(call))


def _topic(call: RequestContext) -> CoordinatorTopic | None:
    """Return the topic that the keys are kept in, None if the type is not served or there are no keys."""
    kind = call.request.key_type
    if not _keys(call) or kind not in (GROUP, TRANSACTION):
        return None
    return call.services.coordinators.groups.topic if kind == GROUP else call.services.coordinators.transactions.topic


def _keys(call: RequestContext) -> Sequence[str]:
    return call.request.coordinator_keys if call.version >= KEYS_VERSION else (call.original.key,)


def _answers(call: RequestContext, not_made: ApiError | None) -> Answer:
    if call.version < KEYS_VERSION:
        coordinator = _find(call, call.original.key, not_made)
        return {"throttle_time": 0, "coordinators": (coordinator,)} | coordinator
    return {"throttle_time": 0, "coordinators": LazyArray(_keys(call), lambda key: _find(call, key, not_made))}


def _find(call: RequestContext, key: str, not_made: ApiError | None) -> Answer:
    try:
        node = _coordinator(call, key, not_made)
    except ApiError as error:
        return _answer(key, NO_NODE, error.code, error.message)
    return _answer(key, node, ErrorCode.NONE, None)


def _coordinator(call: RequestContext, key: str, not_made: ApiError | None) -> Node:
    topic = _topic(call)
    if topic is None:
        served = f"{GROUP} (groups) and {TRANSACTION} (transactional ids) are"
        reason = f"coordinators of type {call.request.key_type} are not served; {served}"
        raise ApiError(ErrorCode.INVALID_REQUEST, reason)
    check(call.rights, Operation.DESCRIBE, _KEYS_OF[call.request.key_type], key)
    if not_made is not None:
        raise not_made
    return topic.find(key, call.listener)


def _answer(key: str, node: Node, error: ErrorCode, message: str | None) -> Answer:
    address = {"node_id": node.id, "host": node.host, "port": node.port}
    return {"key": key, "error_code": error, "error_message": message} | address
