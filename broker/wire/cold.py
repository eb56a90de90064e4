"""The codec of the cold APIs: all but Produce, Fetch and the broker's side of ListOffsets.

It works from the schema that `kio` generates from Kafka's definitions (`schema.py`). A handler sees each message in its
newest version only. `decode` lifts an older message to the newest class and fills the missing fields with the schema's
defaults. `encode` takes fields by name and writes those that the version has. If Kafka moved a field (FindCoordinator's
key became a list), the handler reads `original`, the message as sent.

kio's readers decode only messages without arrays. For an array they allocate memory for the claimed number of items
before they check that the items exist, and abort the process if the memory does not suffice. `_Reader` decodes all
other messages, with kio's readers for single fields. It also skips unknown tagged fields, as KIP-482 requires, while
kio's readers fail on them. It keeps unknown top-level tags, because `tags.IDS` is one of them. `_writer` encodes plain
fields without intermediate objects; kio's writers take several times as long. A test holds both to the same bytes.

`encode` takes times (`*_timedelta` and datetimes in kio) as integers in milliseconds.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from kio.serial import entity_reader
from kio.serial.errors import DecodeError, InvalidUnicode
from kio.serial.readers import Reader

from broker.wire.errors import WireError
from broker.wire.primitives import Buffer, check_items, length, read_count, read_length, read_string, read_tags, string
from broker.wire.primitives import tags as tag_section
from broker.wire.primitives import uvarint
from broker.wire.schema import FieldPlan, Fields, Kind, SchemaClass, is_flat, names_of, plan_of, schema

Put = Callable[[bytearray, Any], None]
"""A function that appends one encoded value to the buffer."""


@dataclass(frozen=True, slots=True)
class Message:
    """A decoded message: lifted to the newest version, as sent, and its unknown top-level tags."""

    newest: Any
    original: Any
    tags: Mapping[int, Buffer]


def decode(api_key: int, version: int, kind: Kind, data: Buffer, position: int, newest: int) -> Message:
    """Decode a message from its body. Raise WireError if it is invalid."""
    cls = schema(api_key, version, kind)
    data = memoryview(data).toreadonly()  # kio's readers accept no other type
    tags: Mapping[int, Buffer] = {}
    try:
        original = _read_flat(cls, data, position) if is_flat(cls) else None
        if original is None:
            original, tags = _Reader(cls, kind == "request").read(data, position)
    except (DecodeError, WireError, ValueError, OverflowError, IndexError, TypeError, struct.error) as error:
        raise WireError(f"{cls.__name__} v{version}: {error or type(error).__name__}") from None
    lifted = original if version == newest else _lift(original, schema(api_key, newest, kind))
    return Message(lifted, original, tags)


def encode(api_key: int, version: int, kind: Kind, values: Fields, tags: dict[int, bytes] | None = None) -> bytes:
    """Encode a body from fields by name. Skip fields the version lacks; missing fields take the schema's default.

    Raise TypeError for a name that no version of the message has, or for None in a field that is not nullable. `tags`
    are added at the top level; this needs a flexible version of a message whose schema has no top-level tags.
    """
    cls = schema(api_key, version, kind)
    out = bytearray()
    _writer(cls, names_of(api_key, kind))(out, values)
    if tags:
        assert cls.__flexible__ and out[-1] == 0, f"{cls.__name__} v{version} has no room for a tag"
        return bytes(out[:-1]) + tag_section(tags)
    return bytes(out)


def milliseconds(value: timedelta) -> int:
    return value // _MILLISECOND


_MILLISECOND = timedelta(milliseconds=1)
_LONGEST_MS, _SHORTEST_MS = timedelta.max // _MILLISECOND, timedelta.min // _MILLISECOND
_EPOCH = datetime.fromtimestamp(0, UTC)


def _read_flat(cls: SchemaClass, data: memoryview, position: int) -> Any:
    """Decode a message without arrays by kio's reader.

    Return None if that fails on an unknown tag, an unusual boolean or invalid UTF-8, so that `_Reader` decodes it.
    """
    try:
        return entity_reader(cls)(data, position)[0]
    except (KeyError, ValueError, InvalidUnicode):
        return None


def _lift(entity: Any, cls: SchemaClass) -> Any:
    made = {}
    for name, _, nested, array, _, _, default in plan_of(cls):
        value = getattr(entity, name, MISSING)
        if value is MISSING:
            value = default
        elif nested is not None and value is not None:
            value = tuple(_lift(each, nested) for each in value) if array else _lift(value, nested)
        made[name] = value
    return cls(**made)


# --- the reader --------------------------------------------------------------------------------------------------


class _Reader:
    """A decoder that reads a message field by field with kio's readers and skips unknown tagged fields.

    It limits the number of array items in a request by `check_items`.
    """

    def __init__(self, cls: SchemaClass, is_request: bool) -> None:
        self.cls = cls
        self._is_request = is_request
        self._items = 0

    def read(self, data: Buffer, position: int) -> tuple[Any, Mapping[int, Buffer]]:
        entity, _, unknown = self._entity(self.cls, data, position)
        return entity, unknown

    def _entity(self, cls: SchemaClass, data: Buffer, position: int) -> tuple[Any, int, Mapping[int, Buffer]]:
        made: dict[str, Any] = {}
        flexible = cls.__flexible__
        for plan in plan_of(cls):
            if plan.tag is not None:
                made[plan.name] = plan.default
            else:
                made[plan.name], position = self._field(plan, flexible, data, position)
        unknown: dict[int, Buffer] = {}
        if flexible:
            if data[position] == 0:
                return cls(**made), position + 1, unknown
            section, position = read_tags(data, position)
            tagged = {plan.tag: plan for plan in plan_of(cls) if plan.tag is not None}
            for tag, payload in section.items():
                known = tagged.get(tag)
                if known is None:
                    unknown[tag] = payload
                else:
                    made[known.name], _ = self._field(known, flexible, payload, 0)
        return cls(**made), position, unknown

    def _field(self, plan: FieldPlan, flexible: bool, data: Buffer, position: int) -> tuple[Any, int]:
        if not plan.array:
            return self._value(plan, flexible, plan.optional, data, position)
        count, after = read_length(data, position, flexible)
        if count < 0:
            if not plan.optional:
                raise WireError(f"{plan.name} is null, which it may not be")
            return None, after
        count, position = read_count(data, position, flexible, 1)
        self._items += count
        if self._is_request:
            check_items(self._items)
        values = []
        for _ in range(count):
            value, position = self._value(plan, flexible, False, data, position)
            values.append(value)
        return tuple(values), position

    def _value(
        self, plan: FieldPlan, flexible: bool, optional: bool, data: Buffer, position: int
    ) -> tuple[Any, int]:
        if plan.nested is None:
            value, size = _primitive(plan.kafka_type, flexible, optional)(data, position)
            return value, position + size
        if optional:
            marker, position = data[position], position + 1
            if marker > 0x7F:
                return None, position
        value, position, _ = self._entity(plan.nested, data, position)
        return value, position


@cache
def _primitive(kafka_type: str, flexible: bool, optional: bool) -> Reader[Any]:
    if kafka_type in _OWN:
        return _OWN[kafka_type]
    from kio._kio_native import get_reader

    reader: Reader[Any] = get_reader(kafka_type, flexible, optional)
    return _legible(reader, flexible) if kafka_type == "string" else reader


def _legible(reader: Reader[Any], flexible: bool) -> Reader[Any]:
    """Wrap kio's reader of strings: on invalid UTF-8, read the string as Kafka does, by `read_string`."""

    def read(data: Any, position: int) -> tuple[Any, int]:
        try:
            return reader(data, position)
        except InvalidUnicode:
            text, end = read_string(data, position, flexible)
            return text, end - position

    return read


def _boolean(data: Any, position: int) -> tuple[bool, int]:
    """Read a boolean as Kafka does: each byte except 0 is true. kio's reader fails on bytes other than 0 and 1."""
    return data[position] != 0, 1


def _duration(data: Any, position: int) -> tuple[timedelta, int]:
    """Read a duration, limited to the range of timedelta. kio's reader fails outside that range."""
    wanted = int.from_bytes(data[position : position + 8], "big", signed=True)
    if position + 8 > len(data):
        raise IndexError(f"a duration is cut short at byte {position}")
    return timedelta(milliseconds=max(_SHORTEST_MS, min(wanted, _LONGEST_MS))), 8


_OWN: dict[str, Reader[Any]] = {"bool": _boolean, "timedelta_i64": _duration}


# --- the writer --------------------------------------------------------------------------------------------------


@cache
def _writer(cls: SchemaClass, names: frozenset[str]) -> Put:
    """Return a function that writes a structure from a mapping of its fields.

    `names` are the field names in any version of the message.
    """
    flexible = cls.__flexible__
    plans = [(plan, _put(plan, flexible, names)) for plan in plan_of(cls)]
    steps = [(plan.name, _absent(plan), put) for plan, put in plans if plan.tag is None]
    tagged = sorted((plan.tag, plan.name, plan.default, put) for plan, put in plans if plan.tag is not None)

    def put(out: bytearray, values: Fields) -> None:
        if not values.keys() <= names:
            unknown = ", ".join(sorted(values.keys() - names))
            raise TypeError(f"{cls.__name__} has no {unknown} in any version")
        for name, absent, put_field in steps:
            put_field(out, values.get(name, absent))
        if tagged:
            _put_tagged(out, values, tagged)
        elif flexible:
            out.append(0)

    return put


def _absent(plan: FieldPlan) -> Any:
    """Return the value to write for a field that was not given."""
    if plan.kafka_type == "error_code":
        return 0
    return {} if plan.nested is not None and not plan.array and not plan.optional else plan.default


def _put_tagged(out: bytearray, values: Fields, tagged: list[tuple[int, str, Any, Put]]) -> None:
    """Write the tagged fields whose values are not the default (KIP-482)."""
    section: dict[int, bytes] = {}
    for tag, name, default, put_field in tagged:
        value = values.get(name, default)
        if value == default or (value is not None and default is not None and _plain(value) == _plain(default)):
            continue
        payload = bytearray()
        put_field(payload, value)
        section[tag] = bytes(payload)
    out += tag_section(section)


def _plain(value: Any) -> Any:
    """Return a value in the form that `encode` accepts: times as milliseconds, arrays as tuples."""
    if isinstance(value, timedelta):
        return value // _MILLISECOND
    return tuple(value) if isinstance(value, list) else value


def _put(plan: FieldPlan, flexible: bool, names: frozenset[str]) -> Put:
    item = _item(plan, flexible, names)
    if plan.array:
        return _array(plan, item, flexible)
    if plan.nested is None or not plan.optional:
        return _required(plan, item)

    def put_nullable(out: bytearray, value: Any) -> None:  # KIP-893
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            item(out, value)

    return put_nullable


def _required(plan: FieldPlan, item: Put) -> Put:
    """Return the item's writer; for a string, bytes or structure that is not nullable, it refuses None."""
    if plan.optional or (plan.nested is None and plan.kafka_type not in ("string", "bytes")):
        return item

    def put(out: bytearray, value: Any) -> None:
        if value is None:
            raise TypeError(f"{plan.name} is None, and the schema has no null there")
        item(out, value)

    return put


def _array(plan: FieldPlan, item: Put, flexible: bool) -> Put:
    def put(out: bytearray, values: Any) -> None:
        if values is None:
            if not plan.optional:
                raise TypeError(f"{plan.name} is None, and the schema has no null there")
            out += length(-1, flexible)
            return
        out += length(len(values), flexible)
        for each in values:
            item(out, each)

    return put


def _item(plan: FieldPlan, flexible: bool, names: frozenset[str]) -> Put:
    if plan.nested is not None:
        return _writer(plan.nested, names)
    if plan.kafka_type == "string":
        return _flexible_string if flexible else _fixed_string
    if plan.kafka_type in ("bytes", "records"):
        return _flexible_bytes if flexible else _fixed_bytes
    if plan.kafka_type == "uuid":
        return _uuid
    fixed = struct.Struct(_FIXED[plan.kafka_type])
    pack = fixed.pack
    if plan.kafka_type in _TIMES:
        return lambda out, value: out.extend(pack(_milliseconds_of(value)))
    return lambda out, value: out.extend(pack(value))


_FIXED = {
    "bool": ">?",
    "int8": ">b",
    "int16": ">h",
    "int32": ">i",
    "int64": ">q",
    "uint8": ">B",
    "uint16": ">H",
    "uint32": ">I",
    "uint64": ">Q",
    "float64": ">d",
    "error_code": ">h",
    "timedelta_i32": ">i",
    "timedelta_i64": ">q",
    "datetime_i64": ">q",
}
_TIMES = ("timedelta_i32", "timedelta_i64", "datetime_i64")


def _milliseconds_of(value: int | timedelta | datetime | None) -> int:
    if isinstance(value, timedelta):
        return value // _MILLISECOND
    if isinstance(value, datetime):
        return (value - _EPOCH) // _MILLISECOND
    return -1 if value is None else value


def _flexible_string(out: bytearray, value: str | None) -> None:
    out += string(value, True)


def _fixed_string(out: bytearray, value: str | None) -> None:
    out += string(value, False)


def _flexible_bytes(out: bytearray, value: Buffer | None) -> None:
    out += uvarint(0 if value is None else len(value) + 1)
    out += value or b""


def _fixed_bytes(out: bytearray, value: Buffer | None) -> None:
    out += length(-1 if value is None else len(value), False)
    out += value or b""


def _uuid(out: bytearray, value: Any) -> None:
    out += bytes(16) if value is None else value.bytes
