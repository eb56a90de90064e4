"""Loads into a Delta table: each row once, whatever is killed and whoever runs beside."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_bridge.load.delta_log import restored
from spark_bridge.load.ledger import LoadOptions
from spark_bridge.load.load import Layout, LoadError
from spark_bridge.load.target_check import OtherTarget
from spark_bridge.load.verify import verify
from spark_bridge.reading.row import DEFAULT, arrow_schema
from tests.spark_bridge.load.tables import Killed, as_an_older_version_wrote_it, delta, delta_rows, offsets, record_of
from tests.spark_bridge.load.world import TOPIC, Topics


class Named:
    """The Rows port: one batch of names."""

    skipped = ()

    def __init__(self, schema, names):
        self.schema = schema
        self._names = names

    def __iter__(self):
        yield pa.RecordBatch.from_arrays(
            [pa.array(self._names), pa.array(range(len(self._names)), pa.int64())], schema=self.schema
        )


def test_loads_append_to_one_table_which_all_readers_read(tmp_path):
    log = Topics(5, 3)
    path = tmp_path / "flights"
    delta(path, log).run()
    log.append(0, 4)
    delta(path, log).run()
    assert delta_rows(path) == offsets(log)
    assert DeltaTable(path).transaction_version("flakelog/t") == 1
    assert polars.read_delta(str(path)).height == 12
    uris = DeltaTable(path).file_uris()
    total = duckdb.sql(f"SELECT sum(\"offset\") AS total FROM read_parquet({uris})").fetchall()
    assert total == [(sum(offset for _, offset in offsets(log)),)]


def test_nothing_new_makes_no_commit(tmp_path):
    log = Topics(5)
    delta(tmp_path / "t", log).run()
    version = DeltaTable(tmp_path / "t").version()
    assert delta(tmp_path / "t", log).run().loads == []
    assert DeltaTable(tmp_path / "t").version() == version


def steps_of_a_run(tmp_path):
    seen = []
    delta(tmp_path / "count", Topics(3, 2), step=seen.append).run()
    return seen


def test_a_run_that_is_killed_at_any_step_is_finished_by_the_next(tmp_path):
    for kill_at in range(len(steps_of_a_run(tmp_path))):
        log, path, seen = Topics(3, 2), tmp_path / f"kill {kill_at}", []

        def step(step_name):
            seen.append(step_name)
            if len(seen) == kill_at + 1:
                raise Killed

        with pytest.raises(Killed):
            delta(path, log, step=step).run()
        log.append(1, 2)
        delta(path, log).run()
        delta(path, log).run()
        assert delta_rows(path) == offsets(log), f"killed at {seen[-1]}"


def test_a_second_driver_that_runs_at_any_step_of_the_first_adds_nothing_twice(tmp_path):
    for meet_at in range(len(steps_of_a_run(tmp_path))):
        log, path, seen = Topics(3, 2), tmp_path / f"meet {meet_at}", []

        def step(step_name):
            seen.append(step_name)
            if len(seen) == meet_at + 1:
                delta(path, log, name="b").run()

        delta(path, log, step=step).run()
        delta(path, log).run()
        assert delta_rows(path) == offsets(log), f"the second ran at {seen[meet_at]}"


def test_files_that_another_driver_committed_and_compaction_replaced_are_not_added_again(tmp_path):
    """Adding a file that is there changes nothing; adding one that was compacted would bring its rows back."""
    log, path, reads = Topics(3), tmp_path / "t", []
    delta(path, log).run()
    log.append(0, 2)

    def step(step_name):
        if step_name == "table read":
            reads.append(step_name)
            if len(reads) == 3:  # the table from which the commit starts
                delta(path, log, name="b").run()
                assert DeltaTable(path).optimize.compact()["numFilesRemoved"] == 2

    delta(path, log, step=step).run()
    assert len(reads) == 4, "the commit failed, and the table was read again"
    assert delta_rows(path) == offsets(log)


@pytest.mark.parametrize("by", ["day", "hour", "partition", "topic"])
def test_partition_by_makes_a_partition_column(tmp_path, by):
    log, path = Topics(100), tmp_path / "t"
    delta(path, log, LoadOptions(TOPIC, layout=Layout("delta", by))).run()
    table = DeltaTable(path)
    assert table.metadata().partition_columns == [by]
    read = table.to_pyarrow_table()
    assert sorted(read["offset"].to_pylist()) == list(range(100))
    expected = {"day": 2, "hour": 34, "partition": 1, "topic": 1}[by]
    assert len(set(read[by].to_pylist())) == expected
    if by == "day":
        assert [at.date() for at in read["timestamp"].to_pylist()] == read["day"].to_pylist()


def test_partition_values_may_have_any_character(tmp_path):
    schema = pa.schema([("name", pa.string()), ("offset", pa.int64())])
    names = ["a/b %c:ü", "", None, "x=y", ".."]
    log, path = Topics(len(names)), tmp_path / "t"
    driver = delta(path, log, LoadOptions(TOPIC, layout=Layout("delta", "name")), schema=schema)
    driver.source.rows = lambda load, part: Named(schema, names)
    driver.run()
    read = DeltaTable(path).to_pyarrow_table().to_pylist()
    assert sorted((row["offset"], row["name"]) for row in read) == [
        (0, "a/b %c:ü"), (1, None), (2, None), (3, "x=y"), (4, ".."),
    ]  # fmt: skip
    assert verify(driver.sink).problems == ()


def test_a_partition_column_of_bytes_is_refused(tmp_path):
    log = Topics(4)
    with pytest.raises(LoadError, match="a table is divided by text, whole numbers, true and false, or dates"):
        delta(tmp_path / "t", log, LoadOptions(TOPIC, layout=Layout("delta", "key"))).run()


def test_rows_are_appended_to_a_table_of_others_whose_columns_fit(tmp_path):
    log, path = Topics(4), tmp_path / "t"
    DeltaTable.create(path, arrow_schema(DEFAULT))
    delta(path, log).run()
    assert delta_rows(path) == offsets(log)


def test_a_table_of_others_whose_columns_do_not_fit_is_refused_by_name(tmp_path):
    log, path = Topics(4), tmp_path / "t"
    DeltaTable.create(path, arrow_schema(["offset"]))
    with pytest.raises(LoadError, match="has no such column, the rows have key"):
        delta(path, log).run()
    assert DeltaTable(path).version() == 0


def test_a_table_whose_record_of_loads_is_gone_is_refused(tmp_path):
    log, path = Topics(4), tmp_path / "t"
    delta(path, log).run()
    for name in (path / "_flakelog").rglob("*.json"):
        name.unlink()
    with pytest.raises(LoadError):
        delta(path, log).run()
    for name in path.glob("*.parquet"):
        name.unlink()
    with pytest.raises(LoadError, match="has loads of 't' up to number 0, and no record of them"):
        delta(path, log).run()


def test_verification_names_a_file_that_the_table_has_and_the_directory_does_not(tmp_path):
    log, path = Topics(4), tmp_path / "t"
    delta(path, log).run()
    sink = delta(path, log).sink
    receipt = sink.newest().receipt
    assert verify(sink).problems == ()
    (name,) = receipt.files
    (path / name).unlink()
    assert verify(sink).problems == (f"{name} is gone",)


# --- another table of that name, or one that was put back ------------------------------------------------------------


def loaded(path, *numbers):
    """Return a log whose messages came into the table by loads of these numbers of messages."""
    log = Topics(0)
    for number in numbers:
        log.append(0, number)
        delta(path, log).run()
    return log


def refused(path, log, match):
    """Append a message, and assert that its load is refused and writes nothing."""
    log.append(0, 1)
    before, exists = record_of(path), DeltaTable.is_deltatable(str(path))
    with pytest.raises(OtherTarget, match=match) as refusal:
        delta(path, log).run()
    assert "Name a new place, or begin a new chain" in str(refusal.value) and "--start-over" in str(refusal.value)
    assert record_of(path) == before and DeltaTable.is_deltatable(str(path)) == exists


def lose_log(path):
    shutil.rmtree(path / "_delta_log")


def make_again(path):
    lose_log(path)
    DeltaTable.create(path, arrow_schema(DEFAULT))


def start_over(path, log):
    return delta(path, log, LoadOptions(TOPIC, layout=Layout("delta"), start_over=True))


DAMAGES = [Path.unlink, lambda path: path.write_bytes(b"null"), lambda path: path.write_bytes(b"{")]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_table_whose_log_is_damaged_is_named(tmp_path, damage):
    log = loaded(tmp_path, 5, 3)
    damage(tmp_path / f"_delta_log/{1:020d}.json")
    for use in (delta(tmp_path, log).run, lambda: verify(delta(tmp_path, log).sink)):
        with pytest.raises(LoadError, match="the Delta table .* cannot be read: ") as error:
            use()
        assert "unknown>" not in str(error.value), "the rest of the error is a backtrace"


@pytest.mark.parametrize("age", ["new", "old"])
def test_a_table_without_its_log_is_refused_and_not_made_again(tmp_path, age):
    log = loaded(tmp_path, 5)
    if age == "old":
        as_an_older_version_wrote_it(tmp_path)
    lose_log(tmp_path)
    refused(tmp_path, log, "the Delta table .* is gone")


@pytest.mark.parametrize("age", ["new", "old"])
def test_a_table_that_was_made_again_is_refused(tmp_path, age):
    log = loaded(tmp_path, 5)
    if age == "old":
        as_an_older_version_wrote_it(tmp_path)
    make_again(tmp_path)
    refused(tmp_path, log, "made again")


@pytest.mark.parametrize("age", ["new", "old"])
def test_a_table_that_was_restored_to_an_older_version_is_refused(tmp_path, age):
    log = loaded(tmp_path, 5, 3)
    if age == "old":
        as_an_older_version_wrote_it(tmp_path)
    DeltaTable(tmp_path).restore(1)
    assert len(delta_rows(tmp_path)) == 5
    refused(tmp_path, log, "no longer has load 1: RESTORE put the table back to version 1 in version 3")
    write_deltalake(tmp_path, DeltaTable(tmp_path).to_pyarrow_table(), mode="append")
    refused(tmp_path, log, "RESTORE put the table back to version 1 in version 3")


def test_a_table_that_was_restored_to_a_time_is_refused(tmp_path):
    log = loaded(tmp_path, 5, 3)
    made_ms = DeltaTable(tmp_path).history()[1]["timestamp"]
    DeltaTable(tmp_path).restore(datetime.fromtimestamp(made_ms / 1000, UTC) + timedelta(microseconds=500))
    refused(tmp_path, log, "RESTORE put the table back")


def test_a_table_whose_log_was_put_back_from_a_copy_is_refused(tmp_path):
    log = loaded(tmp_path / "t", 5)
    shutil.copytree(tmp_path / "t/_delta_log", tmp_path / "copy")
    log.append(0, 3)
    delta(tmp_path / "t", log).run()
    lose_log(tmp_path / "t")
    shutil.copytree(tmp_path / "copy", tmp_path / "t/_delta_log")
    refused(tmp_path / "t", log, "no longer has load 1: it has loads up to 0 only")


def test_a_table_that_is_made_again_during_a_load_gets_nothing_of_it(tmp_path):
    log = loaded(tmp_path, 5)
    log.append(0, 2)
    run = delta(tmp_path, log)
    written = run.sink.write

    def write(*arguments):
        make_again(tmp_path)
        return written(*arguments)

    run.sink.write = write
    with pytest.raises(OtherTarget, match="is not the one of the earlier loads"):
        run.run()
    assert delta_rows(tmp_path) == []


def made(operation, number, time_ms=0, /, **parameters):
    """Return a commit as a table's history has it."""
    return {"operation": operation, "version": number, "timestamp": time_ms, "operationParameters": parameters}


@pytest.mark.parametrize(
    ("commits", "how"),
    [
        ([made("WRITE", 4)], None),
        ([made("RESTORE", 4, version="2")], "RESTORE put the table back to version 2 in version 4"),
        ([made("RESTORE", 4, version="3")], None),
        ([made("RESTORE", 4, version="2"), made("WRITE", 5), made("RESTORE", 6, version="3")], None),
        (
            [made("RESTORE", 4, version="2"), made("RESTORE", 5, version="3"), made("RESTORE", 6, version="4")],
            "RESTORE put the table back to version 2 in version 4",
        ),
        ([made("WRITE", 4, 40), made("RESTORE", 5, 50, datetime="45")], None),
        ([made("RESTORE", 4, 40, timestamp="1970-01-01T00:00:00.020+00:00")], "version 2 in version 4"),
        ([made("RESTORE", 4, 40, version=None, timestamp="1970-01-01T00:00:00.035+00:00")], None),
        ([made("RESTORE", 4, 40)], "version 2 in version 4"),
    ],
)
def test_a_restore_undoes_the_commits_after_its_version(commits, how):
    restore = restored([made("WRITE", 3, 30), *commits], 3)
    assert restore is None if how is None else how in restore


def optimize_and_vacuum(path):
    table = DeltaTable(path)
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def append_of_another(path):
    write_deltalake(path, pa.Table.from_pylist([{"offset": 77, "partition": 9}], arrow_schema(DEFAULT)), mode="append")


def restore_to_the_load(path):
    version = DeltaTable(path).version()
    append_of_another(path)
    DeltaTable(path).restore(version)


def checkpoint(path):
    append_of_another(path)
    DeltaTable(path).create_checkpoint()
    DeltaTable(path).cleanup_metadata()


EVERYDAY = {
    "append": append_of_another,
    "delete of all": lambda path: DeltaTable(path).delete(),
    "delete of some": lambda path: DeltaTable(path).delete('"offset" = 2'),
    "rewritten files": lambda path: write_deltalake(path, DeltaTable(path).to_pyarrow_table(), mode="overwrite"),
    "OPTIMIZE and VACUUM": optimize_and_vacuum,
    "restored to the load": restore_to_the_load,
    "checkpoint and clean log": checkpoint,
}


@pytest.mark.parametrize("age", ["new", "old"])
@pytest.mark.parametrize("use", EVERYDAY)
def test_what_others_do_with_a_table_every_day_stays_allowed(tmp_path, use, age):
    log = loaded(tmp_path, 5, 3)
    if age == "old":
        as_an_older_version_wrote_it(tmp_path)
    EVERYDAY[use](tmp_path)
    before = delta_rows(tmp_path)
    for _ in range(2):
        log.append(0, 4)
        assert delta(tmp_path, log).run().rows == 4
    assert delta_rows(tmp_path) == sorted([*before, *offsets(log)[8:]])


def test_a_record_of_an_older_version_gets_the_identity_of_its_table_at_the_next_load(tmp_path):
    log = loaded(tmp_path, 5)
    as_an_older_version_wrote_it(tmp_path)
    log.append(0, 3)
    delta(tmp_path, log).run()
    newest = delta(tmp_path, log).sink.newest()
    assert newest.load.target.id == DeltaTable(tmp_path).metadata().id
    assert (newest.load.target.commit.number, newest.receipt.commit.at) == (0, {"version": 2})


def test_a_plan_that_an_older_version_left_is_finished_and_makes_its_table(tmp_path):
    log = Topics(5)
    run = delta(tmp_path, log)
    run.sink.save(run.plan(None, run.options))
    assert delta(tmp_path, log).run().rows == 5
    assert delta_rows(tmp_path) == offsets(log)


@pytest.mark.parametrize("lose", [lose_log, make_again, lambda path: DeltaTable(path).restore(0)])
def test_a_new_chain_takes_all_messages_again_and_keeps_the_old_record_and_files(tmp_path, lose):
    log = loaded(tmp_path, 5, 3)
    lose(tmp_path)
    record, files = record_of(tmp_path), set(tmp_path.glob("t-*.parquet"))
    log.append(0, 1)
    assert start_over(tmp_path, log).run().rows == 9
    assert delta_rows(tmp_path) == offsets(log)
    assert record.items() <= record_of(tmp_path).items()
    new = set(tmp_path.glob("t-*.parquet")) - files
    assert [path.name for path in new] == [f"t-00000-{0:020d}-{9:020d}-c1.parquet"]
    log.append(0, 2)
    assert delta(tmp_path, log).run().rows == 2
    assert delta_rows(tmp_path) == offsets(log)
    assert verify(delta(tmp_path, log).sink).problems == ()
    DeltaTable(tmp_path).restore(0)
    refused(tmp_path, log, "no longer has load 1: RESTORE")


def test_a_new_chain_is_refused_while_the_table_has_the_messages_of_the_old_one(tmp_path):
    log = loaded(tmp_path, 5, 3)
    with pytest.raises(OtherTarget, match="still has messages of load 1, and a new chain would bring them twice"):
        start_over(tmp_path, log).run()
    DeltaTable(tmp_path).delete()
    assert start_over(tmp_path, log).run().rows == 8
    assert delta_rows(tmp_path) == offsets(log)


def test_a_record_that_is_gone_is_missed_in_the_table_of_a_new_chain_too(tmp_path):
    log = loaded(tmp_path, 5)
    make_again(tmp_path)
    start_over(tmp_path, log).run()
    shutil.rmtree(tmp_path / "_flakelog")
    for name in tmp_path.glob("*.parquet"):
        name.unlink()
    with pytest.raises(LoadError, match="has loads of 't' up to number 0, and no record of them"):
        delta(tmp_path, log).run()
