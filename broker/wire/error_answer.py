"""Answers that have one error wherever their schema has a place for it.

The answer mirrors the request. If an array of the answer's schema has items with an error (topics, partitions, groups,
resources), it gets one item for each item of the request, with the same name.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from broker.wire.errors import ErrorCode
from broker.wire.schema import FieldPlan, SchemaClass, plan_of


class AnsweredError(NamedTuple):
    """An error with its message."""

    code: ErrorCode
    message: str | None


def is_error(plan: FieldPlan) -> bool:
    return plan.kafka_type == "error_code"


@cache
def _has_error(cls: SchemaClass) -> bool:
    """Return True if a structure has an error field at any depth."""
    return any(is_error(plan) or (plan.nested is not None and _has_error(plan.nested)) for plan in plan_of(cls))


def mirror(
    cls: SchemaClass, request_cls: SchemaClass, request_part: Any, error: AnsweredError, *, at_top: bool = False
) -> dict[str, Any]:
    """Return a structure of the answer, made from the request's structure that it answers.

    With `at_top` an answer with an error at its top has nothing else.
    """
    plans, of_request = plan_of(cls), {plan.name: plan for plan in plan_of(request_cls)}
    is_alone = at_top and any(map(is_error, plans))
    answer: dict[str, Any] = {}
    for plan in plans:
        if is_error(plan):
            answer[plan.name] = error.code
        elif plan.name == "error_message":
            answer[plan.name] = error.message
        elif plan.nested is not None and plan.array and _has_error(plan.nested):
            source = None if is_alone else _source(plan, plans, of_request)
            answer[plan.name] = [] if source is None else _items(plan.nested, source, request_part, error)
        elif plan.nested is None and not plan.array and plan.name in of_request and not is_alone:
            answer[plan.name] = getattr(request_part, plan.name)
    return answer


def _source(plan: FieldPlan, plans: Sequence[FieldPlan], of_request: Mapping[str, FieldPlan]) -> FieldPlan | None:
    """Return the request's array that an array of the answer mirrors.

    It has the same name. If no other field of the answer has an error, it may also be the request's only array.
    """
    if plan.name in of_request:
        return of_request[plan.name]
    arrays = [array for array in of_request.values() if array.array]
    return arrays[0] if len(arrays) == 1 and not any(map(is_error, plans)) else None


def _items(cls: SchemaClass, source: FieldPlan, request_part: Any, error: AnsweredError) -> list[dict[str, Any]]:
    items = getattr(request_part, source.name) or ()
    if source.nested is not None:
        return [mirror(cls, source.nested, item, error) for item in items]
    naming = next(plan.name for plan in plan_of(cls) if not is_error(plan) and plan.name != "error_message")
    errors = {
        plan.name: error.code if is_error(plan) else error.message for plan in plan_of(cls) if _tells_error(plan)
    }
    return [errors | {naming: item} for item in items]


def _tells_error(plan: FieldPlan) -> bool:
    return is_error(plan) or plan.name == "error_message"


def tells_error(cls: SchemaClass, answer: Mapping[str, Any]) -> bool:
    """Return True if the answer, or an item in it, has an error field."""
    return any(
        is_error(plan)
        or (plan.nested is not None and any(tells_error(plan.nested, nested) for nested in answer[plan.name]))
        for plan in plan_of(cls)
        if plan.name in answer
    )
