"""Verification of loads into tables: what is missing is named with the commit that took it away."""

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles

from broker.client.offset_spec import AtId
from spark_bridge.load.ledger import LoadOptions, Since
from spark_bridge.load.load import Layout
from spark_bridge.load.target_check import OtherTarget
from spark_bridge.load.verify import verify
from spark_bridge.reading.row import DEFAULT, arrow_schema
from tests.spark_bridge.load.tables import (
    TABLE,
    as_an_older_version_wrote_it,
    catalog,
    delta,
    delta_rows,
    iceberg,
    iceberg_rows,
    offsets,
    table_of,
)
from tests.spark_bridge.load.world import ID, TOPIC, Topics

OTHERS = pa.Table.from_pylist([{"offset": 77, "partition": 9}], arrow_schema(DEFAULT))


class Rewrite(_OverwriteFiles):
    """A commit with the operation `replace`, which pyiceberg reads and does not write."""

    def _summary(self, properties):
        return Summary(Operation.REPLACE, **super()._summary(properties).additional_properties)


class Delta:
    """What users do with a Delta table, and loads into it."""

    driver = staticmethod(delta)
    rows = staticmethod(delta_rows)
    layout = Layout("delta")

    def table(self, path):
        return DeltaTable(path)

    def append(self, path):
        write_deltalake(path, OTHERS, mode="append")

    def delete(self, path, rows=None):
        self.table(path).delete(rows)

    def overwrite(self, path):
        write_deltalake(path, self.table(path).to_pyarrow_table(), mode="overwrite")

    def compact(self, path):
        assert self.table(path).optimize.compact()["numFilesRemoved"] > 1

    def vacuum(self, path):
        self.table(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

    def clean_up(self, path):
        """Forget the commits before now, as writers do after delta.logRetentionDuration."""
        self.append(path)
        self.table(path).create_checkpoint()
        for name in sorted((path / "_delta_log").glob("*.json"))[:-1]:
            name.unlink()

    def put_back(self, path, loads):
        """Bring back the state after this number of loads."""
        self.table(path).restore(loads)

    def make_again(self, path):
        for name in (path / "_delta_log").iterdir():
            name.unlink()
        DeltaTable.create(path, arrow_schema(DEFAULT))


class Iceberg:
    """What users do with an Iceberg table, and loads into it."""

    driver = staticmethod(iceberg)
    rows = staticmethod(iceberg_rows)
    layout = Layout("iceberg")

    def table(self, path):
        return table_of(path)

    def append(self, path):
        self.table(path).append(OTHERS)

    def delete(self, path, rows="offset >= 0"):
        self.table(path).delete(rows)

    def overwrite(self, path):
        self.table(path).overwrite(self.table(path).scan().to_arrow())

    def compact(self, path):
        """Do what rewrite_data_files of Spark does."""
        table, before = self.table(path), self.table(path)
        rows, files = table.scan().to_arrow(), [task.file for task in table.scan().plan_files()]
        table.append(rows)
        new = [task.file for task in table.scan().plan_files() if task.file not in files]
        table.manage_snapshots().rollback_to_snapshot(before.current_snapshot().snapshot_id).commit()
        with table.transaction() as change, Rewrite(Operation.OVERWRITE, change, table.io) as rewrite:
            for file in files:
                rewrite.delete_data_file(file)
            for file in new:
                rewrite.append_data_file(file)
        assert self.table(path).current_snapshot().summary.operation == Operation.REPLACE

    def vacuum(self, path):
        self.clean_up(path)

    def clean_up(self, path):
        self.append(path)
        table = self.table(path)
        old = {snapshot.snapshot_id for snapshot in table.snapshots()} - {table.current_snapshot().snapshot_id}
        table.maintenance.expire_snapshots().by_ids(list(old)).commit()

    def put_back(self, path, loads):
        table = self.table(path)
        table.manage_snapshots().rollback_to_snapshot(table.snapshots()[loads - 1].snapshot_id).commit()

    def make_again(self, path):
        catalog(path).drop_table(TABLE)
        catalog(path).create_table(TABLE, arrow_schema(DEFAULT))


@pytest.fixture(params=[Delta(), Iceberg()], ids=["delta", "iceberg"])
def kind(request):
    return request.param


def loaded(kind, path, *numbers):
    log = Topics(0)
    for number in numbers:
        load(kind, path, log, number)
    return log


def load(kind, path, log, number):
    log.append(0, number)
    return kind.driver(path, log).run()


def verified(kind, path):
    return verify(kind.driver(path, Topics(0)).sink)


def figures(verification):
    return verification.rows, verification.target_rows, verification.problems


@pytest.mark.parametrize("use", ["append", "compact", "overwrite", "delete", "vacuum", "clean_up"])
@pytest.mark.parametrize("age", ["new", "old"])
def test_what_others_do_with_a_table_every_day_is_no_problem_and_its_rows_are_counted(tmp_path, kind, use, age):
    loaded(kind, tmp_path, 5, 3)
    if age == "old":
        as_an_older_version_wrote_it(tmp_path)
    getattr(kind, use)(tmp_path)
    assert figures(verified(kind, tmp_path)) == (8, len(kind.rows(tmp_path)), ())


@pytest.mark.parametrize("age", ["new", "old"])
def test_compacted_loads_whose_history_is_forgotten_are_a_note(tmp_path, kind, age):
    loaded(kind, tmp_path, 5, 3)
    kind.compact(tmp_path)
    kind.vacuum(tmp_path)
    kind.clean_up(tmp_path)
    if age == "old":
        as_an_older_version_wrote_it(tmp_path)
    verification = verified(kind, tmp_path)
    assert verification.problems == () and verification.target_rows >= 8
    (note,) = verification.notes
    assert "no longer tells what took away the files of loads 0 to 1" in note


def test_a_delete_of_another_writer_is_a_note_that_names_its_commit(tmp_path, kind):
    loaded(kind, tmp_path, 5, 3)
    kind.compact(tmp_path)
    kind.delete(tmp_path, "\"offset\" = 2" if isinstance(kind, Delta) else "offset = 2")
    verification = verified(kind, tmp_path)
    assert figures(verification) == (8, 7, ())
    (note,) = verification.notes
    last = "version 4 (DELETE)" if isinstance(kind, Delta) else table_of(tmp_path).current_snapshot().snapshot_id
    assert str(last) in note and "of another writer took away files with messages of loads 0 to 1" in note
    kind.delete(tmp_path)
    assert "and nothing is left of loads 0 to 1" in verified(kind, tmp_path).notes[-1]


@pytest.mark.parametrize("age", ["new", "old"])
def test_a_load_that_was_put_back_is_named_with_the_commit_that_removed_it(tmp_path, kind, age):
    loaded(kind, tmp_path, 5, 3)
    if age == "old":
        as_an_older_version_wrote_it(tmp_path)
    kind.put_back(tmp_path, 1)
    verification = verified(kind, tmp_path)
    assert (verification.rows, verification.target_rows) == (8, 5)
    (problem,) = [problem for problem in verification.problems if "lacks the messages of load 1" in problem]
    if isinstance(kind, Delta):
        assert "version 3 (RESTORE) took away their files" in problem
    else:
        first = table_of(tmp_path).current_snapshot().snapshot_id
        assert f"rolled back or replaced, to snapshot {first} at " in problem


def test_a_load_that_was_put_back_after_a_compaction_is_named(tmp_path, kind):
    """The file that a RESTORE takes away is not the load's own, but the one with its rows."""
    loaded(kind, tmp_path, 5, 3)
    kind.compact(tmp_path)
    kind.put_back(tmp_path, 1)
    assert any("lacks the messages of load 1" in problem for problem in verified(kind, tmp_path).problems)
    assert not any("load 0" in problem for problem in verified(kind, tmp_path).problems)


@pytest.mark.parametrize("use", ["make_again", "put_back"])
def test_a_hole_that_an_older_version_left_is_named(tmp_path, kind, use):
    """Versions before load.target went on after a table was made again or put back."""
    log = loaded(kind, tmp_path, 2, 500)
    kind.make_again(tmp_path) if use == "make_again" else kind.put_back(tmp_path, 1)
    run = kind.driver(tmp_path, log)
    run.sink.check = run.sink._check = lambda *arguments: None
    log.append(0, 50)
    run.run()
    as_an_older_version_wrote_it(tmp_path)
    rows_left = 50 if use == "make_again" else 52
    verification = verified(kind, tmp_path)
    assert (verification.rows, verification.target_rows) == (552, rows_left)
    (problem,) = verification.problems
    assert f"lacks the messages of load{'s 0 to 1' if use == 'make_again' else ' 1'}: " in problem


def test_a_new_chain_is_refused_while_a_table_that_was_put_back_has_messages_of_the_old_one(tmp_path, kind):
    log = loaded(kind, tmp_path, 5, 3)
    kind.put_back(tmp_path, 1)
    options = LoadOptions(TOPIC, layout=kind.layout, start_over=True)
    with pytest.raises(OtherTarget, match="still has messages of load 0, .* remove them first, or give --since a time"):
        kind.driver(tmp_path, log, options).run()
    assert kind.rows(tmp_path) == offsets(log)[:5]


def test_a_new_chain_in_a_table_that_was_put_back_may_begin_after_the_rows_that_stay(tmp_path, kind):
    log = loaded(kind, tmp_path, 5, 3)
    kind.put_back(tmp_path, 1)
    options = LoadOptions(TOPIC, since=Since(AtId(ID + 5)), layout=kind.layout, start_over=True)
    outcome = kind.driver(tmp_path, log, options).run()
    assert (outcome.rows, outcome.rows_before_chain) == (3, 5)
    assert kind.rows(tmp_path) == offsets(log)
    assert figures(verified(kind, tmp_path)) == (3, 8, ())


def test_a_new_chain_is_refused_while_a_compacted_table_has_the_messages(tmp_path, kind):
    log = loaded(kind, tmp_path, 5, 3)
    kind.compact(tmp_path)
    options = LoadOptions(TOPIC, layout=kind.layout, start_over=True)
    with pytest.raises(OtherTarget, match="still has messages of load 1"):
        kind.driver(tmp_path, log, options).run()
    kind.delete(tmp_path)
    assert kind.driver(tmp_path, log, options).run().rows == 8


def test_a_beginning_that_no_message_has_reached_is_kept_in_a_table(tmp_path, kind):
    log = Topics(3)
    options = LoadOptions(TOPIC, since=Since(AtId(ID + 99)), layout=kind.layout)
    assert kind.driver(tmp_path, log, options).run().rows == 0
    log.append(0, 2)
    kind.driver(tmp_path, log).run()
    assert kind.rows(tmp_path) == offsets(log)[3:]
    assert figures(verified(kind, tmp_path)) == (2, 2, ())
