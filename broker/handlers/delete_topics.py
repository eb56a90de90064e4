"""DeleteTopics, v1 to v6.

Behaviour: deletes or refuses each topic separately, with its logs and the offsets that groups committed for it. Fetches
that wait for it are answered. A topic that is named twice stays and has one answer, also if it is named by its name and
by its id. Without `delete.topic.enable` all topics stay. If a topic of the broker's internal records is deleted, the
groups and offsets, or the transactional ids, in it go too, as in Kafka; the topic is made again when it is needed.
Version notes: if deletion is disabled v3 answers TOPIC_DELETION_DISABLED, earlier versions INVALID_REQUEST; v5 has a
message, and refuses topics over the client's quota (KIP-599); v6 names topics by name or by id (KIP-516).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias
from uuid import UUID

from broker.metadata.changes import Planned
from broker.metadata.staged import Staged
from broker.metadata.topic import Topic, topic_keys
from broker.now import Now
from broker.security.authorization.acl import CLUSTER_NAME, Operation, ResourceType
from broker.security.authorization.rights import check, sees
from broker.services.context import RequestContext
from broker.services.controller_requests import check_request
from broker.services.kafka_messages import DUPLICATE_TOPIC, ID_NOT_HOSTED, not_hosted
from broker.services.topic_changes import plan_deletion
from broker.steps import LazyArray
from broker.waiting.purgatory import Delayed
from broker.wire.cold import milliseconds
from broker.wire.errors import ApiError, ErrorCode

TOPIC_IDS_VERSION = 6
DISABLED_VERSION = 3
STRICT_VERSION = 5

Named: TypeAlias = tuple[str | None, UUID | None]
Answer: TypeAlias = dict[str, Any]


def handle(call: RequestContext, now: Now) -> Answer | Delayed[Answer]:
    if call.version >= TOPIC_IDS_VERSION:
        topics = [(topic.name, topic.topic_id) for topic in call.request.topics]
    else:
        topics = [(name, None) for name in call.original.topic_names]
    times = Counter(topics)
    timeout_ms = max(milliseconds(call.request.timeout), 0)
    keys = topic_keys(_names(call, times))
    return call.services.changes.submit(keys, lambda at: _begin(call, times, at), now, timeout_ms)


def _names(call: RequestContext, topics: Iterable[Named]) -> Iterator[str]:
    for name, topic_id in topics:
        topic = call.services.metadata.topic(topic_id) if topic_id is not None else None
        yield topic.name if topic is not None else name or ""


def _begin(call: RequestContext, times: Mapping[Named, int], now: Now) -> Answer | Planned:
    topics, answers = _look_up(call, times)
    _count(call, topics, answers, now)
    staged = plan_deletion(topics.values())
    staged.on_end = lambda: _note(call, staged)

    def answer(error: ApiError | None, at: Now) -> Answer:
        for named, topic in topics.items():
            answers[named] = _deleted(topic, error or staged.errors.get(topic.name))
        answered = [
            named for named in times if named in answers for _ in range(1 if _is_clear(*named) else times[named])
        ]
        return {"throttle_time": 0, "responses": LazyArray(answered, lambda named: answers[named])}

    return Planned(staged, answer) if topics else answer(None, now)


def _look_up(call: RequestContext, times: Mapping[Named, int]) -> tuple[dict[Named, Topic], dict[Named, Answer]]:
    """Return the topics to delete, and the answers for the others."""
    topics: dict[Named, Topic] = {}
    refused: dict[Named, Answer] = {}
    for named in times:
        try:
            topics[named] = _find(call, *named, times[named])
        except ApiError as refusal:
            refused[named] = _answer(_shown_name(call, *named), named[1], refusal.code, refusal.message)
    for named, topic in list(topics.items()):
        by_id = (None, topic.id)
        if named != by_id and by_id in times:
            topics.pop(by_id, None)  # so the id has no separate answer
            del topics[named]
            reason = f"{topic.name} is named by its id too"
            refused[named] = _answer(topic.name, topic.id, ErrorCode.INVALID_REQUEST, reason)
    return topics, refused


def _shown_name(call: RequestContext, name: str | None, topic_id: UUID | None) -> str | None:
    """Return the name of a topic that is refused. A client that named its id sees it if it may describe the topic."""
    topic = None if topic_id is None or call.rights is None else call.services.metadata.topic(topic_id)
    if topic is None or name is not None:
        return name
    return topic.name if sees(call.rights, Operation.DESCRIBE, ResourceType.TOPIC, topic.name) else None


def _count(call: RequestContext, topics: dict[Named, Topic], answers: dict[Named, Answer], now: Now) -> None:
    """Refuse the topics that the client's quota does not allow to delete."""
    for named, topic in list(topics.items()):
        try:
            call.count_mutation(len(topic.partitions), STRICT_VERSION, now)
        except ApiError as refusal:
            del topics[named]
            answers[named] = _answer(topic.name, topic.id, refusal.code, refusal.message)


def _note(call: RequestContext, staged: Staged) -> None:
    """Write the audit lines of a deletion that has ended, and report what failed."""
    call.note_topics("deleted", staged.change.topics, staged)
    for name in staged.change.topics:
        if (failure := staged.error or staged.errors.get(name)) is not None:
            call.services.report(f"topic {name} could not be deleted: {failure}")


def _deleted(topic: Topic, failure: ApiError | None) -> Answer:
    if failure is None:
        return _answer(topic.name, topic.id, ErrorCode.NONE, None)
    return _answer(topic.name, topic.id, failure.code, failure.message)


def _check_enabled(call: RequestContext) -> None:
    if not call.services.config.delete_topic_enable:
        knows_code = call.version >= DISABLED_VERSION
        code = ErrorCode.TOPIC_DELETION_DISABLED if knows_code else ErrorCode.INVALID_REQUEST
        raise ApiError(code, "topics are not to be deleted here: delete.topic.enable is false")


def _answer(name: str | None, topic_id: UUID | None, error: ErrorCode, message: str | None) -> Answer:
    return {"name": name, "topic_id": topic_id, "error_code": error, "error_message": message}


def _is_clear(name: str | None, topic_id: UUID | None) -> bool:
    return (name is None) != (topic_id is None)


def _check_rights(call: RequestContext, name: str | None, topic: Topic | None) -> None:
    """Raise ApiError unless the client may delete a topic. By its name it must be allowed to see the topic, too."""
    if name is not None:
        check(call.rights, Operation.DESCRIBE, ResourceType.TOPIC, name)
    if topic is not None:
        check(call.rights, Operation.DELETE, ResourceType.TOPIC, topic.name)


def _find(call: RequestContext, name: str | None, topic_id: UUID | None, times: int) -> Topic:
    """Return the topic to delete, which the request names `times` times. Raise ApiError."""
    _check_enabled(call)
    check_request(call)
    if not _is_clear(name, topic_id):
        given = "Neither topic name nor id were" if name is None else "You may not specify both topic name and topic id"
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{given} specified." if name is None else f"{given}.")
    if times > 1:
        raise ApiError(ErrorCode.INVALID_REQUEST, DUPLICATE_TOPIC)
    key = topic_id if name is None else str(name)
    topic = None if key is None else call.services.metadata.topic(key)
    if not sees(call.rights, Operation.DELETE, ResourceType.CLUSTER, CLUSTER_NAME):
        _check_rights(call, name, topic)
    if topic is None:
        if name is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"{ID_NOT_HOSTED} No topic has the id {topic_id}.")
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, not_hosted(name))
    return topic
