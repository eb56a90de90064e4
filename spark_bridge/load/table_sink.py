"""The common part of loads into tables: files in place first, then one commit of the table that adds them.

The chain of loads, its plans, parts and decisions are files of a FileLedger, as for plain Parquet (parquet_sink). A
table's readers see only what a commit added, so there is one more step between the moves and the receipt: the commit.
It carries the number of the load, and a table has each number once. So a run that was killed around its commit, or two
runs side by side, add the files of a load once.

A plan names the table's identity and the last load's commit (load.target). Both are compared before a load is planned,
and again in the table that its commit starts from: no other table of that name, and none that was put back to an older
state, gets a load that would hide a hole.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from spark_bridge.load.casting import cast
from spark_bridge.load.load import Load, LoadError
from spark_bridge.load.parquet_sink import ParquetSink
from spark_bridge.load.partitioning import DAY, HOUR, NULL
from spark_bridge.load.receipt import DataFile, Receipt
from spark_bridge.load.sink import Contents, Rows, StoredLoad
from spark_bridge.load.table_history import Fates, History, Kind, TableCommit, follow, in_words
from spark_bridge.load.target import Commit, Target
from spark_bridge.load.target_check import OtherTarget, check_same, gone, undone
from spark_bridge.output.storage import Storage
from spark_bridge.reading.skipped import SkippedBatch

_CHOSEN = "another writer took them away"
COMMIT_ATTEMPTS_MAX = 20
"""Commits that may lose against other writers of the table before a load fails. Its files stay, and the next run goes
on with the commit."""


class TableSink(ParquetSink, ABC):
    """A Sink whose published files are also committed to a table. `schema` has the columns of the rows of new loads."""

    def __init__(
        self,
        storage: Storage,
        topic: str,
        new_attempt: Callable[[], str],
        schema: pa.Schema,
    ) -> None:
        super().__init__(storage, topic, new_attempt)
        self.schema = table_schema(schema)

    # --- what each kind of table does -------------------------------------------------------------------------------

    kind = ""
    """The kind of table, for messages."""

    @abstractmethod
    def table(self) -> Any | None:
        """Return the table as it is now; None if there is no table."""

    @abstractmethod
    def made(self, partition_by: str | None) -> Any:
        """Return the table, made if no other driver did meanwhile. Raise LoadError if it is divided by something else.
        """

    @abstractmethod
    def id_of(self, table: Any) -> str:
        """Return the identity of a table, which another table of that name does not have."""

    @abstractmethod
    def number_in(self, table: Any) -> int | None:
        """Return the number of the last load of this topic and chain that a table has, None if it has none."""

    @abstractmethod
    def commit_in(self, table: Any, number: int) -> Commit | None:
        """Return the commit of a load; None if the table's history does not reach back to it."""

    @abstractmethod
    def undone(self, table: Any, at: Mapping[str, int]) -> str | None:
        """Return what undid the commit that was made at a place in the table's history; None if it stands."""

    @abstractmethod
    def files_in(self, table: Any) -> set[str]:
        """Return the data files of a table: their names in the place, or their paths if they are elsewhere."""

    @abstractmethod
    def rows_in(self, table: Any) -> int:
        """Return the number of rows of a table, without a look at its data."""

    @abstractmethod
    def history_of(self, table: Any) -> History:
        """Return the commits that led to the table as it is now, with names as `files_in` has them."""

    @abstractmethod
    def place_in_history(self, at: Mapping[str, int]) -> int:
        """Return the number by which a commit has its place in a History."""

    @abstractmethod
    def try_commit(self, table: Any, load: Load, receipt: Receipt) -> bool:
        """Add the files of a load to the table as it was read, by one commit that carries the load's number.

        Return False if another writer was first.
        """

    @abstractmethod
    def check_columns(self, table: Any, load: Load) -> None:
        """Raise LoadError if the rows of a load do not fit a table that is there, with `new_columns` added to it."""

    # --- the sink ---------------------------------------------------------------------------------------------------

    def committed(self) -> int | None:
        """Return the number of the last load of this topic that was committed, None if there is none."""
        table = self.table()
        return None if table is None else self.number_in(table)

    def newest(self) -> StoredLoad | None:
        stored = super().newest()
        if stored is None and (number := self.committed()) is not None:
            stored = super().newest()  # another driver may have begun after the first look
        if stored is None and number is not None:
            raise OtherTarget(
                f"the table {self.location} has loads of {self._topic!r} up to number {number}, and no record of them "
                "in _flakelog: their rows would come twice. Name another table, or put _flakelog back"
            )
        return stored

    def adapt(self, rows: Rows) -> Rows:
        return _Cast(rows, table_schema(rows.schema))

    def schema_of(self, load: Load) -> pa.Schema:
        return self.schema if load.layout.decode is None else table_schema(super().schema_of(load))

    def new_columns(self, table: Any, load: Load) -> list[pa.Field]:
        """Return the nullable columns of a load that the table lacks, and that its loads did not have so far.

        Their commit adds them to the table.
        """
        before = self._ledger.plan(self.number_in(table) or 0)
        columns = self.schema_of(load if before is None else before).names
        return [field for field in self.schema_of(load) if field.nullable and field.name not in columns]

    def check(self, newest: StoredLoad | None) -> Target | None:
        table = self.table()
        before = None if newest is None else self.commit_before(newest)
        if newest is not None:
            self._check(table, newest.load.target, before)
        return None if table is None else Target(self.kind, self.location, self.id_of(table), before)

    def prepared(self, load: Load) -> Load:
        load = super().prepared(load)
        table = self.made(load.layout.partition_by)
        self.check_columns(table, load)
        return replace(load, target=load.target or Target(self.kind, self.location, self.id_of(table)))

    def commit(self, load: Load, receipt: Receipt) -> Commit | None:
        if not receipt.files:
            return None
        for _ in range(COMMIT_ATTEMPTS_MAX):
            self.check_chain(load)
            table = self.table()
            if table is None and load.target is None:  # a plan of an older version, which made the table here
                table = self.made(load.layout.partition_by)
            if load.target is not None:
                self._check(table, load.target, load.target.commit)
            number = self.number_in(table)
            if number is not None and number >= load.number:
                commit = self.commit_in(table, load.number) or Commit(load.number)
                self._check(table, load.target, commit)
                return commit
            self.try_commit(table, load, receipt)  # the table is read again in any case
        raise LoadError(
            f"{COMMIT_ATTEMPTS_MAX} commits of load {load.number} to {self.location} lost against other writers of the "
            "table; run it again when there are fewer"
        )

    def _check(self, table: Any | None, target: Target | None, commit: Commit | None) -> None:
        """Raise OtherTarget unless a table is the target, and has the commit."""
        if target is not None:
            check_same(target, None if table is None else Target(self.kind, self.location, self.id_of(table)))
        if commit is None:
            return
        if table is None:
            raise gone(self.kind, self.location)
        number = self.number_in(table)
        if number is None or number < commit.number:
            last = "no load" if number is None else f"loads up to {number} only"
            raise undone(self.kind, self.location, commit, f"it has {last}, so it was made again or put back")
        committed = commit if commit.at is not None else self.commit_in(table, commit.number)
        how = None if committed is None or committed.at is None else self.undone(table, committed.at)
        if how is not None:
            raise undone(self.kind, self.location, commit, how)

    def strays(self, named: Container[str]) -> Iterator[str]:
        return (name for name in self._files() if name not in named)

    def rows(self) -> int | None:
        table = self.table()
        return None if table is None else self.rows_in(table)

    def held(self, receipts: Sequence[Receipt]) -> set[int]:
        table = self.table()
        if table is None:
            return set()
        now, files = self.files_in(table), _files_of(receipts)
        held = {number for number, names in files.items() if not now.isdisjoint(names)}
        return held or follow(files, self.history_of(table).commits, now).held

    def contents(self, receipts: Sequence[Receipt]) -> Contents:
        """Follow the files of all loads through the table's history, unless all of them are there."""
        table = self.table()
        now = set() if table is None else self.files_in(table)
        problems, files = list(self.file_problems(receipts, kept=now)), _files_of(receipts)
        if table is None or now.issuperset(name for names in files.values() for name in names):
            return Contents(None if table is None else self.rows_in(table), tuple(problems))
        history = self.history_of(table)
        fates = follow(files, history.commits, now)
        notes = [_change_in_words(name, loads, fates) for name, loads in fates.changed.items()]
        lost: dict[str, list[int]] = {}
        for receipt in receipts:
            if receipt.files and receipt.number not in fates.held:
                reason = self._reason(table, receipt, history, fates.removed.get(receipt.number))
                lost.setdefault(reason, []).append(receipt.number)
        if unknown := lost.pop("", None):
            numbers = in_words(unknown)
            notes.append(f"the history of {self.location} no longer tells what took away the files of {numbers}")
        lost.pop(_CHOSEN, None)  # a note names that commit
        problems += [f"{self.location} lacks the messages of {in_words(loads)}: {why}" for why, loads in lost.items()]
        return Contents(self.rows_in(table), tuple(problems), tuple(notes))

    def _reason(self, table: Any, receipt: Receipt, history: History, removal: TableCommit | None) -> str:
        """Return what took away a load of which no file is left: _CHOSEN for another writer, "" if nothing tells it."""
        if removal is not None:
            return f"{removal.name} took away their files" if removal.kind is Kind.PUT_BACK else _CHOSEN
        commit = receipt.commit or Commit(receipt.number)
        at = commit.at or (self.commit_in(table, receipt.number) or commit).at
        how = None if at is None else self.undone(table, at)
        if how is not None:
            return how
        if history.reaches(None if at is None else self.place_in_history(at)):
            return "no commit of its history added or removed their files, so it was made again or replaced"
        return ""


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
            columns = [cast(column, field.type) for column, field in zip(batch.columns, self.schema, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _files_of(receipts: Sequence[Receipt]) -> dict[int, Mapping[str, DataFile]]:
    """Return the files of the loads that have some."""
    return {receipt.number: receipt.files for receipt in receipts if receipt.files}


def _change_in_words(name: str, loads: set[int], fates: Fates) -> str:
    emptied = loads - fates.held
    rest = f", and nothing is left of {in_words(emptied)}" if emptied else ""
    return f"{name} of another writer took away files with messages of {in_words(loads)}{rest}"


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
