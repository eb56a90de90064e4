"""The description of `--decode`: the format and schema of values, and which columns of the message stay beside theirs.

    {"format": "avro", "schema": "{...}", "writers": {"7": "{...}"}, "columns": ["partition", "offset", "id"]}

Each load fixes its own (load.Layout.decode), and load.schema_change says how that may differ from the one before.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_bridge.load.avro_schema import SchemaError
from spark_bridge.load.load import Layout
from spark_bridge.load.sink import Rows
from spark_bridge.load.value_decoder import REJECTED, AvroDecoder, JsonDecoder, ValueDecoder, decode_rows, row_schema
from spark_bridge.reading.row import ARROW
from spark_bridge.reading.skipped import SkippedBatch

JSON, AVRO = "json", "avro"
READ_COLUMNS = tuple(name for name in ARROW if name in REJECTED.names or name == "timestampType")
"""The columns that a load with --decode reads: those that it keeps of a message whose value does not decode."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """`schema` and `writers` are texts of Avro schemas; `writers` is None if values have no registry's prefix.

    Raise SchemaError if the format, a schema or a column does not fit.
    """

    format: str
    schema: str
    writers: Mapping[int, str] | None = None
    columns: tuple[str, ...] = ("topic", "partition", "offset", "timestamp", "id")

    def __post_init__(self) -> None:
        if self.format not in (JSON, AVRO):
            raise SchemaError(f"--decode is {JSON} or {AVRO}; got {self.format!r}")
        if self.format == JSON and self.writers is not None:
            raise SchemaError("only Avro values have the prefix of a schema registry; give one schema for JSON")
        strange = [name for name in self.columns if name not in READ_COLUMNS or name == "value"]
        if strange:
            kept = ", ".join(name for name in READ_COLUMNS if name != "value")
            raise SchemaError(f"columns {', '.join(strange)} cannot be kept beside decoded values; there are {kept}")
        self.row_schema()

    def to_dict(self) -> dict[str, Any]:
        writers = None if self.writers is None else {str(id): text for id, text in sorted(self.writers.items())}
        return {"format": self.format, "schema": self.schema, "writers": writers, "columns": list(self.columns)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Decoding":
        """Invert `to_dict`. Raise SchemaError."""
        try:
            writers = fields["writers"]
            by_id = None if writers is None else {int(id): str(text) for id, text in writers.items()}
            return cls(str(fields["format"]), str(fields["schema"]), by_id, tuple(fields["columns"]))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SchemaError(f"this is no description of --decode: {error!r}") from None

    def row_schema(self) -> pa.Schema:
        """Return the columns of decoded rows."""
        return row_schema(self._decoder(), [pa.field(name, ARROW[name]) for name in self.columns])

    def decode(self, rows: Rows, keep_apart: Callable[[pa.RecordBatch], None]) -> Rows:
        """Return decoded rows. `rows` have READ_COLUMNS, and their undecodable messages go to `keep_apart`."""
        return _DecodedRows(rows, self._decoder(), self.row_schema(), keep_apart)

    def _decoder(self) -> ValueDecoder:
        return JsonDecoder(self.schema) if self.format == JSON else AvroDecoder(self.schema, self.writers)


def decoding_of(layout: Layout) -> Decoding | None:
    """Return how the values of a load are decoded, None if they are not. Raise SchemaError."""
    return None if layout.decode is None else Decoding.from_dict(layout.decode)


class _DecodedRows:
    """The Rows port over the rows of another."""

    def __init__(
        self, rows: Rows, decoder: ValueDecoder, schema: pa.Schema, keep_apart: Callable[[pa.RecordBatch], None]
    ) -> None:
        self._rows = rows
        self._decoder = decoder
        self.schema = schema
        self._keep_apart = keep_apart

    @property
    def skipped(self) -> Sequence[SkippedBatch]:
        return self._rows.skipped

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._rows:
            decoded, apart = decode_rows(batch, self._decoder, self.schema)
            if apart.num_rows:
                self._keep_apart(apart)
            if decoded.num_rows:
                yield decoded
