"""An Iceberg table as a destination, through the package pyiceberg and any catalog that it knows.

    LOCATION/data/_flakelog/flights/                        plans, decisions and receipts (load.file_ledger)
    LOCATION/data/flights-00000-...0017-...0042.parquet     files, named after their ranges

The table property `flakelog.load.TOPIC` holds the number of the last load. The transaction that adds the files of a
load also sets the property, and Iceberg refuses it if another snapshot came since the table was read. pyiceberg would
then read the table again and commit anew by itself, which adds files twice in a race. So its retries are off, and the
sink reads the property again before it commits anew.

A table that is not there is created. Rows may be appended to a table of others if its columns fit.
"""

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from spark_bridge.load.decoding import Decoding
from spark_bridge.load.load import Load, LoadError
from spark_bridge.load.partitioning import DAY, HOUR, TIME
from spark_bridge.load.receipt import Receipt
from spark_bridge.load.table_sink import TableSink, partition_field
from spark_bridge.output.storage import Storage

_NO_RETRIES = {"commit.retry.num-retries": "0"}


class IcebergSink(TableSink):
    """An Iceberg table; `identifier` is namespace.table. Raise ImportError without pyiceberg (extra [iceberg])."""

    keeps_column = True  # Iceberg reads the partition's value from the file

    def __init__(
        self,
        catalog: Any,
        identifier: str,
        topic: str,
        new_attempt: Callable[[], str],
        schema: pa.Schema,
        partition_by: str | None = None,
        decoding: Decoding | None = None,
        *,
        create: bool = True,
    ) -> None:
        self._catalog = catalog
        self._identifier = identifier
        self._property = f"flakelog.load.{topic}"
        table = _opened(catalog, identifier, schema, partition_by, create)
        self._data = f"{table.location().rstrip('/')}/data"
        super().__init__(Storage.at(self._data), topic, new_attempt, schema, decoding)

    @property
    def place(self) -> str:
        return self._identifier

    def committed(self) -> int | None:
        return self._number(self._table())

    def try_commit(self, load: Load, receipt: Receipt) -> bool:
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

        table = self._table()
        number = self._number(table)
        if number is not None and number >= load.number:
            return True
        table.metadata.properties.update(_NO_RETRIES)  # of this copy in memory only
        try:
            with table.transaction() as change:
                change.set_properties({self._property: str(load.number)})
                change.add_files(
                    [f"{self._data}/{name}" for name in receipt.files],
                    snapshot_properties={"flakelog.load": str(load.number), "flakelog.topic": load.topic},
                    check_duplicate_files=False,  # the property says it, without a scan of the table's files
                )
        except (CommitFailedException, CommitStateUnknownException):
            return False
        except ValueError as error:
            raise LoadError(f"the Iceberg table {self._identifier} refuses the files: {error}") from None
        return True

    def kept(self, receipt: Receipt) -> Iterable[str]:
        there = {str(path) for path in self._table().inspect.files()["file_path"].to_pylist()}
        return [name for name in receipt.files if f"{self._data}/{name}" in there]

    def _table(self) -> Any:
        """Return the table as it is now."""
        return self._catalog.load_table(self._identifier)

    def _number(self, table: Any) -> int | None:
        value = table.properties.get(self._property)
        return None if value is None else int(value)


def _opened(catalog: Any, identifier: str, schema: pa.Schema, partition_by: str | None, create: bool) -> Any:
    """Return the table, created if it is not there. Raise LoadError if it is divided by something else.

    An empty table that is not divided is divided as wanted. Without `create` nothing is changed: there is a table.
    """
    from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError, TableAlreadyExistsError

    wanted = None if partition_by is None else _division(schema, partition_by)
    try:
        table = catalog.load_table(identifier)
    except NoSuchTableError:
        if not create:
            raise
        try:
            catalog.create_namespace_if_not_exists(identifier.rpartition(".")[0])
            catalog.create_table(identifier, schema)
        except (NamespaceAlreadyExistsError, TableAlreadyExistsError):
            pass  # another driver created it meanwhile
        table = catalog.load_table(identifier)
    if wanted is not None and not table.spec().fields and table.current_snapshot() is None:
        if not create:
            return table
        with table.update_spec() as change:
            change.add_field(*wanted)
        table = catalog.load_table(identifier)
    names = table.schema()
    there = [(names.find_column_name(field.source_id), str(field.transform)) for field in table.spec().fields]
    if there != ([] if wanted is None else [(wanted[0], str(wanted[1]))]):
        shown = ", ".join(f"{transform}({name})" for name, transform in there) or "no column"
        raise LoadError(f"the Iceberg table {identifier} is divided by {shown}; --partition-by must name the same")
    return table


def _division(schema: pa.Schema, by: str) -> tuple[str, Any, str]:
    """Return the column, the transform and the name of a partition field."""
    from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform

    if by in (DAY, HOUR):
        return TIME, DayTransform() if by == DAY else HourTransform(), by
    return partition_field(schema, by).name, IdentityTransform(), by
