"""From a record to the tuples it becomes: none, one or several. Storm-kafka's Scheme and MessageMetadataScheme.

Every scheme here begins with the message's Snowflake id, None from a broker that keeps none.
"""

import json
from collections.abc import Iterable
from typing import Any, Protocol

from partition_manager.ports import FetchedRecord


class SchemeError(ValueError):
    """This record cannot be read, now or ever: it goes to the dead letters at once."""


class Scheme(Protocol):
    """`fields` name the values of each tuple that `tuples` makes of a record. SchemeError."""

    @property
    def fields(self) -> tuple[str, ...]: ...

    def tuples(self, record: FetchedRecord, partition: int) -> Iterable[tuple[Any, ...]]: ...


class RawScheme:
    """(id, key, value), key and value as bytes or None."""

    fields = ("id", "key", "value")

    def tuples(self, record: FetchedRecord, partition: int) -> Iterable[tuple[Any, ...]]:
        return ((record.id, record.key, record.value),)


class StringScheme:
    """(id, key, value), key and value as text."""

    fields = ("id", "key", "value")

    def tuples(self, record: FetchedRecord, partition: int) -> Iterable[tuple[Any, ...]]:
        return ((record.id, _text(record.key), _text(record.value)),)


class JsonScheme:
    """Values are JSON: (id, key, value); or with names id and these members of the object, None where missing."""

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
    """Another scheme's tuples with (partition, offset, timestamp_ms) after them."""

    def __init__(self, scheme: Scheme) -> None:
        self._scheme = scheme
        self.fields = (*scheme.fields, "partition", "offset", "timestamp_ms")

    def tuples(self, record: FetchedRecord, partition: int) -> Iterable[tuple[Any, ...]]:
        where = (partition, record.offset, record.timestamp_ms)
        return [(*values, *where) for values in self._scheme.tuples(record, partition)]


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
