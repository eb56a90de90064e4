"""The schema of each message as a plan, the form that the codec of the cold APIs uses.

The schema classes are `kio`'s, generated from Kafka's definitions, and those of `broker.wire.inter_broker`, which kio
lacks. Because reading them is slow, each class is turned into a plan once.
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
_NOT_IN_KIO = range(4, 8)  # the keys of broker.wire.inter_broker, which is imported at its first use

_WITH_OWN_TAGS = frozenset({(56, 3)})  # the versions whose classes in broker.wire.inter_broker have tags of ours

Kind = Literal["request", "response"]
Fields = Mapping[str, Any]
SchemaClass: TypeAlias = Any
"""A dataclass of kio or of `broker.wire.inter_broker`: a message, or a structure in a message."""


class FieldPlan(NamedTuple):
    """A field. `nested` is the class of a structure, None for a primitive type, which `kafka_type` names."""

    name: str
    kafka_type: str
    nested: SchemaClass | None
    array: bool
    optional: bool
    tag: int | None
    default: Any


@cache
def plan_of(cls: SchemaClass) -> tuple[FieldPlan, ...]:
    """Return the fields of a class, in wire order."""
    return tuple(_plan(field) for field in fields(cls))


@cache
def schema(api_key: int, version: int, kind: Kind) -> SchemaClass:
    """Return the class of a message. Raise RuntimeError if there is no such API or version."""
    if api_key in _NOT_IN_KIO:
        return _inter_broker(api_key, version, kind)
    if (api_key, version) in _WITH_OWN_TAGS:
        from broker.wire.inter_broker import AlterPartitionRequest, AlterPartitionResponse

        return AlterPartitionRequest if kind == "request" else AlterPartitionResponse
    load = load_request_schema if kind == "request" else load_response_schema
    return load(api_key, version)


def _inter_broker(api_key: int, version: int, kind: Kind) -> SchemaClass:
    from broker.wire.inter_broker import REQUESTS, RESPONSES

    cls = (REQUESTS if kind == "request" else RESPONSES)[api_key]
    if version != cls.__version__:
        raise RuntimeError(f"{cls.__name__} v{version} has no schema; v{cls.__version__} has one")
    return cls


def name_of(api_key: int) -> str:
    """Return the name of an API in Kafka's documentation: `ListOffsets`."""
    name: str = schema(api_key, versions_of(api_key)[-1], "request").__name__
    return name.removesuffix("Request")


def versions_of(api_key: int) -> list[int]:
    """Return the versions of an API in Kafka's schema, ascending; for an API that kio lacks, the one that we have."""
    if api_key in _NOT_IN_KIO:
        from broker.wire.inter_broker import REQUESTS

        return [int(REQUESTS[api_key].__version__)]
    return sorted(schema_name_map[api_key_map[api_key]])


@cache
def is_flat(cls: SchemaClass) -> bool:
    """Return True if neither a message nor its structures have an array."""
    return not any(plan.array or (plan.nested is not None and not is_flat(plan.nested)) for plan in plan_of(cls))


# Fields that neither the first nor the last version has: Metadata has them in v8 to v10.
_BETWEEN = frozenset({"include_cluster_authorized_operations", "cluster_authorized_operations"})


@cache
def names_of(api_key: int, kind: Kind) -> frozenset[str]:
    """Return the field names of all versions of a message.

    They are those of its first and its last version, and those in `_BETWEEN`. A test checks that no version has others.
    """
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
