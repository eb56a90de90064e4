"""Answers that report one error wherever they have a place for it, for requests that a test wants to fail.

The answer mirrors the request and does not depend on the broker's state. If an array of the answer's schema has items
with an error (topics, partitions, groups, resources), it gets one item for each item of the request, with the same
name. Some answers are useless without data of the broker, such as Metadata without nodes: the handler makes them, and
the error is written over them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from broker.engine.api_table import Api
from broker.now import Now
from broker.services.context import RequestContext
from broker.services.fetch_session import wanted
from broker.wire import fetch, list_offsets, produce
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.fetch import FetchedPartition, FetchResponse
from broker.wire.list_offsets import FoundOffset, ListOffsetsResponse
from broker.wire.produce import PartitionResult
from broker.wire.schema import FieldPlan, SchemaClass, plan_of, schema

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
    answer = _mirror(cls, type(call.original), call.original, code)
    return answer if _says(cls, answer) else None


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


# --- by the schema ---------------------------------------------------------------------------------------------------


def _is_error(plan: FieldPlan) -> bool:
    return plan.kafka_type == "error_code"


@cache
def _has_error(cls: SchemaClass) -> bool:
    """Return True if a structure has an error field at any depth."""
    return any(_is_error(plan) or (plan.nested is not None and _has_error(plan.nested)) for plan in plan_of(cls))


def _mirror(cls: SchemaClass, request_cls: SchemaClass, request_part: Any, code: ErrorCode) -> dict[str, Any]:
    """Return a structure of the answer, made from the request's structure that it answers."""
    plans, of_request = plan_of(cls), {plan.name: plan for plan in plan_of(request_cls)}
    answer: dict[str, Any] = {}
    for plan in plans:
        if _is_error(plan):
            answer[plan.name] = code
        elif plan.name == "error_message":
            answer[plan.name] = MESSAGE
        elif plan.nested is not None and plan.array and _has_error(plan.nested):
            source = _source(plan, plans, of_request)
            answer[plan.name] = [] if source is None else _items(plan.nested, source, request_part, code)
        elif plan.nested is None and not plan.array and plan.name in of_request:
            answer[plan.name] = getattr(request_part, plan.name)
    return answer


def _source(plan: FieldPlan, plans: Sequence[FieldPlan], of_request: Mapping[str, FieldPlan]) -> FieldPlan | None:
    """Return the request's array that an array of the answer mirrors.

    It has the same name. If no other field of the answer has an error, it may also be the request's only array.
    """
    if plan.name in of_request:
        return of_request[plan.name]
    arrays = [array for array in of_request.values() if array.array]
    return arrays[0] if len(arrays) == 1 and not any(map(_is_error, plans)) else None


def _items(cls: SchemaClass, source: FieldPlan, request_part: Any, code: ErrorCode) -> list[dict[str, Any]]:
    items = getattr(request_part, source.name) or ()
    if source.nested is not None:
        return [_mirror(cls, source.nested, item, code) for item in items]
    naming = next(plan.name for plan in plan_of(cls) if not _is_error(plan) and plan.name != "error_message")
    errors = {plan.name: code if _is_error(plan) else MESSAGE for plan in plan_of(cls) if _says_error(plan)}
    return [errors | {naming: item} for item in items]


def _says_error(plan: FieldPlan) -> bool:
    return _is_error(plan) or plan.name == "error_message"


def _says(cls: SchemaClass, answer: Mapping[str, Any]) -> bool:
    """Return True if the answer, or an item in it, has an error field."""
    return any(
        _is_error(plan) or (plan.nested is not None and any(_says(plan.nested, nested) for nested in answer[plan.name]))
        for plan in plan_of(cls)
        if plan.name in answer
    )


def _making_nothing(call: RequestContext) -> RequestContext:
    """Return the same call without permission to create topics."""
    if not hasattr(call.request, "allow_auto_topic_creation"):
        return call
    return call._replace(request=replace(call.request, allow_auto_topic_creation=False))


def _write_over(cls: SchemaClass, answer: dict[str, Any], code: ErrorCode) -> dict[str, Any] | None:
    """Return the handler's answer with the error at each topic, or None if it has no place for the error."""
    topics = [{**topic, "error_code": code, "partitions": []} for topic in answer["topics"]]
    whole = {**answer, "topics": topics, "error_code": code}
    return whole if topics or any(map(_is_error, plan_of(cls))) else None
