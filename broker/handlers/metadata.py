"""Metadata, v0 to v13.

Behaviour: returns the nodes, at the addresses advertised for the request's listener, the controller, and the topics
asked for, or all. A topic that does not exist is made, with `num.partitions` partitions, and answered at once if both
the client and `auto.create.topics.enable` allow it. At most `flakelog.auto.create.topics.max` topics are made for a
request; the others are LEADER_NOT_AVAILABLE, which clients retry. A partition that is offline has that error too, and
no leader.
Version notes: v0 asks for all topics with an empty list, later versions with null; v4 lets the client forbid
auto-creation; from v8 a client may ask for the operations it may do (KIP-430), up to v10 also on the cluster; v10 and
v11 have a topic's id, and refuse all topics of a request that asks for one by id; from v12 topics can be named by id,
and names beside ids are ignored, as by Kafka; v13 has a top-level error.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias
from uuid import UUID

from broker.metadata.changes import Planned
from broker.metadata.topic import NO_LEADER, NewTopic, Topic, check_name, topic_keys
from broker.now import Now
from broker.security.authorization.acl import CLUSTER_NAME, Operation, ResourceType
from broker.security.authorization.rights import AUTHORIZATION_FAILED, may, sees
from broker.services.authorized_operations import cluster_operations, operations
from broker.services.context import BrokerServices, RequestContext
from broker.services.lower_replication import lowered_topic
from broker.services.partition_nodes import partition_nodes
from broker.services.topic_changes import is_there_already, plan_creation
from broker.steps import LazyArray
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode
from idgen.settings import InvalidSetting

Answer: TypeAlias = dict[str, Any]
BY_ID_VERSION = 12
_DESCRIBE = Operation.DESCRIBE, ResourceType.TOPIC


def handle(call: RequestContext, now: Now) -> Answer | Delayed[Answer]:
    missing = _missing(call)
    if not missing:
        return _answer(call, {})
    return call.services.changes.submit(topic_keys(missing), lambda at: _begin(call, at), now)


def _missing(call: RequestContext) -> list[str]:
    """Return the names of topics that are to be made."""
    topics = call.request.topics
    create = call.request.allow_auto_topic_creation and call.services.config.auto_create_topics_enable
    if not create or not topics or any(topic.name is None or topic.topic_id for topic in topics):
        return []
    find_topic = call.services.metadata.topic
    names = [name for name in dict.fromkeys(str(topic.name) for topic in topics) if find_topic(name) is None]
    return names if call.rights is None else [name for name in names if _may_create(call, name)]


def _may_create(call: RequestContext, name: str) -> bool:
    """Return True if the client may see a topic, and make it."""
    describes = sees(call.rights, Operation.DESCRIBE, ResourceType.TOPIC, name)
    return describes and (
        sees(call.rights, Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)
        or sees(call.rights, Operation.CREATE, ResourceType.TOPIC, name)
    )


def _begin(call: RequestContext, now: Now) -> Answer | Planned:
    """Plan the topics to make, as far as the client's quota allows."""
    may, refused = _new_topics(call, _missing(call), now)
    try:
        made, staged = plan_creation(call.services, may)
    except InvalidSetting:
        return _answer(call, refused | {new.name: ErrorCode.INVALID_CONFIG for new in may})
    staged.on_end = lambda: call.note_topics("created", staged.change.topics, staged)
    for new, topic in zip(may, made, strict=True):
        if isinstance(topic, ApiError):
            refused[new.name] = topic.code
    if not staged.change.topics:
        return _answer(call, refused)

    def answer(error: ApiError | None, at: Now) -> Answer:
        failed = {name: error or staged.errors.get(name) for name in staged.change.topics}
        return _answer(call, refused | {name: _not_shown(failure) for name, failure in failed.items()})

    return Planned(staged, answer)


def _not_shown(failure: ApiError | None) -> ErrorCode:
    """Return the error of a topic that was to be made, in case the image does not have it.

    In a cluster the image may be late: the topic was made, by this broker or another, and has no leader yet.
    """
    return ErrorCode.LEADER_NOT_AVAILABLE if failure is None or is_there_already(failure) else failure.code


def _answer(call: RequestContext, refused: Mapping[str, ErrorCode]) -> Answer:
    """Return the answer. `refused` has the errors of topics that could not be made."""
    metadata = call.services.metadata
    return {
        "throttle_time": 0,
        "brokers": [
            {"node_id": node.id, "host": node.host, "port": node.port, "rack": node.rack}
            for node in metadata.nodes(call.listener)
        ],
        "cluster_id": metadata.cluster_id,
        "controller_id": metadata.controller_id,
        "topics": _topics(call, refused),
        "cluster_authorized_operations": cluster_operations(
            call, getattr(call.original, "include_cluster_authorized_operations", False)
        ),
        "error_code": ErrorCode.NONE,
    }


def _topics(call: RequestContext, refused: Mapping[str, ErrorCode]) -> LazyArray[Any]:
    """Return the topics' answers."""
    metadata = call.services.metadata
    topics = call.request.topics
    if topics is None or (call.version == 0 and not topics):
        all_topics = metadata.topics()
        if call.rights is not None:  # a topic that the client may not see is left out
            visible = call.rights.visible(*_DESCRIBE, (topic.name for topic in all_topics))
            all_topics = [topic for topic in all_topics if topic.name in visible]
        return LazyArray(all_topics, lambda topic: _describe(call, topic))
    # Answer each topic once, as Kafka does, because a topic of many partitions named a thousand times would fill the
    # memory.
    named = dict.fromkeys((requested.name, requested.topic_id) for requested in topics)
    if any(name is None or topic_id for name, topic_id in named):
        if call.version < BY_ID_VERSION:
            return LazyArray(named, lambda name_and_id: _refused(*name_and_id))
        # Like Kafka: a request that asks for one topic by its id is answered by ids only.
        ids = dict.fromkeys(topic_id for name, topic_id in named if topic_id or name is None)
        return LazyArray(ids, lambda topic_id: _by_id(call, topic_id))
    names = [str(name) for name, _ in named]
    return LazyArray(names, lambda name: _by_name(call, name, refused.get(name)))


def _by_id(call: RequestContext, topic_id: UUID | None) -> dict[str, Any]:
    topic = call.services.metadata.topic(topic_id) if topic_id else None
    if topic is None:
        code = ErrorCode.UNKNOWN_TOPIC_ID
    elif may(call.rights, *_DESCRIBE, topic.name):
        return _describe(call, topic)
    else:
        code = AUTHORIZATION_FAILED[ResourceType.TOPIC].code  # an id is no secret, as in Kafka; a name is
    return {"error_code": code, "name": None, "topic_id": topic_id} | _operations(call, "")


def _refused(name: str | None, topic_id: UUID | None) -> dict[str, Any]:
    """Return the answer for each topic of a request that asks for one by its id before v12."""
    return {"error_code": ErrorCode.INVALID_REQUEST, "name": name or "", "topic_id": topic_id}


def _by_name(call: RequestContext, name: str, refused: ErrorCode | None) -> dict[str, Any]:
    """Return a topic. If it does not exist return the error `refused`, that of an invalid name, or that it is unknown.
    """
    if not may(call.rights, *_DESCRIBE, name):
        return {"error_code": AUTHORIZATION_FAILED[ResourceType.TOPIC].code, "name": name}
    topic = call.services.metadata.topic(name)
    if topic is not None:
        return _describe(call, topic)
    if refused is None:
        refused = _not_made(call, name)
    try:
        check_name(name)
    except ApiError as error:
        refused = error.code
    return {"error_code": refused, "name": name} | _operations(call, name)


def _not_made(call: RequestContext, name: str) -> ErrorCode:
    """Return the error of a topic that does not exist: the client may not make it, or does not want to."""
    wants = call.request.allow_auto_topic_creation and call.services.config.auto_create_topics_enable
    if wants and not _may_create(call, name) and not may(call.rights, Operation.CREATE, ResourceType.TOPIC, name):
        return AUTHORIZATION_FAILED[ResourceType.TOPIC].code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _operations(call: RequestContext, name: str) -> dict[str, int]:
    """Return the operations that the client may do on a topic, if it asks for them."""
    is_requested = call.request.include_topic_authorized_operations
    return {"topic_authorized_operations": operations(call, is_requested, ResourceType.TOPIC, name)}


def _new_topics(
    call: RequestContext, names: Sequence[str], now: Now
) -> tuple[list[NewTopic], dict[str, ErrorCode]]:
    """Return the first of these topics, as far as the client's quota allows, and the errors of the others, by name."""
    services = call.services
    refused: dict[str, ErrorCode] = {}
    new = []
    for name in names:
        try:
            services.metadata.check_new(name)
        except ApiError as error:
            refused[name] = error.code
        else:
            new.append(_new(services, name))
    most = services.config.auto_create_topics_max
    refused.update((topic.name, ErrorCode.LEADER_NOT_AVAILABLE) for topic in new[most:])
    # A topic that the client's quota forbids for now is answered as unknown, as by Kafka, and clients retry that too.
    may = [topic for topic in new[:most] if call.meter is None or call.meter.may_mutate(topic.partitions, now.ms)]
    return may, refused


def _new(services: BrokerServices, name: str) -> NewTopic:
    internal = services.coordinators.topic(name)
    if internal is not None:
        return lowered_topic(services, internal.new)
    factor = services.default_replication_factor
    return lowered_topic(services, NewTopic(name, services.config.num_partitions, {}, replication_factor=factor))


def _describe(call: RequestContext, topic: Topic) -> dict[str, Any]:
    partitions = [partition_nodes(call.services, topic, index) for index in range(len(topic.partitions))]
    for partition in partitions:
        has_none = partition["leader_id"] == NO_LEADER
        partition["error_code"] = ErrorCode.LEADER_NOT_AVAILABLE if has_none else ErrorCode.NONE
    return {
        "error_code": ErrorCode.NONE,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.is_internal,
        "partitions": partitions,
    } | _operations(call, topic.name)
