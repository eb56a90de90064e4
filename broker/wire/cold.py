"""Every API but Produce and Fetch, by the schema that `kio` generates from Kafka's own definitions.

A handler sees one shape of each message, its newest: `decode` lifts an older version's message to the newest class
(what it lacks takes the schema's default), and `encode` takes plain fields by name and writes those that the version
has. So a handler says a thing once. Where Kafka moved a field (FindCoordinator's key became a list), the handler
reads `original`, the message as it was sent.

kio's own readers are used for messages without arrays only: for an array they take memory for as many items as it
says, before they look whether these are there, and where there is not so much memory the process is aborted. `_Reader`
reads all others, with kio's readers for the single fields. It also reads what kio's stop at, a tagged field that is not
known, and passes over it as KIP-482 asks; unknown top-level tags are kept: `tags.IDS` is one of them.

Fields of time (`*_timedelta`, datetimes in kio) are given to `encode` as integers of milliseconds.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from io import BytesIO
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as SchemaErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import DecodeError
from kio.serial.readers import Reader

from broker.wire.errors import WireError
from broker.wire.primitives import Buffer, read_count, read_length, read_tags
from broker.wire.primitives import tags as tag_section

METADATA = 3

Kind = Literal["request", "response"]
Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One decoded message: lifted to the newest version, as sent, and its unknown top-level tags."""

    newest: Any
    original: Any
    tags: Mapping[int, Buffer]


@cache
def schema(api_key: int, version: int, kind: Kind) -> type[Any]:
    """kio's class of a message; RuntimeError where Kafka has no such API or version."""
    load = load_request_schema if kind == "request" else load_response_schema
    return load(api_key, version)


def decode(api_key: int, version: int, kind: Kind, data: Buffer, position: int, newest: int) -> Message:
    """A message from its body; WireError names what is wrong with it."""
    cls = schema(api_key, version, kind)
    data = memoryview(data).toreadonly()  # kio's readers take no other
    tags: Mapping[int, Buffer] = {}
    try:
        original = _read_flat(cls, data, position) if _is_flat(api_key, version, kind) else None
        if original is None:
            original, tags = _Reader(cls).read(data, position)
    except (DecodeError, WireError, ValueError, OverflowError, IndexError, TypeError, struct.error) as error:
        raise WireError(f"{cls.__name__} v{version}: {error or type(error).__name__}") from None
    lifted = original if version == newest else _lift(original, schema(api_key, newest, kind))
    return Message(lifted, original, tags)


def encode(api_key: int, version: int, kind: Kind, values: Fields, tags: dict[int, bytes] | None = None) -> bytes:
    """A body from plain fields; those the version lacks are left out, those not given take the schema's default.

    Raises TypeError for a name that no version of the message has. `tags` are added at the top level (a flexible
    version of a message whose schema has no top-level tags of its own).
    """
    cls = schema(api_key, version, kind)
    out = BytesIO()
    entity_writer(cls)(out, _build(cls, values, _names(api_key, kind)))
    body = out.getvalue()
    if tags:
        assert cls.__flexible__ and body[-1] == 0, f"{cls.__name__} v{version} has no room for a tag"
        body = body[:-1] + tag_section(tags)
    return body


def milliseconds(value: timedelta) -> int:
    return value // _MILLISECOND


_MILLISECOND = timedelta(milliseconds=1)


def _read_flat(cls: type[Any], data: memoryview, position: int) -> Any:
    """A message without arrays by kio's own reader; None where it holds a tag that kio does not know."""
    try:
        return entity_reader(cls)(data, position)[0]
    except KeyError:
        return None


# --- classes of the schema ---------------------------------------------------------------------------------------


@cache
def _item(field: Field[Any]) -> tuple[type[Any], bool, bool]:
    """(type, is an array, may be null) of a field."""
    kind: Any = field.type
    optional = False
    if isinstance(kind, UnionType):
        kind = next(arg for arg in get_args(kind) if arg is not NoneType)
        optional = True
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        return inner, True, optional
    return kind, False, optional


@cache
def _is_flat(api_key: int, version: int, kind: Kind) -> bool:
    """Whether no array stands anywhere in a message."""

    def flat(cls: type[Any]) -> bool:
        items = [_item(field) for field in fields(cls)]
        return not any(array or (is_dataclass(kind) and not flat(kind)) for kind, array, _ in items)

    return flat(schema(api_key, version, kind))


# Fields that came and went: Metadata has them in v8 to v10.
_BETWEEN = frozenset({"include_cluster_authorized_operations", "cluster_authorized_operations"})


@cache
def _names(api_key: int, kind: Kind) -> frozenset[str]:
    """The message's field names: those of its first and its last version, and what only stands between (a test says
    that there is no other)."""
    names = set(_BETWEEN if api_key == METADATA else ())

    def collect(cls: type[Any]) -> None:
        for field in fields(cls):
            names.add(field.name)
            inner = _item(field)[0]
            if is_dataclass(inner):
                collect(inner)

    versions = versions_of(api_key)
    collect(schema(api_key, versions[0], kind))
    collect(schema(api_key, versions[-1], kind))
    return frozenset(names)


def versions_of(api_key: int) -> list[int]:
    """The versions Kafka's schema has of an API, ascending."""
    return sorted(schema_name_map[api_key_map[api_key]])


@cache
def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    kind, array, optional = _item(field)
    if optional:
        return None
    if array:
        return ()
    if is_dataclass(kind):
        return kind(**{each.name: _default(each) for each in fields(kind)})
    return _EMPTY.get(field.metadata["kafka_type"], 0)


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

_CONVERT: dict[str, Callable[[Any], Any]] = {
    "error_code": lambda value: SchemaErrorCode(int(value)),
    "timedelta_i32": lambda value: value * _MILLISECOND if isinstance(value, int) else value,
    "timedelta_i64": lambda value: value * _MILLISECOND if isinstance(value, int) else value,
    "datetime_i64": lambda value: _datetime(value) if isinstance(value, int) else value,
}


def _datetime(value_ms: int) -> datetime | None:
    return None if value_ms < 0 else datetime.fromtimestamp(0, UTC) + value_ms * _MILLISECOND


def _build(cls: type[Any], values: Fields, names: frozenset[str]) -> Any:
    unknown = set(values) - names
    if unknown:
        raise TypeError(f"{cls.__name__} has no {', '.join(sorted(unknown))} in any version")
    made = {}
    for field in fields(cls):
        if field.name not in values:
            made[field.name] = _default(field)
            continue
        value = values[field.name]
        kind, array, _ = _item(field)
        if value is not None and is_dataclass(kind):
            value = tuple(_build(kind, each, names) for each in value) if array else _build(kind, value, names)
        elif array and value is not None:
            value = tuple(value)
        elif value is not None:
            convert = _CONVERT.get(field.metadata["kafka_type"])
            value = convert(value) if convert else value
        made[field.name] = value
    return cls(**made)


def _lift(entity: Any, cls: type[Any]) -> Any:
    made = {}
    for field in fields(cls):
        value = getattr(entity, field.name, MISSING)
        if value is MISSING:
            value = _default(field)
        else:
            kind, array, _ = _item(field)
            if value is not None and is_dataclass(kind):
                value = tuple(_lift(each, kind) for each in value) if array else _lift(value, kind)
        made[field.name] = value
    return cls(**made)


# --- the tolerant reader -----------------------------------------------------------------------------------------


class _Reader:
    """Reads a flexible message field by field with kio's own readers, passing over tagged fields it does not know."""

    def __init__(self, cls: type[Any]) -> None:
        self.cls = cls

    def read(self, data: Buffer, position: int) -> tuple[Any, Mapping[int, Buffer]]:
        entity, _, unknown = self._entity(self.cls, data, position)
        return entity, unknown

    def _entity(self, cls: type[Any], data: Buffer, position: int) -> tuple[Any, int, dict[int, Buffer]]:
        made: dict[str, Any] = {}
        tagged: dict[int, Field[Any]] = {}
        for field in fields(cls):
            if "tag" in field.metadata:
                tagged[field.metadata["tag"]] = field
                made[field.name] = _default(field)
            else:
                made[field.name], position = self._field(cls, field, data, position)
        unknown: dict[int, Buffer] = {}
        if cls.__flexible__:
            section, position = read_tags(data, position)
            for tag, payload in section.items():
                known = tagged.get(tag)
                if known is None:
                    unknown[tag] = payload
                else:
                    made[known.name], _ = self._field(cls, known, payload, 0)
        return cls(**made), position, unknown

    def _field(self, cls: type[Any], field: Field[Any], data: Buffer, position: int) -> tuple[Any, int]:
        kind, array, optional = _item(field)
        if not array:
            return self._value(cls, field, kind, optional, data, position)
        count, after = read_length(data, position, cls.__flexible__)
        if count < 0:
            if not optional:
                raise WireError(f"{field.name} is null, which it may not be")
            return None, after
        count, position = read_count(data, position, cls.__flexible__, 1)
        values = []
        for _ in range(count):
            value, position = self._value(cls, field, kind, False, data, position)
            values.append(value)
        return tuple(values), position

    def _value(
        self, cls: type[Any], field: Field[Any], kind: type[Any], optional: bool, data: Buffer, position: int
    ) -> tuple[Any, int]:
        if is_dataclass(kind):
            if optional:
                marker, position = data[position], position + 1
                if marker > 0x7F:
                    return None, position
            value, position, _ = self._entity(kind, data, position)
            return value, position
        value, size = _primitive(field.metadata["kafka_type"], cls.__flexible__, optional)(data, position)
        return value, position + size


@cache
def _primitive(kafka_type: str, flexible: bool, optional: bool) -> Reader[Any]:
    from kio._kio_native import get_reader

    return get_reader(kafka_type, flexible, optional)
