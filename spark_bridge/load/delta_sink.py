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
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from spark_bridge.load.delta_log import LOG, LogEntry, restored
from spark_bridge.load.load import Load, LoadError
from spark_bridge.load.receipt import DataFile, Receipt
from spark_bridge.load.table_history import History
from spark_bridge.load.table_sink import TableSink, partition_field, partition_value
from spark_bridge.load.target import Commit
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
    ) -> None:
        import deltalake  # noqa: F401  (a missing package is named before anything is planned)

        super().__init__(storage, topic, new_attempt, schema)
        self._app = f"{APP}/{topic}"
        self._now_ms = now_ms
        self._uri = storage.uri
        self._store: dict[str, str] | None = None
        if "://" in storage.uri:
            self._uri, self._store = store_config(storage.uri)
        _delta_schema(self.schema)

    kind = "Delta table"

    def id_of(self, table: Any) -> str:
        return str(table.metadata().id)

    def number_in(self, table: Any) -> int | None:
        version = table.transaction_version(self._app_of_chain(self._ledger.chain))
        return None if version is None else int(version)

    def commit_in(self, table: Any, number: int) -> Commit | None:
        own = {"flakelog.load": str(number), "flakelog.topic": self._topic}
        for made in self._log(table.version()):
            chain = made.info.get("flakelog.chain", "0")
            if chain == str(self._ledger.chain) and own.items() <= made.info.items():
                return Commit(number, {"version": made.version})
        return None

    def undone(self, table: Any, at: Mapping[str, int]) -> str | None:
        version, now = at["version"], table.version()
        if now <= version:
            return None if now == version else f"the table is at version {now}, the load was version {version}"
        return restored([made.info for made in self._log(now, down_to=version)][::-1], version)

    def try_commit(self, table: Any, load: Load, receipt: Receipt) -> bool:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError, DeltaError

        try:
            self.check_columns(table, load)
            added = self._lacking(table, load)
            if added:
                table.alter.add_columns(added)  # a separate commit: readers of older rows see nulls
            adds = [self._added(name, file, load.layout.partition_by) for name, file in receipt.files.items()]
            apps = {self._app_of_chain(0), self._app_of_chain(load.chain)}  # the first tells that the table has loads
            own = {"flakelog.load": str(load.number), "flakelog.topic": load.topic}
            properties = CommitProperties(
                app_transactions=[Transaction(app, load.number) for app in sorted(apps)],
                custom_metadata=own | ({"flakelog.chain": str(load.chain)} if load.chain else {}),
            )
            table.create_write_transaction(
                adds, "append", table.schema(), table.metadata().partition_columns, commit_properties=properties
            )
        except CommitFailedError:
            return False
        except DeltaError as error:
            raise LoadError(f"the Delta table {self.location}: {_first_line(error)}") from None
        return True

    def _app_of_chain(self, chain: int) -> str:
        return f"{self._app}/{chain}" if chain else self._app

    def files_in(self, table: Any) -> set[str]:
        return {unquote(path) for path in pa.table(table.get_add_actions())["path"].to_pylist()}

    def rows_in(self, table: Any) -> int:
        return int(table.count())

    def history_of(self, table: Any) -> History:
        log = list(self._log(table.version()))[::-1]
        begins = log[0].version if log else None
        return History([made.commit() for made in log], begins, complete=begins == 0)

    def place_in_history(self, at: Mapping[str, int]) -> int:
        return at["version"]

    def _log(self, newest: int, *, down_to: int = 0) -> Iterator[LogEntry]:
        """Yield the commits of the log from a version down, as far as they are not cleaned up.

        DeltaTable.history reads them too, but it lets no other thread of Python run meanwhile, and no Ctrl-C.
        """
        for version in range(newest, down_to - 1, -1):
            try:
                yield LogEntry.parse(version, self._storage.read(f"{LOG}/{version:020d}.json"))
            except FileNotFoundError:
                return

    def table(self) -> Any:
        """Return the table as it is now, None if there is no table. Raise LoadError if its log cannot be read."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            return DeltaTable(self._uri, storage_options=self._store)
        except TableNotFoundError:
            return None
        except DeltaError as error:
            raise LoadError(f"the Delta table {self.location} cannot be read: {_first_line(error)}") from None

    def made(self, partition_by: str | None) -> Any:
        table = self.table()
        if table is not None:
            return table
        from deltalake import DeltaTable

        columns = list(self.schema)
        if partition_by is not None:
            field = partition_field(self.schema, partition_by)
            columns += [] if field.name in self.schema.names else [field]
        by = None if partition_by is None else [partition_by]
        DeltaTable.create(
            self._uri, pa.schema(columns), mode="ignore", partition_by=by, storage_options=self._store
        )
        return self.table()

    def _lacking(self, table: Any, load: Load) -> list[Any]:
        """Return the columns that the commit of a load adds to a table."""
        columns = {field.name for field in table.schema().fields}
        new = [field for field in self.new_columns(table, load) if field.name not in columns]
        return list(_delta_schema(pa.schema(new)).fields) if new else []

    def check_columns(self, table: Any, load: Load) -> None:
        partition_by = load.layout.partition_by
        columns = {field.name: field for field in [*table.schema().fields, *self._lacking(table, load)]}
        for field in _delta_schema(self.schema_of(load)).fields:
            other = columns.get(field.name)
            if other is None or other.type != field.type or (field.nullable and not other.nullable):
                raise LoadError(
                    f"the Delta table {self.location} has {_shown(other)}, the rows have {_shown(field)}: choose "
                    "columns that fit, or name another table"
                )
        by = table.metadata().partition_columns
        rows = {*self.schema_of(load).names, *by}
        for column in columns.values():
            if not column.nullable and column.name not in rows:
                raise LoadError(
                    f"the Delta table {self.location} has {_shown(column)}, which the rows lack: choose columns that "
                    "fit, or name another table"
                )
        if by != ([] if partition_by is None else [partition_by]):
            named = ", ".join(by) or "no column"
            raise LoadError(f"the Delta table {self.location} is divided by {named}; --partition-by must name the same")

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
    try:
        return Schema.from_arrow(schema)
    except Exception as error:
        raise LoadError(f"a Delta table has no columns like these: {_first_line(error)}") from None


def _shown(field: Any) -> str:
    if field is None:
        return "no such column"
    kind = field.type.to_json().strip('"')  # text is "string", in quotes
    return f"{field.name} {kind}{'' if field.nullable else ' NOT NULL'}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]  # the rest is a backtrace


def _statistics(footer: pq.FileMetaData, rows: int) -> dict[str, Any]:
    """Return a file's row count, and the bounds of its numbers and times, by which readers skip files."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for column in range(footer.num_columns):
        name = footer.schema.column(column).path
        column_statistics = [
            footer.row_group(group).column(column).statistics for group in range(footer.num_row_groups)
        ]
        if any(statistics is None or not statistics.has_null_count for statistics in column_statistics):
            continue
        nulls[name] = sum(statistics.null_count for statistics in column_statistics)
        bounds = [statistics for statistics in column_statistics if statistics.has_min_max]
        if "." in name or not bounds or type(bounds[0].min) not in (int, datetime):
            continue
        low[name] = _json(min(statistics.min for statistics in bounds), up=False)
        high[name] = _json(max(statistics.max for statistics in bounds), up=True)
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
