"""An Iceberg table as a destination, through the package pyiceberg and any catalog that it knows.

    LOCATION/data/_flakelog/flights/                        plans, decisions and receipts (load.file_ledger)
    LOCATION/data/flights-00000-...0017-...0042.parquet     files, named after their ranges

The table property `flakelog.load.TOPIC` holds the number of the last load. The transaction that adds the files of a
load also sets the property, and Iceberg refuses it if another snapshot came since the table was read. pyiceberg would
then read the table again and commit anew by itself, which adds files twice in a race. So its retries are off, and the
sink reads the property again before it commits anew.

Nothing is created before the record of loads is read: a table that was dropped has its record at the location that
the catalog would give it again. Then a table that is not there is created, unless loads went to it. Rows may be
appended to a table of others if its columns fit.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from spark_bridge.load.load import Load, LoadError
from spark_bridge.load.partitioning import DAY, HOUR, TIME
from spark_bridge.load.receipt import Receipt
from spark_bridge.load.table_history import History, Kind, TableCommit
from spark_bridge.load.table_sink import TableSink, partition_field
from spark_bridge.load.target import Commit
from spark_bridge.output.storage import Storage

_FIRST_SEQUENCE = 1  # of a table's first snapshot, from format version 2 on
_NO_RETRIES = {"commit.retry.num-retries": "0"}


class IcebergSink(TableSink):
    """An Iceberg table; `identifier` is namespace.table. Raise ImportError without pyiceberg (extra [iceberg])."""

    keeps_column = True  # Iceberg reads the partition's value from the file
    kind = "Iceberg table"

    def __init__(
        self,
        catalog: Any,
        identifier: str,
        topic: str,
        new_attempt: Callable[[], str],
        schema: pa.Schema,
        partition_by: str | None = None,
    ) -> None:
        self._catalog = catalog
        self._identifier = identifier
        self._property = f"flakelog.load.{topic}"
        self._asked = schema
        self._division = None if partition_by is None else _division(schema, partition_by)
        self._data = _data_of(_load_table(catalog, identifier) or _staged(catalog, identifier, schema))
        super().__init__(Storage.at(self._data), topic, new_attempt, schema)

    @property
    def location(self) -> str:
        return self._identifier

    def table(self) -> Any | None:
        """Return the table as it is now. Raise LoadError if it is divided by something else."""
        table = _load_table(self._catalog, self._identifier)
        if table is not None and not self._is_to_divide(table):
            self._check_division(table)
        return table

    def made(self, partition_by: str | None) -> Any:
        """Return the table. An empty table that is not divided is divided as wanted."""
        from pyiceberg.exceptions import TableAlreadyExistsError

        table = self.table()
        if table is None:
            try:
                self._catalog.create_table(self._identifier, self._asked)
            except TableAlreadyExistsError:
                pass  # another driver created it meanwhile
            table = self._catalog.load_table(self._identifier)
            if _data_of(table) != self._data:  # a catalog may choose a place anew
                self._data = _data_of(table)
                self.move_to(Storage.at(self._data))
        if self._division is not None and self._is_to_divide(table):
            with table.update_spec() as change:
                change.add_field(*self._division)
            table = self._catalog.load_table(self._identifier)
        self._check_division(table)
        return table

    def id_of(self, table: Any) -> str:
        return str(table.metadata.table_uuid)

    def number_in(self, table: Any) -> int | None:
        value = table.properties.get(self._property_of(self._ledger.chain))
        return None if value is None else int(value)

    def commit_in(self, table: Any, number: int) -> Commit | None:
        own = self._summary(number, self._ledger.chain)
        for snapshot in reversed(table.snapshots()):
            summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
            if own.items() <= summary.items() and summary.get("flakelog.chain", "0") == str(self._ledger.chain):
                return Commit(number, {"snapshot": snapshot.snapshot_id, "sequence": snapshot.sequence_number or 0})
        return None

    def undone(self, table: Any, at: Mapping[str, int]) -> str | None:
        """Walk from the current snapshot to its ancestors, of which expired ones are not there to be met.

        pyiceberg makes a snapshot whose parent expired the first of all. Only a replaced table has such a snapshot
        beside the load's.
        """
        snapshot, is_listed = table.current_snapshot(), table.snapshot_by_id(at["snapshot"]) is not None
        if snapshot is None:
            return "the table has no snapshot any more"
        while snapshot is not None and snapshot.snapshot_id != at["snapshot"]:
            sequence, parent = snapshot.sequence_number or 0, snapshot.parent_snapshot_id
            if sequence < at["sequence"] or (parent is None and is_listed):
                return (
                    f"its current snapshot {table.current_snapshot().snapshot_id} does not come from the load's "
                    f"snapshot {at['snapshot']}, so the table was rolled back or replaced{_roll_back(table, at)}"
                )
            snapshot = None if parent is None else table.snapshot_by_id(parent)
        return None

    def try_commit(self, table: Any, load: Load, receipt: Receipt) -> bool:
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

        table.metadata.properties.update(_NO_RETRIES)  # of this copy in memory only
        try:
            added = [field for field in self.new_columns(table, load) if field.name not in table.schema().column_names]
            with table.transaction() as change:
                if added:
                    with change.update_schema() as columns:
                        columns.union_by_name(pa.schema(added))
                chains = {0, load.chain}  # the first tells that the table has loads
                change.set_properties({self._property_of(chain): str(load.number) for chain in chains})
                change.add_files(
                    [f"{self._data}/{name}" for name in receipt.files],
                    snapshot_properties=self._summary(load.number, load.chain),
                    check_duplicate_files=False,  # the property says it, without a scan of the table's files
                )
        except (CommitFailedException, CommitStateUnknownException):
            return False
        except ValueError as error:
            raise LoadError(f"the Iceberg table {self._identifier} refuses the files: {error}") from None
        return True

    def check_columns(self, table: Any, load: Load) -> None:
        new = {field.name for field in self.new_columns(table, load)}
        staged = _staged(self._catalog, self._identifier, self.schema_of(load))
        rows = {field.name: field for field in staged.schema().fields}
        columns = {field.name: field for field in table.schema().fields}
        for name in [*rows, *columns]:
            row, column = rows.get(name), columns.get(name)
            fits = name in new if column is None else not column.required if row is None else _fits(row, column)
            if not fits:
                raise LoadError(
                    f"the Iceberg table {self._identifier} has {_shown(column)}, the rows have {_shown(row)}: choose "
                    "columns that fit, or name another table"
                )

    def files_in(self, table: Any) -> set[str]:
        snapshot = table.current_snapshot()
        manifests = () if snapshot is None else snapshot.manifests(table.io)
        return {self._name(entry) for manifest in manifests for entry in _data_entries(table, manifest)}

    def rows_in(self, table: Any) -> int:
        return int(table.scan().count())

    def history_of(self, table: Any) -> History:
        commits, snapshot, oldest = [], table.current_snapshot(), None
        while snapshot is not None:
            oldest = snapshot
            commits.append(self._commit(table, snapshot))
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)
        has_order = table.metadata.format_version > 1
        begins = oldest.sequence_number if oldest is not None and has_order else None
        return History(commits[::-1], begins, complete=oldest is None or begins == _FIRST_SEQUENCE)

    def place_in_history(self, at: Mapping[str, int]) -> int:
        return at["sequence"]

    def _commit(self, table: Any, snapshot: Any) -> TableCommit:
        from pyiceberg.manifest import ManifestEntryStatus

        operation = "unknown" if snapshot.summary is None else snapshot.summary.operation.value
        name = f"snapshot {snapshot.snapshot_id} ({operation})"
        if operation == "append":
            return TableCommit(name, Kind.REWRITE, (), ())
        manifests = snapshot.manifests(table.io)
        own = [manifest for manifest in manifests if manifest.added_snapshot_id == snapshot.snapshot_id]
        entries = [entry for manifest in own for entry in _data_entries(table, manifest, discard_deleted=False)]
        return TableCommit(
            name,
            Kind.REWRITE if operation == "replace" else Kind.CHANGE,
            {self._name(entry) for entry in entries if entry.status == ManifestEntryStatus.ADDED},
            {self._name(entry) for entry in entries if entry.status == ManifestEntryStatus.DELETED},
        )

    def _name(self, entry: Any) -> str:
        return str(entry.data_file.file_path).removeprefix(f"{self._data}/")

    def _property_of(self, chain: int) -> str:
        return f"{self._property}/{chain}" if chain else self._property

    def _summary(self, number: int, chain: int) -> dict[str, str]:
        """Return what the snapshot of a load says about it."""
        own = {"flakelog.load": str(number), "flakelog.topic": self._topic}
        return own | ({"flakelog.chain": str(chain)} if chain else {})

    def _is_to_divide(self, table: Any) -> bool:
        return self._division is not None and not table.spec().fields and table.current_snapshot() is None

    def _check_division(self, table: Any) -> None:
        names, wanted = table.schema(), self._division
        divisions = [(names.find_column_name(field.source_id), str(field.transform)) for field in table.spec().fields]
        if divisions != ([] if wanted is None else [(wanted[0], str(wanted[1]))]):
            shown = ", ".join(f"{transform}({name})" for name, transform in divisions) or "no column"
            raise LoadError(
                f"the Iceberg table {self._identifier} is divided by {shown}; --partition-by must name the same"
            )


def _data_entries(table: Any, manifest: Any, *, discard_deleted: bool = True) -> list[Any]:
    """Return the entries of data files, without those of deletes."""
    from pyiceberg.manifest import ManifestContent

    if manifest.content != ManifestContent.DATA:
        return []
    return list(manifest.fetch_manifest_entry(table.io, discard_deleted=discard_deleted))


def _roll_back(table: Any, at: Mapping[str, int]) -> str:
    """Return when the table left the line of a snapshot, in words; "" if its log of snapshots does not say it."""
    line: dict[int | None, bool] = {None: False, at["snapshot"]: True}
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}

    def comes_from_it(id: int | None) -> bool:
        walked = []
        while id not in line:
            walked.append(id)
            snapshot = by_id.get(id)
            id = None if snapshot is None else snapshot.parent_snapshot_id
        line.update(dict.fromkeys(walked, line[id]))
        return line[id]

    last = ""
    was_on_line = False
    for entry in table.history():
        is_on_line = comes_from_it(entry.snapshot_id)
        if was_on_line and not is_on_line:
            at_time = datetime.fromtimestamp(entry.timestamp_ms / 1000, UTC).isoformat(timespec="seconds")
            last = f", to snapshot {entry.snapshot_id} at {at_time}"
        was_on_line = is_on_line
    return last


def _load_table(catalog: Any, identifier: str) -> Any | None:
    from pyiceberg.exceptions import NoSuchTableError

    try:
        return catalog.load_table(identifier)
    except NoSuchTableError:
        return None


def _staged(catalog: Any, identifier: str, schema: pa.Schema) -> Any:
    """Return the table that the catalog would make, which it does not make."""
    return catalog.create_table_transaction(identifier, schema).table_metadata


def _fits(row: Any, column: Any) -> bool:
    """Return True if a table may have the field of rows. The fields of nested types are compared with the files."""
    from pyiceberg.exceptions import ResolveError
    from pyiceberg.schema import promote

    if column.required and not row.required:
        return False
    if not row.field_type.is_primitive or not column.field_type.is_primitive:
        return type(row.field_type) is type(column.field_type)
    try:
        promote(row.field_type, column.field_type)
    except ResolveError:
        return bool(row.field_type == column.field_type)
    return True


def _shown(field: Any) -> str:
    if field is None:
        return "no such column"
    return f"{field.name} {field.field_type}{' required' if field.required else ''}"


def _data_of(table: Any) -> str:
    location = table.location() if callable(table.location) else table.location
    return f"{location.rstrip('/')}/data"


def _division(schema: pa.Schema, by: str) -> tuple[str, Any, str]:
    """Return the column, the transform and the name of a partition field."""
    from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform

    if by in (DAY, HOUR):
        return TIME, DayTransform() if by == DAY else HourTransform(), by
    return partition_field(schema, by).name, IdentityTransform(), by
