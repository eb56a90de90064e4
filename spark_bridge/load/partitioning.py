"""Directories by value, as Hive names them: `day=2013-01-01/`, `hour=2013-01-01-05/`, `key=a%2Fb/`.

    day, hour       of the record's timestamp, in UTC; the column stays in the files
    a column        its value as text; the column is not in the files, and readers get it back from the directory

A null value has the directory `column=__HIVE_DEFAULT_PARTITION__`. Bytes are taken for UTF-8 text.
"""

from collections.abc import Iterator
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from spark_bridge.load.load import LoadError

DAY, HOUR = "day", "hour"
TIME = "timestamp"
_FORMATS = {DAY: "%Y-%m-%d", HOUR: "%Y-%m-%d-%H"}
NULL = "__HIVE_DEFAULT_PARTITION__"
VALUE_CHARACTERS_MAX = 200  # a name in a directory has at most 255 bytes


class Partitioning:
    """The division of rows by `by`: "day", "hour", a column's name, or None. Raise LoadError if that does not fit.

    With `keeps_column`, the column stays in the files.
    """

    def __init__(self, schema: pa.Schema, by: str | None, *, keeps_column: bool = False) -> None:
        self._by = by
        self._column = TIME if by in _FORMATS else by
        if self._column is not None and self._column not in schema.names:
            raise LoadError(
                f"--partition-by {by} needs the column {self._column}; the columns are {', '.join(schema.names)}"
            )
        keeps = keeps_column or by is None or by in _FORMATS
        self._names = schema.names if keeps else [name for name in schema.names if name != by]
        self.schema = pa.schema([schema.field(name) for name in self._names])
        """The schema of the files."""
        if self._column is not None:
            _check_type(by or "", schema.field(self._column).type)

    def divide(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Yield the directory of each value, with a slash at its end, and its rows in order. Values come sorted."""
        if self._by is None:
            yield "", table
            return
        column = table.column(self._column).combine_chunks()
        if self._by in _FORMATS:
            column = pc.strftime(column, _FORMATS[self._by])
        rows = table.select(self._names)
        coded = pc.dictionary_encode(column, null_encoding="encode")
        folders = [self._folder(value) for value in coded.dictionary.to_pylist()]
        if len(folders) == 1:
            yield folders[0], rows
            return
        for folder in sorted(set(folders)):
            codes = [code for code, other in enumerate(folders) if other == folder]
            yield folder, rows.filter(pc.is_in(coded.indices, pa.array(codes, coded.indices.type)))

    def _folder(self, value: object) -> str:
        if isinstance(value, bytes):
            value = value.decode("utf-8", "backslashreplace")
        text = NULL if value is None or value == "" else quote(str(value), safe=" ")
        if len(text) > VALUE_CHARACTERS_MAX:
            raise LoadError(f"a value of {self._by} has more than {VALUE_CHARACTERS_MAX} characters: {text[:40]}...")
        return f"{self._by}={text}/"


def check_division(schema: pa.Schema, by: str | None) -> None:
    """Raise LoadError unless rows of a schema can be divided by `by`."""
    Partitioning(schema, by)
    same = next((name for name in schema.names if by in _FORMATS and name.lower() == by), None)
    if same is not None:
        raise LoadError(
            f"--partition-by {by} makes directories of that name, and the rows have a column {same}: rename it, or "
            "leave --partition-by out"
        )


def _check_type(by: str, kind: pa.DataType) -> None:
    if pa.types.is_nested(kind) or pa.types.is_floating(kind):
        raise LoadError(f"--partition-by {by}: a column of type {kind} has no values to name directories by")
