"""CreatePartitions, v0 to v3.

Behaviour: gives topics more partitions, never fewer; each topic separately. New partitions may be assigned to nodes,
with as many replicas as the topic has. Consumers see them with their next Metadata. With `validate_only` nothing is
made, and the answer is the same. The topics of the coordinators are refused, as by Kafka's tools.
Version notes: from v3 topics over the client's quota are refused (KIP-599).
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias

from broker.handlers.create_topics import check_replicas, too_many
from broker.metadata.changes import Planned
from broker.metadata.topic import Topic, topic_keys
from broker.now import Now
from broker.security.authorization.acl import Operation, ResourceType
from broker.security.authorization.rights import check
from broker.services.context import RequestContext
from broker.services.controller_requests import refusal_of_request
from broker.services.kafka_messages import DUPLICATE_TOPIC, not_hosted
from broker.services.topic_changes import Growth, plan_growth
from broker.steps import LazyArray
from broker.waiting.purgatory import Delayed
from broker.wire.cold import milliseconds
from broker.wire.errors import ApiError, ErrorCode

Answer: TypeAlias = dict[str, Any]
_FIXED = (
    "The number of partitions of {} cannot be changed: it decides where each group or transactional id is kept, and "
    "those that exist would not be found."
)
STRICT_VERSION = 3  # from this version a client over its quota is refused (KIP-599)


def handle(call: RequestContext, now: Now) -> Answer | Delayed[Answer]:
    if call.request.validate_only:
        return _answers(_check(call, now)[0])
    keys = topic_keys(topic.name for topic in call.request.topics)
    timeout_ms = max(milliseconds(call.request.timeout), 0)
    return call.services.changes.submit(keys, lambda at: _begin(call, at), now, timeout_ms)


def _check(call: RequestContext, now: Now) -> tuple[dict[str, ApiError | None], list[Growth]]:
    """Return the error of each topic, or None, and the topics that may grow with their new numbers of partitions."""
    named = Counter(topic.name for topic in call.request.topics)
    refused: dict[str, ApiError | None] = {}
    grown: list[Growth] = []
    partitions_left = call.services.config.new_partitions_max
    refusal = refusal_of_request(call)
    for requested in call.request.topics:
        refused[requested.name] = refusal
        if refusal is not None:
            continue
        try:
            if named[requested.name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, DUPLICATE_TOPIC)
            check(call.rights, Operation.ALTER, ResourceType.TOPIC, requested.name)
            topic = _find(call, requested, partitions_left)
            call.count_mutation(requested.count - len(topic.partitions), STRICT_VERSION, now)
            partitions_left -= requested.count - len(topic.partitions)
            grown.append(Growth(topic, int(requested.count), _assignments(requested)))
        except ApiError as error:
            refused[requested.name] = error
    return refused, grown


def _begin(call: RequestContext, now: Now) -> Answer | Planned:
    refused, grown = _check(call, now)
    failures, staged = plan_growth(call.services, grown)
    refused.update((growth.topic.name, failure) for growth, failure in zip(grown, failures, strict=True))
    staged.on_end = lambda: call.note_topics("added partitions to", staged.change.topics, staged)

    def answer(error: ApiError | None, at: Now) -> Answer:
        return _answers(refused | dict.fromkeys(staged.change.topics, error) | staged.errors)

    return Planned(staged, answer) if staged.change.topics else answer(None, now)


def _answers(refused: Mapping[str, ApiError | None]) -> Answer:
    return {"throttle_time": 0, "results": LazyArray(refused.items(), lambda refusal: _answer(*refusal))}


def _answer(name: str, error: ApiError | None) -> Answer:
    code, message = (ErrorCode.NONE, None) if error is None else (error.code, error.message)
    return {"name": name, "error_code": code, "error_message": message}


def _find(call: RequestContext, requested: Any, most: int) -> Topic:
    """Return the topic if it may have the partitions asked for. Raise ApiError."""
    topic = call.services.metadata.topic(str(requested.name))
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, not_hosted(requested.name))
    if topic.is_internal:
        raise ApiError(ErrorCode.INVALID_REQUEST, _FIXED.format(topic.name))
    added = int(requested.count) - len(topic.partitions)
    if added <= 0:
        has, count = len(topic.partitions), requested.count
        reason = f"The topic {topic.name} currently has {has} partition(s); {count} would not be an increase."
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {has} partition(s)." if not added else reason)
    if added > most:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, too_many(call.services))
    if requested.assignments is not None:
        _check_assignments(call, topic, added, requested.assignments)
    return topic


def _assignments(requested: Any) -> list[tuple[int, ...]] | None:
    """Return the replicas that a request gives to the new partitions, in their order."""
    if requested.assignments is None:
        return None
    return [tuple(map(int, assignment.broker_ids)) for assignment in requested.assignments]


def _check_assignments(call: RequestContext, topic: Topic, added: int, assignments: Any) -> None:
    if len(assignments) != added:
        reason = f"Attempted to add {added} additional partition(s), but only {len(assignments)} assignment(s) "
        reason += "were specified."
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
    replicas = len(topic.partitions[0].replicas)
    for assignment in assignments:
        check_replicas(call, assignment.broker_ids, replicas)
