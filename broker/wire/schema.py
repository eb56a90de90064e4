"""What the schema says of each message, in the form the codec of the cold APIs works from: one plan of each class.

The classes are `kio`'s, generated from Kafka's own definitions. They say all there is to say, but slowly: a plan is
made of a class once.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeAlias, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as SchemaErrorCode
from kio.schema.index import api_key_map, schema_name_map

METADATA = 3

Kind = Literal["request", "response"]
Fields = Mapping[str, Any]
SchemaClass: TypeAlias = Any
"""One of kio's dataclasses: of a message, or of a structure in one."""


class FieldPlan(NamedTuple):
    """One field. `nested` is the class of a structure, None for a primitive, which is named by `kafka_type`."""

    name: str
    kafka_type: str
    nested: SchemaClass | None
    array: bool
    optional: bool
    tag: int | None
    default: Any


@cache
def plan_of(cls: SchemaClass) -> tuple[FieldPlan, ...]:
    """The fields of a class, in the order they are written."""
    return tuple(_plan(field) for field in fields(cls))


@cache
def schema(api_key: int, version: int, kind: Kind) -> SchemaClass:
    """kio's class of a message; RuntimeError where Kafka has no such API or version."""
    load = load_request_schema if kind == "request" else load_response_schema
    return load(api_key, version)


def versions_of(api_key: int) -> list[int]:
    """The versions Kafka's schema has of an API, ascending."""
    return sorted(schema_name_map[api_key_map[api_key]])


@cache
def is_flat(cls: SchemaClass) -> bool:
    """Whether no array stands anywhere in a message."""
    return not any(plan.array or (plan.nested is not None and not is_flat(plan.nested)) for plan in plan_of(cls))


# Fields that came and went: Metadata has them in v8 to v10.
_BETWEEN = frozenset({"include_cluster_authorized_operations", "cluster_authorized_operations"})


@cache
def names_of(api_key: int, kind: Kind) -> frozenset[str]:
    """The message's field names: those of its first and its last version, and what only stands between (a test says
    that there is no other)."""
    names = set(_BETWEEN if api_key == METADATA else ())

    def collect(cls: SchemaClass) -> None:
        for plan in plan_of(cls):
            names.add(plan.name)
            if plan.nested is not None:
                collect(plan.nested)

    versions = versions_of(api_key)
    collect(schema(api_key, versions[0], kind))
    collect(schema(api_key, versions[-1], kind))
    return frozenset(names)


def _plan(field: Field[Any]) -> FieldPlan:
    kind: Any = field.type
    optional = isinstance(kind, UnionType)
    if optional:
        kind = next(arg for arg in get_args(kind) if arg is not NoneType)
    array = get_origin(kind) is tuple
    if array:
        kind = get_args(kind)[0]
    nested = kind if is_dataclass(kind) else None
    kafka_type = field.metadata.get("kafka_type", "")
    default = _default(field, kafka_type, nested, array, optional)
    return FieldPlan(field.name, kafka_type, nested, array, optional, field.metadata.get("tag"), default)


def _default(field: Field[Any], kafka_type: str, nested: SchemaClass | None, array: bool, optional: bool) -> Any:
    if field.default is not MISSING:
        return field.default
    if optional:
        return None
    if array:
        return ()
    if nested is not None:
        return nested(**{plan.name: plan.default for plan in plan_of(nested)})
    return _EMPTY.get(kafka_type, 0)


_EMPTY: dict[str, Any] = {
    "string": "",
    "bytes": b"",
    "records": None,
    "bool": False,
    "uuid": None,
    "error_code": SchemaErrorCode.none,
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
    "datetime_i64": datetime.fromtimestamp(0, UTC),
}
