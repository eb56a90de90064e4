"""Schemes: conversions of a record to no, one or several tuples. Storm-kafka's Scheme and MessageMetadataScheme.

The first value of every scheme here is the message's Snowflake id, or None if the broker keeps none.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, cast

from partition_manager.ports import FetchedRecord


class SchemeError(ValueError):
    """A record that can never be decoded; it goes to the dead letters without a retry."""


class Scheme(Protocol):
    """A conversion of records to tuples.

    `fields` names the values of each tuple that `tuples` returns. `tuples` raises SchemeError if it cannot decode a
    record.
    """

    @property
    def fields(self) -> tuple[str, ...]: ...

    def tuples(self, record: FetchedRecord, partition: int) -> Iterable[tuple[Any, ...]]: ...


class RawScheme:
    """(id, key, value), with key and value as bytes or None."""

    fields = ("id", "key", "value")

    def tuples(self, record: FetchedRecord, partition: int) -> Iterable[tuple[Any, ...]]:
        return ((record.id, record.key, record.value),)


class StringScheme:
    """(id, key, value), with key and value as text or None."""

    fields = ("id", "key", "value")

    def tuples(self, record: FetchedRecord, partition: int) -> Iterable[tuple[Any, ...]]:
        return ((record.id, _text(record.key), _text(record.value)),)


class JsonScheme:
    """Record values in JSON: (id, key, value), or with `names` (id, *members).

    `names` selects members of the JSON object; a missing member is None.
    """

    def __init__(self, *names: str) -> None:
        self._names = names
        self.fields = ("id", *names) if names else ("id", "key", "value")

    def tuples(self, record: FetchedRecord, partition: int) -> Iterable[tuple[Any, ...]]:
        value = _json(record.value)
        if not self._names:
            return ((record.id, _text(record.key), value),)
        if not isinstance(value, dict):
            raise SchemeError(f"expected a JSON object, got {type(value).__name__}")
        return ((record.id, *(value.get(name) for name in self._names)),)


class MetadataScheme:
    """The tuples of another scheme, each followed by (partition, offset, timestamp_ms)."""

    def __init__(self, scheme: Scheme) -> None:
        self._scheme = scheme
        self.fields = (*scheme.fields, "partition", "offset", "timestamp_ms")

    def tuples(self, record: FetchedRecord, partition: int) -> Iterable[tuple[Any, ...]]:
        where = (partition, record.offset, record.timestamp_ms)
        return [(*values, *where) for values in self._scheme.tuples(record, partition)]


class InvalidScheme(ValueError):
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


def _text(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError as error:
        raise SchemeError(f"not UTF-8: {error}") from None


def _json(data: bytes | None) -> Any:
    try:
        return None if data is None else json.loads(data)
    except ValueError as error:
        raise SchemeError(f"not JSON: {error}") from None
