"""Decoding of the cold APIs' messages, at once or in slices (`broker.wire.cold`)."""

from collections.abc import Mapping
from dataclasses import MISSING
from datetime import timedelta
from functools import cache
from typing import Any

from kio.schema.errors import ErrorCode
from kio.serial.errors import InvalidUnicode
from kio.serial.readers import Reader as KioReader

from broker.steps import Pace, Steps
from broker.wire.errors import WireError
from broker.wire.primitives import Buffer, read_count, read_length, read_string, read_tags
from broker.wire.request_limits import RequestLimits
from broker.wire.schema import FieldPlan, SchemaClass, is_flat, plan_of

_SHORTEST_MS, _LONGEST_MS = (limit // timedelta(milliseconds=1) for limit in (timedelta.min, timedelta.max))
# The arrays of requests that name partitions.
_PARTITIONS = frozenset({"partitions", "partition_indexes", "partition_states"})


class Reader:
    """A decoder that reads a message field by field with kio's readers and skips unknown tagged fields.

    It counts the items and partitions of a request against `limits`, before it decodes them.
    """

    def __init__(self, cls: SchemaClass, limits: RequestLimits | None) -> None:
        self.cls = cls
        self._limits = limits
        self._items = 0
        self._partitions = 0

    def read(self, data: Buffer, position: int) -> tuple[Any, Mapping[int, Buffer]]:
        """Return the message and its unknown top-level tags."""
        entity, _, unknown = self._entity(self.cls, data, position)
        return entity, unknown

    def read_in_steps(self, data: Buffer, position: int) -> Steps[tuple[Any, Mapping[int, Buffer]]]:
        """Return the same as `read`, in slices."""
        entity, _, unknown = yield from self._entity_in_steps(self.cls, data, position, Pace())
        return entity, unknown

    def _entity(self, cls: SchemaClass, data: Buffer, position: int) -> tuple[Any, int, Mapping[int, Buffer]]:
        made: dict[str, Any] = {}
        flexible = cls.__flexible__
        for plan in plan_of(cls):
            if plan.tag is not None:
                made[plan.name] = plan.default
            else:
                made[plan.name], position = self._field(plan, flexible, data, position)
        if not flexible:
            return cls(**made), position, {}
        if data[position] == 0:
            return cls(**made), position + 1, {}
        position, unknown = self._tagged(cls, made, data, position)
        return cls(**made), position, unknown

    def _entity_in_steps(
        self, cls: SchemaClass, data: Buffer, position: int, pace: Pace
    ) -> Steps[tuple[Any, int, Mapping[int, Buffer]]]:
        made: dict[str, Any] = {}
        flexible = cls.__flexible__
        unknown: Mapping[int, Buffer] = {}
        for plan in plan_of(cls):
            if plan.tag is not None:
                made[plan.name] = plan.default
            elif plan.array:
                made[plan.name], position = yield from self._array_in_steps(plan, flexible, data, position, pace)
            else:
                made[plan.name], position = self._value(plan, flexible, plan.optional, data, position)
        if flexible:
            position, unknown = self._tagged(cls, made, data, position)
        return cls(**made), position, unknown

    def _tagged(
        self, cls: SchemaClass, made: dict[str, Any], data: Buffer, position: int
    ) -> tuple[int, Mapping[int, Buffer]]:
        """Read the tagged fields into `made`. Return the next position and the unknown tags."""
        section, position = read_tags(data, position)
        tagged = {plan.tag: plan for plan in plan_of(cls) if plan.tag is not None} if section else {}
        unknown: dict[int, Buffer] = {}
        for tag, payload in section.items():
            plan = tagged.get(tag)
            if plan is None:
                unknown[tag] = payload
            else:
                made[plan.name], _ = self._field(plan, cls.__flexible__, payload, 0)
        return position, unknown

    def _field(self, plan: FieldPlan, flexible: bool, data: Buffer, position: int) -> tuple[Any, int]:
        if not plan.array:
            return self._value(plan, flexible, plan.optional, data, position)
        count, position = self._count(plan, flexible, data, position)
        if count < 0:
            return None, position
        values = []
        for _ in range(count):
            value, position = self._value(plan, flexible, False, data, position)
            values.append(value)
        return tuple(values), position

    def _array_in_steps(
        self, plan: FieldPlan, flexible: bool, data: Buffer, position: int, pace: Pace
    ) -> Steps[tuple[Any, int]]:
        count, position = self._count(plan, flexible, data, position)
        if count < 0:
            return None, position
        nested = None if plan.nested is None or is_flat(plan.nested) else plan.nested
        values = []
        for _ in range(count):
            if nested is None:
                value, position = self._value(plan, flexible, False, data, position)
            else:
                value, position, _ = yield from self._entity_in_steps(nested, data, position, pace)
            values.append(value)
            if pace.is_over():
                yield
        return tuple(values), position

    def _count(self, plan: FieldPlan, flexible: bool, data: Buffer, position: int) -> tuple[int, int]:
        """Return the length of an array, -1 for null, and the next position."""
        count, after = read_length(data, position, flexible)
        if count < 0:
            if not plan.optional:
                raise WireError(f"{plan.name} is null, which it may not be")
            return -1, after
        count, position = read_count(data, position, flexible, 1)
        limits = self._limits
        if limits is not None:
            self._items += count
            limits.check_items(self._items)
            if plan.name in _PARTITIONS:
                self._partitions += count
                limits.check_partitions(self._partitions)
        return count, position

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


def lift(entity: Any, cls: SchemaClass) -> Any:
    """Return a message as the newest class, with the schema's defaults for the fields that it lacks."""
    made = {}
    for name, _, nested, array, _, _, default in plan_of(cls):
        value = getattr(entity, name, MISSING)
        if value is MISSING:
            value = default
        elif nested is not None and value is not None:
            value = tuple(lift(nested_value, nested) for nested_value in value) if array else lift(value, nested)
        made[name] = value
    return cls(**made)


def lift_in_steps(entity: Any, cls: SchemaClass) -> Steps[Any]:
    """Return the same as `lift`, in slices."""
    lifted = yield from _lift_in_steps(entity, cls, Pace())
    return lifted


def _lift_in_steps(entity: Any, cls: SchemaClass, pace: Pace) -> Steps[Any]:
    made = {}
    for name, _, nested, array, _, _, default in plan_of(cls):
        value = getattr(entity, name, MISSING)
        if value is MISSING:
            value = default
        elif nested is not None and value is not None:
            value = (yield from _lift_array(value, nested, pace)) if array else lift(value, nested)
        made[name] = value
    return cls(**made)


def _lift_array(values: Any, cls: SchemaClass, pace: Pace) -> Steps[tuple[Any, ...]]:
    flat = is_flat(cls)
    lifted = []
    for item in values:
        lifted.append(lift(item, cls) if flat else (yield from _lift_in_steps(item, cls, pace)))
        if pace.is_over():
            yield
    return tuple(lifted)


@cache
def _primitive(kafka_type: str, flexible: bool, optional: bool) -> KioReader[Any]:
    if kafka_type in _OWN:
        return _OWN[kafka_type]
    from kio._kio_native import get_reader

    reader: KioReader[Any] = get_reader(kafka_type, flexible, optional)
    return _legible(reader, flexible) if kafka_type == "string" else reader


def _legible(reader: KioReader[Any], flexible: bool) -> KioReader[Any]:
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


def _error_code(data: Any, position: int) -> tuple[ErrorCode, int]:
    """Read an error code. A code of a newer Kafka is an unknown error, as to Kafka's clients. kio's reader fails on it.
    """
    if position + 2 > len(data):
        raise IndexError(f"an error code is cut short at byte {position}")
    code = int.from_bytes(data[position : position + 2], "big", signed=True)
    return (ErrorCode(code) if code in _ERROR_CODES else ErrorCode.unknown_server_error), 2


_ERROR_CODES = frozenset(ErrorCode)
_OWN: dict[str, KioReader[Any]] = {"bool": _boolean, "timedelta_i64": _duration, "error_code": _error_code}
