"""Answers that report one error wherever they have a place for it, for requests that a test wants to fail.

The answer mirrors the request (broker.wire.error_answer) and does not depend on the broker's state. Some answers
are useless without data of the broker, such as Metadata without nodes: the handler makes them, and the error is written
over them.
"""

from dataclasses import replace
from typing import Any

from broker.engine.api_table import Api
from broker.now import Now
from broker.services.context import RequestContext
from broker.services.fetch_session import wanted
from broker.wire import fetch, list_offsets, produce
from broker.wire.error_answer import AnsweredError, is_error, mirror, tells_error
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.fetch import FetchedPartition, FetchResponse
from broker.wire.list_offsets import FoundOffset, ListOffsetsResponse
from broker.wire.produce import PartitionResult
from broker.wire.schema import SchemaClass, plan_of, schema

MESSAGE = "a failure that a test asked for"
SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
# Reads whose answer is useless to a client without data of the broker.
WRITTEN_OVER = frozenset({"Metadata", "DescribeTopicPartitions"})


def error_answer(api: Api, call: RequestContext, code: ErrorCode, now: Now) -> Any:
    """Return what `api.handle` would return, with this error in all its places.

    Return None if the answer to this request has no place for an error (a Metadata request for no topic). The API must
    not be in `broker.fault_injection.faults.NO_ERRORS`. Raise ApiError for a Produce that wants no answer.
    """
    if api.key == produce.API_KEY:
        return _produce(call, code)
    if api.key == fetch.API_KEY:
        return _fetch(call, code, now)
    if api.key == list_offsets.API_KEY:
        return _list_offsets(call, code)
    cls = schema(api.key, call.version, "response")
    if api.name in WRITTEN_OVER:
        return _write_over(cls, api.handle(_making_nothing(call), now), code)
    answer = mirror(cls, type(call.original), call.original, AnsweredError(code, MESSAGE))
    return answer if tells_error(cls, answer) else None


def _produce(call: RequestContext, code: ErrorCode) -> list[PartitionResult]:
    if call.request.acks == 0:
        raise ApiError(code, MESSAGE)
    return [
        PartitionResult(topic, partition, code, message=MESSAGE) for topic, partition, _ in call.request.partitions
    ]


def _fetch(call: RequestContext, code: ErrorCode, now: Now) -> FetchResponse | None:
    """Return a Fetch answer with the error.

    It covers all partitions that a session remembers, because the client does not name these again.
    """
    request = call.request
    if code in SESSION_ERRORS and call.version >= fetch.SESSIONS:
        return FetchResponse(error_code=code)
    try:
        session = call.services.fetch_sessions.resume(request, call.version >= fetch.TOPIC_IDS, now, call.listener)
    except ApiError as error:
        return FetchResponse(error_code=error.code)
    partitions = session.partitions() if session else wanted(request.partitions)
    results = [(partition, FetchedPartition(*partition.key, error_code=code)) for partition in partitions]
    if session is not None:
        return session.answer(request.session_epoch, results)
    return FetchResponse([result for _, result in results]) if results else None


def _list_offsets(call: RequestContext, code: ErrorCode) -> ListOffsetsResponse | None:
    results = [FoundOffset(partition.topic, partition.partition, code) for partition in call.request.partitions]
    return ListOffsetsResponse(results) if results else None


# --- by the handler --------------------------------------------------------------------------------------------------


def _making_nothing(call: RequestContext) -> RequestContext:
    """Return the same call without permission to create topics."""
    if not hasattr(call.request, "allow_auto_topic_creation"):
        return call
    return call._replace(request=replace(call.request, allow_auto_topic_creation=False))


def _write_over(cls: SchemaClass, answer: dict[str, Any], code: ErrorCode) -> dict[str, Any] | None:
    """Return the handler's answer with the error at each topic, or None if it has no place for the error."""
    topics = [{**topic, "error_code": code, "partitions": []} for topic in answer["topics"]]
    whole = {**answer, "topics": topics, "error_code": code}
    return whole if topics or any(map(is_error, plan_of(cls))) else None
