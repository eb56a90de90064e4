"""Schemes: conversions of a record to no, one or several tuples. Storm-kafka's Scheme and its kinds.

The first value is the message's Snowflake id, or None if the broker keeps none; TopicScheme puts the topic before it.
A record that a scheme cannot decode raises SchemeError, with a text that names the part (key or value) and the fault.

JSON is read as RFC 8259 has it: UTF-8, with a byte order mark skipped. NaN and Infinity are not JSON. Integers stay
exact up to Python's limit of 4,300 digits. A number too large for a float is refused, because it would become infinite.
If an object has a name twice, its last value counts, as in most readers.
"""

import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Protocol, cast

from coordination.errors import FlakelogError
from partition_manager.ports import FetchedRecord

Tuples = Iterable[tuple[Any, ...]]


class SchemeError(FlakelogError, ValueError):
    """A record that can never be decoded; it goes to the dead letters without a retry."""


class Scheme(Protocol):
    """A conversion of records to tuples.

    `fields` names the values of each tuple that `tuples` returns. `tuples` raises SchemeError if it cannot decode a
    record. A scheme may also have `topic_tuples(topic, record, partition)`, which is then called instead of `tuples`.
    """

    @property
    def fields(self) -> tuple[str, ...]: ...

    def tuples(self, record: FetchedRecord, partition: int) -> Tuples: ...


def tuples_of(scheme: Scheme, topic: str, record: FetchedRecord, partition: int) -> Tuples:
    """Return the tuples of a record, by the scheme's `topic_tuples` if it has that method."""
    topic_tuples: Callable[[str, FetchedRecord, int], Tuples] | None = getattr(scheme, "topic_tuples", None)
    return scheme.tuples(record, partition) if topic_tuples is None else topic_tuples(topic, record, partition)


class RawScheme:
    """(id, key, value), with key and value as bytes or None."""

    fields = ("id", "key", "value")

    def tuples(self, record: FetchedRecord, partition: int) -> Tuples:
        """Return the tuples of a record. Raise SchemeError if it cannot be decoded."""
        return ((record.id, record.key, record.value),)


class KeyValueScheme:
    """(id, key, value), with key and value converted by two functions from bytes. Storm's KeyValueScheme.

        KeyValueScheme(key=int, value=decode_json)

    By default a part stays bytes. A part that is None stays None, and no function is called for it. If a function
    raises an exception, the record cannot be decoded.
    """

    fields = ("id", "key", "value")

    def __init__(
        self, key: Callable[[bytes], Any] | None = None, value: Callable[[bytes], Any] | None = None
    ) -> None:
        given: dict[str, object] = {"key": key, "value": value}
        for name, function in given.items():
            if function is not None and not callable(function):
                wanted = "must be a function from bytes, such as decode_text or decode_json"
                raise TypeError(f"KeyValueScheme: {name}={function!r} {wanted}")
        self._key, self._value = key, value

    def tuples(self, record: FetchedRecord, partition: int) -> Tuples:
        """Return the tuples of a record. Raise SchemeError if it cannot be decoded."""
        return ((record.id, _decoded("key", record.key, self._key), _decoded("value", record.value, self._value)),)


class StringScheme:
    """(id, key, value), with key and value as text in UTF-8, or None."""

    fields = ("id", "key", "value")

    def tuples(self, record: FetchedRecord, partition: int) -> Tuples:
        """Return the tuples of a record. Raise SchemeError if it cannot be decoded."""
        return ((record.id, _decoded("key", record.key, decode_text), _decoded("value", record.value, decode_text)),)


class JsonScheme:
    """Record values in JSON: (id, key, value), or with `names` (id, *members).

    `names` selects members of the JSON object; a missing member is None. Without names the key is text or None. Raise
    ValueError for a name that is given twice, or is "id".
    """

    def __init__(self, *names: str) -> None:
        _check_names(names)
        self._names = names
        self.fields = ("id", *names) if names else ("id", "key", "value")

    def tuples(self, record: FetchedRecord, partition: int) -> Tuples:
        """Return the tuples of a record. Raise SchemeError if it cannot be decoded."""
        value = _decoded("value", record.value, decode_json)
        if not self._names:
            return ((record.id, _decoded("key", record.key, decode_text), value),)
        if not isinstance(value, dict):
            kind = "no value" if record.value is None else _KINDS.get(type(value), "a number")
            raise SchemeError(f"the value must be a JSON object with {', '.join(self._names)}; the message has {kind}")
        return ((record.id, *(value.get(name) for name in self._names)),)


class MetadataScheme:
    """The tuples of another scheme, each followed by (partition, offset, timestamp_ms)."""

    def __init__(self, scheme: Scheme) -> None:
        self._scheme = scheme
        self.fields = (*scheme.fields, "partition", "offset", "timestamp_ms")

    def tuples(self, record: FetchedRecord, partition: int) -> Tuples:
        """Return the tuples of a record. Raise SchemeError if it cannot be decoded."""
        return _followed(self._scheme.tuples(record, partition), record, partition)

    def topic_tuples(self, topic: str, record: FetchedRecord, partition: int) -> Tuples:
        """Return the tuples of a record of `topic`. Raise SchemeError if it cannot be decoded."""
        return _followed(tuples_of(self._scheme, topic, record, partition), record, partition)


class TopicScheme:
    """The tuples of another scheme, each preceded by the topic: (topic, id, ...), for a spout of several topics."""

    def __init__(self, scheme: Scheme) -> None:
        self._scheme = scheme
        self.fields = ("topic", *scheme.fields)

    def tuples(self, record: FetchedRecord, partition: int) -> NoReturn:
        """Raise TypeError: this scheme needs the topic, see `topic_tuples`."""
        raise TypeError("TopicScheme needs the topic's name: call topic_tuples(topic, record, partition)")

    def topic_tuples(self, topic: str, record: FetchedRecord, partition: int) -> Tuples:
        """Return the tuples of a record of `topic`. Raise SchemeError if it cannot be decoded."""
        return [(topic, *values) for values in tuples_of(self._scheme, topic, record, partition)]


class InvalidScheme(FlakelogError, ValueError):
    """An object that is not a scheme; the message says what a scheme has."""


def scheme_of(scheme: object) -> Scheme:
    """Return the scheme, or RawScheme() for None. Raise InvalidScheme if the object is not a scheme."""
    if scheme is None:
        return RawScheme()
    if isinstance(scheme, type):
        raise InvalidScheme(f"scheme={scheme.__name__} is the class: give {scheme.__name__}(...)")
    fields = getattr(scheme, "fields", None)
    if not callable(getattr(scheme, "tuples", None)) or isinstance(fields, str) or not isinstance(fields, Sequence):
        wanted = "a scheme has `fields`, the names of the values, and a method `tuples(record, partition)`"
        raise InvalidScheme(f"scheme={scheme!r}: {wanted}")
    return cast(Scheme, scheme)


# --- functions from bytes, for KeyValueScheme


def decode_text(data: bytes) -> str:
    """Return text in UTF-8. Raise SchemeError if it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SchemeError(f"not UTF-8: byte {data[error.start]:#04x} at position {error.start}") from None


def decode_json(data: bytes) -> Any:
    """Return a JSON value, read as this module's text says. Raise SchemeError if it is not JSON, or nested too deep."""
    text = decode_text(data).removeprefix("\N{BYTE ORDER MARK}")
    try:
        return _DECODER.decode(text)
    except SchemeError:
        raise
    except RecursionError:
        raise SchemeError("nested too deep: Python's reader gives up") from None
    except json.JSONDecodeError as error:
        raise SchemeError(f"not JSON: {error}") from None
    except ValueError:
        digits = sys.get_int_max_str_digits()
        raise SchemeError(f"not readable: it has an integer of more than {digits} digits") from None


_KINDS = {list: "an array", str: "a string", type(None): "null", bool: "a boolean"}


def _check_names(names: tuple[object, ...]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"JsonScheme takes names of members of the JSON object, got {name!r}")
        if name == "id":
            wanted = 'to read a member "id", use JsonScheme() and tup["value"]["id"]'
            raise ValueError(f"JsonScheme: the field 'id' is the message's own id; {wanted}")
        if names.count(name) > 1:
            raise ValueError(f"JsonScheme: {name!r} is given twice")


def _decoded(part: str, data: bytes | None, function: Callable[[bytes], Any] | None) -> Any:
    if data is None or function is None:
        return data
    try:
        return function(data)
    except SchemeError as error:
        raise SchemeError(f"the {part} is {error}") from None
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise SchemeError(f"the {part} cannot be decoded: {type(error).__name__}: {error}") from error


def _followed(tuples: Tuples, record: FetchedRecord, partition: int) -> Tuples:
    position = (partition, record.offset, record.timestamp_ms)
    return [(*values, *position) for values in tuples]


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise SchemeError(f"not readable: {digits[:40]} is too large for a float")
    return number


def _no_constant(name: str) -> NoReturn:
    raise SchemeError(f"not JSON: {name} is no number in JSON")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)
