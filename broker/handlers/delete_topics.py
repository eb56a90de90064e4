"""DeleteTopics, v1 to v6.

Behaviour: each topic goes or is refused by itself, with its logs and the offsets groups committed for it; fetches that
wait for it are answered. The topics the broker keeps its own records in are refused, though Kafka deletes them too, and
one that is named twice; without `delete.topic.enable` all are.
Version notes: v3 can be told that topics are not to be deleted, v2 that its request is invalid; v5 has a message; v6
names topics by name or by id (KIP-516).
"""

from collections import Counter
from typing import Any
from uuid import UUID

from broker.handlers.call import Call
from broker.handlers.time_limit import check_time
from broker.log.storage import StorageError
from broker.metadata import Topic
from broker.now import Now
from broker.wire.errors import ApiError, ErrorCode

TOPIC_IDS_VERSION = 6
DISABLED_VERSION = 3


def handle(call: Call, now: Now) -> dict[str, Any]:
    if call.version >= TOPIC_IDS_VERSION:
        asked = [(topic.name, topic.topic_id) for topic in call.request.topics]
    else:
        asked = [(name, None) for name in call.original.topic_names]
    times = Counter(asked)
    twice = ErrorCode.INVALID_REQUEST, "it stands in the request more than once"
    responses = [
        _delete(call, *named, now) if count == 1 else _answer(*named, *twice) for named, count in times.items()
    ]
    return {"throttle_time": 0, "responses": responses}


def _delete(call: Call, name: str | None, topic_id: UUID | None, now: Now) -> dict[str, Any]:
    try:
        _check_enabled(call)
        check_time(call.request)
        topic = _find(call, name, topic_id)
        call.services.delete_topic(topic, now)
    except ApiError as refusal:
        return _answer(name, topic_id, refusal.code, refusal.message)
    except StorageError as failure:
        call.services.report(f"topic {topic.name} could not be deleted: {failure}")
        return _answer(name, topic_id, ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
    return _answer(topic.name, topic.id, ErrorCode.NONE, None)


def _check_enabled(call: Call) -> None:
    if not call.services.config.delete_topic_enable:
        known = call.version >= DISABLED_VERSION
        code = ErrorCode.TOPIC_DELETION_DISABLED if known else ErrorCode.INVALID_REQUEST
        raise ApiError(code, "topics are not to be deleted here: delete.topic.enable is false")


def _answer(name: str | None, topic_id: UUID | None, error: ErrorCode, message: str | None) -> dict[str, Any]:
    return {"name": name, "topic_id": topic_id, "error_code": error, "error_message": message}


def _find(call: Call, name: str | None, topic_id: UUID | None) -> Topic:
    if (name is None) == (topic_id is None):
        raise ApiError(ErrorCode.INVALID_REQUEST, "name a topic by its name or by its id, one of the two")
    key = topic_id if name is None else str(name)
    topic = None if key is None else call.services.metadata.topic(key)
    if topic is None:
        code = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        raise ApiError(code, f"there is no topic {key}")
    if topic.is_internal:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{topic.name} holds the broker's own records; it stays")
    return topic
