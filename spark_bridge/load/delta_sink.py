"""A Delta table as a destination, through the package deltalake (delta-rs).

    flights/_delta_log/                                     the table
    flights/_flakelog/flights/                              plans, decisions and receipts (load.file_ledger)
    flights/flights-00000-...0017-...0042.parquet           files, named after their ranges

The commit of load n carries the application id `flakelog/TOPIC` and the version n (Delta's transaction identifiers).
Delta refuses the later of two commits that began at one version of the table and carry the same id, so the second of
two racing drivers fails, reads the table again, and finds its load committed. Source: the Delta protocol, "Transaction
Identifiers".

A table that is not there is created. Rows may be appended to a table of others if its columns fit. OPTIMIZE and VACUUM
may run at any time: their files are not ours, and VACUUM skips names with an underscore.
"""

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from spark_bridge.load.decoding import Decoding
from spark_bridge.load.load import Load, LoadError
from spark_bridge.load.receipt import DataFile, Receipt
from spark_bridge.load.table_sink import TableSink, partition_field, partition_value
from spark_bridge.output.storage import Storage, store_config

APP = "flakelog"


class DeltaSink(TableSink):
    """A Delta table. `now_ms` gives the time of the commit. Raise ImportError without deltalake (extra [delta])."""

    def __init__(
        self,
        storage: Storage,
        topic: str,
        new_attempt: Callable[[], str],
        schema: pa.Schema,
        now_ms: Callable[[], int],
        decoding: Decoding | None = None,
    ) -> None:
        import deltalake  # noqa: F401  (a missing package is named before anything is planned)

        super().__init__(storage, topic, new_attempt, schema, decoding)
        self._app = f"{APP}/{topic}"
        self._now_ms = now_ms
        self._uri = storage.uri
        self._store: dict[str, str] | None = None
        if "://" in storage.uri:
            self._uri, self._store = store_config(storage.uri)
        _delta_schema(self.schema)

    def committed(self) -> int | None:
        table = self._table()
        version = None if table is None else table.transaction_version(self._app)
        return None if version is None else int(version)

    def try_commit(self, load: Load, receipt: Receipt) -> bool:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError, DeltaError

        try:
            table = self._table() or self._created(load.layout.partition_by)
            number = table.transaction_version(self._app)
            if number is not None and number >= load.number:
                return True
            self._check_columns(table, load.layout.partition_by)
            adds = [self._added(name, file, load.layout.partition_by) for name, file in receipt.files.items()]
            properties = CommitProperties(
                app_transactions=[Transaction(self._app, load.number)],
                custom_metadata={"flakelog.load": str(load.number), "flakelog.topic": load.topic},
            )
            table.create_write_transaction(
                adds, "append", table.schema(), table.metadata().partition_columns, commit_properties=properties
            )
        except CommitFailedError:
            return False
        except DeltaError as error:
            raise LoadError(f"the Delta table {self.place}: {_first_line(error)}") from None
        return True

    def kept(self, receipt: Receipt) -> Iterable[str]:
        table = self._table()
        actions = pa.table(table.get_add_actions())["path"].to_pylist() if table is not None else []
        return {unquote(path) for path in actions}.intersection(receipt.files)

    def _table(self) -> Any:
        """Return the table as it is now, None if there is no table."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self._uri, storage_options=self._store)
        except TableNotFoundError:
            return None

    def _created(self, partition_by: str | None) -> Any:
        """Return the table, created if no other driver did meanwhile."""
        from deltalake import DeltaTable

        columns = list(self.schema)
        if partition_by is not None:
            field = partition_field(self.schema, partition_by)
            columns += [] if field.name in self.schema.names else [field]
        by = None if partition_by is None else [partition_by]
        DeltaTable.create(
            self._uri, pa.schema(columns), mode="ignore", partition_by=by, storage_options=self._store
        )
        return self._table()

    def _check_columns(self, table: Any, partition_by: str | None) -> None:
        """Raise LoadError if the rows do not fit a table that is there."""
        there = {field.name: field for field in table.schema().fields}
        for field in _delta_schema(self.schema).fields:
            other = there.get(field.name)
            if other is None or other.type != field.type or (field.nullable and not other.nullable):
                raise LoadError(
                    f"the Delta table {self.place} has {_shown(other)}, the rows have {_shown(field)}: choose columns "
                    "that fit, or name another table"
                )
        by = table.metadata().partition_columns
        if by != ([] if partition_by is None else [partition_by]):
            named = ", ".join(by) or "no column"
            raise LoadError(f"the Delta table {self.place} is divided by {named}; --partition-by must name the same")

    def _added(self, name: str, file: DataFile, partition_by: str | None) -> Any:
        from deltalake.transaction import AddAction

        values = {} if partition_by is None else {partition_by: partition_value(name)}
        with self._storage.open(name) as source:
            stats = _statistics(pq.read_metadata(source), file.rows)
        return AddAction(
            path=name,
            size=file.bytes,
            partition_values=values,
            modification_time=self._now_ms(),
            data_change=True,
            stats=json.dumps(stats),
        )


def _delta_schema(schema: pa.Schema) -> Any:
    from deltalake import Schema

    for field in schema:
        try:
            Schema.from_arrow(pa.schema([field]))
        except Exception as error:  # deltalake raises plain Exceptions here
            why = _first_line(error)
            raise LoadError(f"a Delta table has no column like {field.name}, {field.type}: {why}") from None
    return Schema.from_arrow(schema)


def _shown(field: Any) -> str:
    if field is None:
        return "no such column"
    return f"{field.name} {field.type}{'' if field.nullable else ' NOT NULL'}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]  # the rest is a backtrace


def _statistics(footer: pq.FileMetaData, rows: int) -> dict[str, Any]:
    """Return a file's row count, and the bounds of its numbers and times, by which readers skip files."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for column in range(footer.num_columns):
        name = footer.schema.column(column).path
        found = [footer.row_group(group).column(column).statistics for group in range(footer.num_row_groups)]
        if any(each is None or not each.has_null_count for each in found):
            continue
        nulls[name] = sum(each.null_count for each in found)
        bounds = [each for each in found if each.has_min_max]
        if "." in name or not bounds or type(bounds[0].min) not in (int, datetime):
            continue
        low[name] = _json(min(each.min for each in bounds), up=False)
        high[name] = _json(max(each.max for each in bounds), up=True)
    top = {name: count for name, count in nulls.items() if "." not in name}
    return {"numRecords": rows, "minValues": low, "maxValues": high, "nullCount": top}


def _json(value: int | datetime, *, up: bool) -> int | str:
    """Return a bound as Delta writes it: times with milliseconds, a maximum rounded up."""
    if isinstance(value, int):
        return value
    if value.tzinfo:
        value = value.astimezone(UTC)
    value += timedelta(microseconds=-value.microsecond % 1000 if up else 0)
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
