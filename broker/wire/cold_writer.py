"""Encoding of the cold APIs' messages, at once or in slices (`broker.wire.cold`)."""

import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from broker.steps import ITEMS_AT_ONCE, LargeMessage, Pace, Steps
from broker.wire.primitives import Buffer, length, string
from broker.wire.primitives import tags as tag_section
from broker.wire.primitives import uvarint
from broker.wire.schema import FieldPlan, Fields, SchemaClass, is_flat, plan_of

Put = Callable[[bytearray, Any], None]
"""A function that appends one encoded value to the buffer."""

MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime.fromtimestamp(0, UTC)
_BYTES_AT_ONCE = 128 << 10


class ShortMessage(bytearray):
    """A buffer for a message that is encoded at once: writing to it raises LargeMessage if the message is large."""


@cache
def writer(cls: SchemaClass, names: frozenset[str]) -> Put:
    """Return a function that writes a structure from a mapping of its fields.

    `names` are the field names in any version of the message.
    """
    flexible = cls.__flexible__
    steps = [(plan.name, _absent(plan), _put(plan, flexible, names)) for plan in plan_of(cls) if plan.tag is None]
    tagged = _tagged(cls, names)

    def put(out: bytearray, values: Fields) -> None:
        if not values.keys() <= names:
            _check_names(cls, names, values)
        for name, absent, put_field in steps:
            put_field(out, values.get(name, absent))
        if tagged:
            _put_tagged(out, values, tagged)
        elif flexible:
            out.append(0)

    return put


def write_in_steps(cls: SchemaClass, names: frozenset[str], out: bytearray, values: Fields, pace: Pace) -> Steps[None]:
    """Write the same as `writer(cls, names)`, in slices."""
    _check_names(cls, names, values)
    for plan, absent, put, item in _plans_in_steps(cls, names):
        value = values.get(plan.name, absent)
        if item is None or value is None:
            put(out, value)
            continue
        out += length(len(value), cls.__flexible__)
        nested = None if plan.nested is None or is_flat(plan.nested) else plan.nested
        for element in value:
            if nested is None:
                item(out, element)
            else:
                yield from write_in_steps(nested, names, out, element, pace)
            if pace.is_over():
                yield
    tagged = _tagged(cls, names)
    if tagged:
        _put_tagged(out, values, tagged)
    elif cls.__flexible__:
        out.append(0)


@cache
def _plans_in_steps(cls: SchemaClass, names: frozenset[str]) -> tuple[tuple[FieldPlan, Any, Put, Put | None], ...]:
    """Return the fields without a tag: plan, the value if absent, writer, and the writer of an array's items."""
    flexible = cls.__flexible__
    return tuple(
        (plan, _absent(plan), _put(plan, flexible, names), _item(plan, flexible, names) if plan.array else None)
        for plan in plan_of(cls)
        if plan.tag is None
    )


@cache
def _tagged(cls: SchemaClass, names: frozenset[str]) -> list[tuple[int, str, Any, Put]]:
    """Return the tagged fields in the order of their tags: tag, name, default, writer."""
    return sorted(
        (plan.tag, plan.name, plan.default, _put(plan, cls.__flexible__, names))
        for plan in plan_of(cls)
        if plan.tag is not None
    )


def _check_names(cls: SchemaClass, names: frozenset[str], values: Fields) -> None:
    if not values.keys() <= names:
        unknown = ", ".join(sorted(values.keys() - names))
        raise TypeError(f"{cls.__name__} has no {unknown} in any version")


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
        return value // MILLISECOND
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
        number = len(values)
        if (number > ITEMS_AT_ONCE or len(out) > _BYTES_AT_ONCE) and out.__class__ is ShortMessage:
            raise LargeMessage
        out += length(number, flexible)
        for element in values:
            item(out, element)

    return put


def _item(plan: FieldPlan, flexible: bool, names: frozenset[str]) -> Put:
    if plan.nested is not None:
        return writer(plan.nested, names)
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
        return value // MILLISECOND
    if isinstance(value, datetime):
        return (value - _EPOCH) // MILLISECOND
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
