"""What loads into tables have in common: files in place first, then one commit of the table that adds them.

The chain of loads, its plans, parts and decisions are files of a FileLedger, as for plain Parquet (parquet_sink). A
table's readers see only what a commit added, so there is one more step between the moves and the receipt: the commit.
It carries the number of the load, and a table has each number once. So a run that was killed around its commit, or two
runs side by side, add the files of a load once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import unquote

import pyarrow as pa

from spark_bridge.load.decoding import Decoding
from spark_bridge.load.load import Load, LoadError
from spark_bridge.load.parquet_sink import ParquetSink
from spark_bridge.load.partitioning import DAY, HOUR, NULL
from spark_bridge.load.receipt import Receipt
from spark_bridge.load.sink import Found, Rows
from spark_bridge.output.storage import Storage
from spark_bridge.reading.skipped import SkippedBatch

COMMIT_ATTEMPTS_MAX = 20
"""Commits that may lose against other writers of the table before a load fails. Its files stay, and the next run goes
on with the commit."""


class TableSink(ParquetSink, ABC):
    """A Sink whose published files are also committed to a table. `schema` has the columns of the load's rows."""

    def __init__(
        self,
        storage: Storage,
        topic: str,
        new_attempt: Callable[[], str],
        schema: pa.Schema,
        decoding: Decoding | None = None,
    ) -> None:
        super().__init__(storage, topic, new_attempt, decoding)
        self.schema = table_schema(schema)

    @abstractmethod
    def committed(self) -> int | None:
        """Return the number of the last load of this topic that was committed, None if there is none."""

    def newest(self) -> Found | None:
        found = super().newest()
        if found is None and (number := self.committed()) is not None:
            found = super().newest()  # another driver may have begun after the first look
        if found is None and number is not None:
            raise LoadError(
                f"the table {self.place} has loads of {self._topic!r} up to number {number}, and no record of them in "
                "_flakelog: their rows would come twice. Name another table, or put _flakelog back"
            )
        return found

    def adapt(self, rows: Rows) -> Rows:
        return _Cast(rows, self.schema)

    def commit(self, load: Load, receipt: Receipt) -> None:
        if not receipt.files:
            return
        for _ in range(COMMIT_ATTEMPTS_MAX):
            number = self.committed()
            if number is not None and number >= load.number:
                return
            if self.try_commit(load, receipt):
                return
        raise LoadError(
            f"{COMMIT_ATTEMPTS_MAX} commits of load {load.number} to {self.place} lost against other writers of the "
            "table; run it again when there are fewer"
        )

    @abstractmethod
    def try_commit(self, load: Load, receipt: Receipt) -> bool:
        """Add the files of a load by one commit that carries its number. Return False if another writer was first."""

    def problems(self, receipt: Receipt) -> Iterator[str]:
        number = self.committed()
        if receipt.files and (number is None or number < receipt.number):
            yield f"load {receipt.number} was not committed to the table"
        yield from super().problems(receipt)


class _Cast:
    """Rows with the types of a table."""

    def __init__(self, rows: Rows, schema: pa.Schema) -> None:
        self._rows = rows
        self.schema = schema

    @property
    def skipped(self) -> Sequence[SkippedBatch]:
        return self._rows.skipped

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._rows:
            yield batch if batch.schema.equals(self.schema) else batch.cast(self.schema)


def table_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns with microseconds for all times, which tables keep, instead of milliseconds."""
    return pa.schema([field.with_type(_table_type(field.type)) for field in schema])


def _table_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=kind.tz)
    if pa.types.is_time(kind):
        return pa.time64("us")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_table_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_table_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(_table_type(kind.item_type)))
    return kind


def partition_value(name: str) -> str | None:
    """Return the value in a file's directory, as text; None for null. `name` is like `day=2013-01-01/file`."""
    value = unquote(name.split("/")[0].partition("=")[2])
    return None if value == NULL else value


def partition_field(schema: pa.Schema, by: str) -> pa.Field:
    """Return the column that a table is divided by. Raise LoadError if tables cannot be divided by it."""
    if by in (DAY, HOUR):
        if by in schema.names:
            raise LoadError(f"--partition-by {by}: the rows have a column {by} already; leave it out or rename it")
        return pa.field(by, pa.date32() if by == DAY else pa.string())
    field = schema.field(by)
    kinds = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date)
    if not any(is_kind(field.type) for is_kind in kinds):
        raise LoadError(
            f"--partition-by {by}: a table is divided by text, whole numbers, true and false, or dates; "
            f"this column is {field.type}"
        )
    return field
