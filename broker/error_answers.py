"""An answer of any API that says one error wherever it can say one: what a request is told that a test wants to fail.

Nothing is looked at: the answer mirrors the request. Where the schema of the answer has an array with an error in it
(topics, their partitions, groups, resources), it gets an item for each of the request's, named as that is. What the
answer is of no use without, the nodes of Metadata, comes from the handler, and the error is written over it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from broker.api_table import Api
from broker.fetch_session import wanted
from broker.handlers.call import Call
from broker.now import Now
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
# Reads whose answer a client cannot do without.
WRITTEN_OVER = frozenset({"Metadata", "DescribeTopicPartitions"})


def error_answer(api: Api, call: Call, code: ErrorCode, now: Now) -> Any:
    """What `api.handle` would return, with this error in all its places; None where this request's answer has none (a
    Metadata request for no topic). Of any API but `broker.faults.NO_ERRORS`; ApiError for a Produce that wants no
    answer."""
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


def _produce(call: Call, code: ErrorCode) -> list[PartitionResult]:
    if call.request.acks == 0:
        raise ApiError(code, MESSAGE)
    return [PartitionResult(each.topic, each.partition, code, message=MESSAGE) for each in call.request.partitions]


def _fetch(call: Call, code: ErrorCode, now: Now) -> FetchResponse | None:
    """Of a session all that it remembers is answered: a client need not name again what it named before."""
    request = call.request
    if code in SESSION_ERRORS and call.version >= fetch.SESSIONS:
        return FetchResponse(error_code=code)
    try:
        session = call.services.fetch_sessions.resume(request, call.version >= fetch.TOPIC_IDS, now)
    except ApiError as error:
        return FetchResponse(error_code=error.code)
    partitions = session.partitions() if session else list(wanted(request.partitions).values())
    found = [(each, FetchedPartition(*each.key, error_code=code)) for each in partitions]
    if session is not None:
        return session.answer(request.session_epoch, found)
    return FetchResponse([result for _, result in found]) if found else None


def _list_offsets(call: Call, code: ErrorCode) -> ListOffsetsResponse | None:
    found = [FoundOffset(each.topic, each.partition, code) for each in call.request.partitions]
    return ListOffsetsResponse(found) if found else None


# --- by the schema ---------------------------------------------------------------------------------------------------


def _is_error(plan: FieldPlan) -> bool:
    return plan.kafka_type == "error_code"


@cache
def _has_error(cls: SchemaClass) -> bool:
    """Whether an error stands anywhere in a structure."""
    return any(_is_error(plan) or (plan.nested is not None and _has_error(plan.nested)) for plan in plan_of(cls))


def _mirror(cls: SchemaClass, asked_cls: SchemaClass, asked: Any, code: ErrorCode) -> dict[str, Any]:
    """A structure of the answer, from the one of the request that it is about."""
    plans, of_asked = plan_of(cls), {plan.name: plan for plan in plan_of(asked_cls)}
    answer: dict[str, Any] = {}
    for plan in plans:
        if _is_error(plan):
            answer[plan.name] = code
        elif plan.name == "error_message":
            answer[plan.name] = MESSAGE
        elif plan.nested is not None and plan.array and _has_error(plan.nested):
            source = _source(plan, plans, of_asked)
            answer[plan.name] = [] if source is None else _items(plan.nested, source, asked, code)
        elif plan.nested is None and not plan.array and plan.name in of_asked:
            answer[plan.name] = getattr(asked, plan.name)
    return answer


def _source(plan: FieldPlan, plans: Sequence[FieldPlan], of_asked: Mapping[str, FieldPlan]) -> FieldPlan | None:
    """The array of the request that an array of the answer is about: of the same name, or, where nothing else could say
    the error, the only one there is."""
    if plan.name in of_asked:
        return of_asked[plan.name]
    arrays = [each for each in of_asked.values() if each.array]
    return arrays[0] if len(arrays) == 1 and not any(map(_is_error, plans)) else None


def _items(cls: SchemaClass, source: FieldPlan, asked: Any, code: ErrorCode) -> list[dict[str, Any]]:
    items = getattr(asked, source.name) or ()
    if source.nested is not None:
        return [_mirror(cls, source.nested, each, code) for each in items]
    naming = next(plan.name for plan in plan_of(cls) if not _is_error(plan) and plan.name != "error_message")
    said = {plan.name: code if _is_error(plan) else MESSAGE for plan in plan_of(cls) if _says_error(plan)}
    return [said | {naming: each} for each in items]


def _says_error(plan: FieldPlan) -> bool:
    return _is_error(plan) or plan.name == "error_message"


def _says(cls: SchemaClass, answer: Mapping[str, Any]) -> bool:
    """Whether an error stands in the answer itself or in an item of it."""
    return any(
        _is_error(plan) or (plan.nested is not None and any(_says(plan.nested, each) for each in answer[plan.name]))
        for plan in plan_of(cls)
        if plan.name in answer
    )


def _making_nothing(call: Call) -> Call:
    """The same question without leave to make the topics it is about."""
    if not hasattr(call.request, "allow_auto_topic_creation"):
        return call
    return call._replace(request=replace(call.request, allow_auto_topic_creation=False))


def _write_over(cls: SchemaClass, answer: dict[str, Any], code: ErrorCode) -> dict[str, Any] | None:
    """The handler's answer with the error at each topic."""
    topics = [{**topic, "error_code": code, "partitions": []} for topic in answer["topics"]]
    whole = {**answer, "topics": topics, "error_code": code}
    return whole if topics or any(map(_is_error, plan_of(cls))) else None
