"""The rows of a write: which columns are read, their types, and the messages they become. The connector's rules.

    value      string or binary      required; null makes a tombstone
    key        string or binary      optional; null is no key
    headers    array<struct<key: string, value: binary>>      optional
    topic      string                optional if the option `topic` is given, which overrides it
    partition  int                   optional; null lets the partitioner choose

Texts are written as UTF-8. Other columns are ignored, as in the connector, so that the rows of a read can be written.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

ANY_PARTITION = -1  # the producer chooses
_TEXT_OR_BYTES = ("string", "binary")
TYPES = {
    "value": _TEXT_OR_BYTES,
    "key": _TEXT_OR_BYTES,
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
}

Headers: TypeAlias = list[tuple[str, str | bytes | None]]
Message: TypeAlias = tuple[str, bytes | None, bytes | None, int, Headers | None]
"""topic, value, key, partition or ANY_PARTITION, headers"""


class WriteError(ValueError):
    """Rows that cannot be written; the message names the column or the option."""


@dataclass(frozen=True, slots=True)
class WriteColumns:
    """The columns of the rows that are written, and the topic of all rows if the option `topic` gives it."""

    names: frozenset[str]
    topic: str | None


def choose_columns(fields: Iterable[tuple[str, str]], topic: str | None) -> WriteColumns:
    """Return the columns to write of rows with these (name, type in Spark's short form). Raise WriteError."""
    given = dict(fields)
    if topic is None and "topic" not in given:
        raise WriteError("topic option required when no 'topic' attribute is present; set the option `topic`")
    if "value" not in given:
        raise WriteError(f"required attribute 'value' not found; the rows have {', '.join(given) or 'no columns'}")
    read = {name: given[name] for name in TYPES if name in given and not (name == "topic" and topic is not None)}
    for name, kind in read.items():
        if kind.lower() not in TYPES[name]:
            raise WriteError(f"{name} attribute unsupported type {kind}; {name} must be a {' or '.join(TYPES[name])}")
    return WriteColumns(frozenset(read), topic)


def messages(batch: pa.RecordBatch, columns: WriteColumns) -> Iterator[Message]:
    """Return the messages of the rows, in order. Raise WriteError for a null topic or a negative partition."""
    return zip(
        _topics(batch, columns),
        _bytes(batch.column("value")),
        _bytes(batch.column("key")) if "key" in columns.names else repeat(None, len(batch)),
        _partitions(batch.column("partition")) if "partition" in columns.names else repeat(ANY_PARTITION, len(batch)),
        map(_headers, batch.column("headers").to_pylist()) if "headers" in columns.names else repeat(None, len(batch)),
        strict=True,
    )


def _topics(batch: pa.RecordBatch, columns: WriteColumns) -> Iterable[str]:
    if columns.topic is not None:
        return repeat(columns.topic, len(batch))
    column = batch.column("topic")
    if column.null_count:
        raise WriteError("null topic present in the data; set the option `topic` for rows without one")
    return list(column.to_pylist())


def _bytes(column: Any) -> list[bytes | None]:
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    return list(column.to_pylist())


def _partitions(column: Any) -> list[int]:
    least = pc.min(column).as_py()
    if least is not None and least < 0:
        raise WriteError(f"partition {least} present in the data; a partition is 0 or more, or null")
    return list(pc.fill_null(column, ANY_PARTITION).to_pylist())


def _headers(given: list[dict[str, Any]] | None) -> Headers | None:
    if given is None:
        return None
    if any(header is None or header["key"] is None for header in given):
        raise WriteError("a header without a key is present in the data; each header is a key and a value, or no value")
    return [(header["key"], header["value"]) for header in given]
