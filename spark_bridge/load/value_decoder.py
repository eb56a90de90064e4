"""Decoding of message values, JSON or Avro, to typed columns (`flakelog load --decode`).

The columns come from an Avro record schema (spark_bridge.load.avro_schema), for JSON too. A value that does not decode
never stops a load: it is kept apart with its place and the reason.

    JSON    one object for each value, in UTF-8. A missing field is null, an unknown one is ignored. Numbers are not
            taken for strings, nor strings for numbers. Dates and timestamps are ISO 8601 strings. Bytes, maps and times
            of day have no usual form in JSON and are refused.
    Avro    one record, in Avro's binary form, without a file header. With the prefix of a schema registry (a zero byte
            and a schema id of four bytes), `writers` has the schema of each id, and values are resolved to the columns'
            schema by Avro's rules.

pyarrow reads the JSON of many values at once. If it refuses them, the decoder halves the values until it has found the
one that is wrong, so a value decodes to the same columns in whatever company it comes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from spark_bridge.load.avro_schema import Kind, SchemaError, parse
from spark_bridge.load.casting import cast

PREFIX_BYTES = 5
"""A schema registry's prefix: a zero byte and the schema's id. Source: Confluent's wire format."""

REASON_CHARACTERS_MAX = 500
_JSON_BLOCK_BYTES = 1 << 30  # a whole batch is one block, so that no value is cut
_ROW = " in row "  # what pyarrow adds: a row of its run, not of the caller's values


class Rejected(NamedTuple):
    """A value that does not decode: its index among the values, from 0, and why."""

    value_index: int
    reason: str


class Decoded(NamedTuple):
    """The typed columns of the values that decode, in order; `indexes` says which they are."""

    rows: pa.RecordBatch
    indexes: Sequence[int]
    rejected: Sequence[Rejected]


class ValueDecoder(Protocol):
    """Decodes the values of messages; None is a message without a value."""

    schema: pa.Schema

    def decode(self, values: Sequence[bytes | None]) -> Decoded: ...


class JsonDecoder:
    """JSON objects as the columns of an Avro record schema. Raise SchemaError for a type that JSON does not have."""

    def __init__(self, schema: str | bytes) -> None:
        self._kind = parse(schema)
        _require_json(self._kind, "")
        self.schema = _columns(self._kind)
        as_read = pa.schema([pa.field(name, _as_read(kind)) for name, kind in self._kind.children])
        self._parse = pj.ParseOptions(
            explicit_schema=as_read, newlines_in_values=True, unexpected_field_behavior="ignore"
        )
        self._read = pj.ReadOptions(use_threads=False, block_size=_JSON_BLOCK_BYTES)

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        rejected = [Rejected(index, why) for index, value in enumerate(values) if (why := _no_object(value))]
        wrong = {row.value_index for row in rejected}
        objects = [index for index in range(len(values)) if index not in wrong]
        parts: list[tuple[list[int], pa.RecordBatch]] = []
        for decoded in self._halved(objects, [value or b"" for value in values]):
            if isinstance(decoded, Rejected):
                rejected.append(decoded)
            else:
                parts.append(decoded)
        indexes = [index for part, _ in parts for index in part]
        return Decoded(_joined([rows for _, rows in parts], self.schema), indexes, sorted(rejected))

    def _halved(
        self, indexes: list[int], values: Sequence[bytes]
    ) -> Iterator[Rejected | tuple[list[int], pa.RecordBatch]]:
        """Yield the rows of the values at `indexes`, in runs, and those that do not decode."""
        waiting = [indexes] if indexes else []
        while waiting:
            run = waiting.pop()
            try:
                yield run, self._rows([values[index] for index in run])
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                if len(run) == 1:
                    yield Rejected(run[0], _reason(str(error)))
                else:
                    half = len(run) // 2
                    waiting += [run[half:], run[:half]]

    def _rows(self, values: Sequence[bytes]) -> pa.RecordBatch:
        data = pa.BufferReader(b"\n".join(values))
        table = pj.read_json(data, parse_options=self._parse, read_options=self._read)
        if table.num_rows != len(values):
            raise pa.ArrowInvalid(f"{table.num_rows} JSON objects in a value; there must be one")
        arrays = []
        for name, kind in self._kind.children:
            column = table.column(name).combine_chunks()
            column.validate(full=True)  # strings are UTF-8
            _check(column, kind, name)
            arrays.append(cast(column, kind.arrow))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class AvroDecoder:
    """Avro records as the columns of a record schema.

    `writers` are the schemas of the ids that may come in a schema registry's prefix; without it, values have no prefix.
    Raise SchemaError, or ImportError if fastavro is missing (extra [avro]).
    """

    def __init__(self, schema: str | bytes, writers: Mapping[int, str | bytes] | None = None) -> None:
        from fastavro import parse_schema
        from fastavro.schema import SchemaParseException

        def checked(text: str | bytes) -> Any:
            parse(text)
            try:
                return parse_schema(_without_uuids(json.loads(text)))
            except SchemaParseException as error:
                raise SchemaError(f"the schema is no Avro schema: {error}") from None

        self.schema = _columns(parse(schema))
        self._reader = checked(schema)
        self._writers = None if writers is None else {id: checked(text) for id, text in writers.items()}

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        rows: list[dict[str, Any]] = []
        indexes: list[int] = []
        rejected: list[Rejected] = []
        for index, value in enumerate(values):
            try:
                rows.append(self._record(value))
                indexes.append(index)
            except _Wrong as error:
                rejected.append(Rejected(index, _reason(str(error))))
        return self._columns(rows, indexes, rejected)

    def _columns(self, rows: list[dict[str, Any]], indexes: list[int], rejected: list[Rejected]) -> Decoded:
        try:
            return Decoded(pa.RecordBatch.from_pylist(rows, self.schema), indexes, sorted(rejected))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            pass  # a value of a type's range that the column does not have: find it
        good: list[int] = []
        for row_index, row in enumerate(rows):
            try:
                pa.RecordBatch.from_pylist([row], self.schema)
                good.append(row_index)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                rejected.append(Rejected(indexes[row_index], _reason(str(error))))
        batch = pa.RecordBatch.from_pylist([rows[row_index] for row_index in good], self.schema)
        return Decoded(batch, [indexes[row_index] for row_index in good], sorted(rejected))

    def _record(self, value: bytes | None) -> dict[str, Any]:
        from fastavro import schemaless_reader

        if value is None:
            raise _Wrong(_NO_VALUE)
        writer, body = self._writer(value)
        source = BytesIO(body)
        try:
            record = schemaless_reader(source, writer, self._reader)
        except Exception as error:  # fastavro raises many types for damaged data: EOFError, IndexError, ValueError, ...
            raise _Wrong(f"no Avro record of this schema: {type(error).__name__} {error}{self._hint(value)}") from None
        bytes_left = len(body) - source.tell()
        if bytes_left:
            raise _Wrong(f"{bytes_left} bytes follow the Avro record{self._hint(value)}")
        assert isinstance(record, dict)  # the schema is a record
        return record

    def _writer(self, value: bytes) -> tuple[Any, bytes]:
        if self._writers is None:
            return self._reader, value
        if len(value) < PREFIX_BYTES or value[0]:
            raise _Wrong("the value does not begin with a schema registry's prefix, a zero byte and a schema id")
        id = int.from_bytes(value[1:PREFIX_BYTES])
        if id not in self._writers:
            named = ", ".join(map(str, sorted(self._writers)))
            raise _Wrong(f"schema id {id} has no schema; those of {named} were given")
        return self._writers[id], value[PREFIX_BYTES:]

    def _hint(self, value: bytes) -> str:
        if self._writers is None and len(value) >= PREFIX_BYTES and value[0] == 0:
            return f"; if values have a schema registry's prefix, give the schema of id {int.from_bytes(value[1:5])}"
        return ""


def _without_uuids(schema: Any) -> Any:
    """Return a schema without the logical type uuid, for which fastavro gives objects: the column is text."""
    if isinstance(schema, list):
        return [_without_uuids(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    is_uuid = schema.get("logicalType") == "uuid"
    return {name: _without_uuids(part) for name, part in schema.items() if not (is_uuid and name == "logicalType")}


_NO_VALUE = "the message has no value"


class _Wrong(Exception):
    """A value that does not decode."""


def _columns(kind: Kind) -> pa.Schema:
    return pa.schema([child.field(name) for name, child in kind.children])


def _joined(parts: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    table = pa.Table.from_batches(parts, schema).combine_chunks()
    return pa.RecordBatch.from_arrays([_array(column) for column in table.columns], schema=schema)


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _reason(text: str) -> str:
    return text.split(_ROW)[0][:REASON_CHARACTERS_MAX]


# --- JSON -------------------------------------------------------------------------------------------------------------

_JSON_SPACE = b" \t\r\n"


def _no_object(value: bytes | None) -> str | None:
    """Return why a value cannot be one JSON object, None if it begins and ends like one.

    Values are parsed together, and none may change how its neighbours are read. A value that begins with `{` and ends
    with `}` cannot be joined with the next one: after a `}`, JSON inside an object or array goes on with a comma, and
    strings hold no line feed. So if there are as many objects as values, each value is one object.
    """
    if value is None:
        return _NO_VALUE
    text = value.strip(_JSON_SPACE)
    if text[:1] != b"{" or text[-1:] != b"}":
        return "the value is no JSON object"
    return None


def _as_read(kind: Kind) -> pa.DataType:
    """Return the type that pyarrow reads from JSON: the column's, but text for dates, which it does not read."""
    if kind.arrow == pa.date32():
        return pa.string()
    if pa.types.is_struct(kind.arrow):
        return pa.struct([pa.field(name, _as_read(child)) for name, child in kind.children])
    if pa.types.is_list(kind.arrow):
        return pa.list_(pa.field("element", _as_read(kind.children[0][1])))
    return kind.arrow


def _require_json(kind: Kind, path: str) -> None:
    for is_refused, type_name in _NOT_IN_JSON:
        if is_refused(kind.arrow):
            where = path or "the record"
            raise SchemaError(
                f"{where}: {type_name} cannot be decoded from JSON; declare a string or leave the field out"
            )
    for name, child in kind.children:
        _require_json(child, f"{path}.{name}" if path else name)


_NOT_IN_JSON = ((pa.types.is_map, "a map"), (pa.types.is_binary, "bytes"), (pa.types.is_time, "a time of day"))


def _check(column: pa.Array, kind: Kind, path: str) -> None:
    """Raise ArrowInvalid for a null where there must be a value, or a symbol that an enum does not have."""
    if column.null_count and not kind.nullable:
        raise pa.ArrowInvalid(f"field {path} has no value, which it must have")
    if kind.symbols:
        known = pc.is_in(column, value_set=pa.array([*kind.symbols, None], pa.string()))
        if not pc.all(known).as_py() and len(column):
            raise pa.ArrowInvalid(f"field {path} is none of the symbols {', '.join(kind.symbols)}")
    if pa.types.is_struct(kind.arrow):
        present = column.filter(column.is_valid()) if column.null_count else column
        for number, (name, child) in enumerate(kind.children):
            _check(present.field(number), child, f"{path}.{name}")
    elif pa.types.is_list(kind.arrow):
        _check(column.flatten(), kind.children[0][1], f"{path}[]")


# --- messages ---------------------------------------------------------------------------------------------------------

REJECTED = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("id", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("reason", pa.string()),
    ]
)
"""The columns of the messages that are kept apart."""


def row_schema(decoder: ValueDecoder, kept: Sequence[pa.Field]) -> pa.Schema:
    """Return the columns of decoded rows: the value's, then the message's `kept` ones.

    Raise SchemaError for a name that both have.
    """
    names = {name.lower() for name in decoder.schema.names}
    both = [column.name for column in kept if column.name.lower() in names]
    if both:
        raise SchemaError(f"{', '.join(both)}: a column of the message and a field of the value; leave one of them out")
    return pa.schema([*decoder.schema, *kept])


def decode_rows(
    batch: pa.RecordBatch, decoder: ValueDecoder, schema: pa.Schema
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the decoded rows, with the columns of `row_schema`, and the rejected ones, with those of REJECTED.

    `batch` has the columns of spark_bridge.reading.row that both need.
    """
    decoded = decoder.decode(batch.column("value").to_pylist())
    indexes = pa.array(decoded.indexes, pa.int64())
    kept = [batch.column(field.name).take(indexes) for field in list(schema)[len(decoder.schema) :]]
    rows = pa.RecordBatch.from_arrays([*decoded.rows.columns, *kept], schema=schema)
    apart = batch.take(pa.array([row.value_index for row in decoded.rejected], pa.int64()))
    reasons = pa.array([row.reason for row in decoded.rejected], pa.string())
    columns = [apart.column(name) for name in REJECTED.names[:-1]]
    return rows, pa.RecordBatch.from_arrays([*columns, reasons], schema=REJECTED)
