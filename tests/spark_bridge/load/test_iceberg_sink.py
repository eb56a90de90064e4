"""Loads into an Iceberg table of a catalog in SQLite: each row once, whatever is killed and whoever runs beside."""

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.table.update import RemoveSnapshotRefUpdate
from pyiceberg.types import LongType

from broker.client.offset_spec import AtId
from spark_bridge.load.iceberg_sink import IcebergSink
from spark_bridge.load.ledger import LoadOptions, Since
from spark_bridge.load.load import Layout, LoadError
from spark_bridge.load.target_check import OtherTarget
from spark_bridge.load.verify import verify
from spark_bridge.reading.row import DEFAULT, arrow_schema
from tests.spark_bridge.load.tables import (
    TABLE,
    Killed,
    as_an_older_version_wrote_it,
    catalog,
    iceberg,
    iceberg_rows,
    offsets,
    record_of,
    table_of,
)
from tests.spark_bridge.load.world import ID, TOPIC, Attempts, Topics


def test_loads_append_to_one_table_which_all_readers_read(tmp_path):
    log = Topics(5, 3)
    iceberg(tmp_path, log).run()
    log.append(0, 4)
    iceberg(tmp_path, log).run()
    assert iceberg_rows(tmp_path) == offsets(log)
    assert table_of(tmp_path).properties["flakelog.load.t"] == "1"
    assert table_of(tmp_path).scan().to_polars().height == 12
    rows = table_of(tmp_path).scan().to_arrow()  # noqa: F841  (DuckDB reads it by its name)
    assert duckdb.sql('SELECT max("offset") AS last FROM rows').fetchall() == [(8,)]


def test_a_look_at_an_empty_table_does_not_divide_it(tmp_path):
    schema = arrow_schema(DEFAULT)
    catalog(tmp_path).create_table(TABLE, schema)
    sink = IcebergSink(catalog(tmp_path), TABLE, TOPIC, Attempts("a"), schema, "day")
    assert sink.newest() is None and not table_of(tmp_path).spec().fields
    options = LoadOptions(TOPIC, layout=Layout("iceberg", "day"))
    iceberg(tmp_path, Topics(3), options).run()
    assert [field.name for field in table_of(tmp_path).spec().fields] == ["day"]


def steps_of_a_run(tmp_path):
    seen = []
    iceberg(tmp_path / "count", Topics(3, 2), step=seen.append).run()
    return seen


def test_a_run_that_is_killed_at_any_step_is_finished_by_the_next(tmp_path):
    for kill_at in range(len(steps_of_a_run(tmp_path))):
        log, path, seen = Topics(3, 2), tmp_path / f"kill {kill_at}", []

        def step(step_name):
            seen.append(step_name)
            if len(seen) == kill_at + 1:
                raise Killed

        with pytest.raises(Killed):
            iceberg(path, log, step=step).run()
        log.append(1, 2)
        iceberg(path, log).run()
        iceberg(path, log).run()
        assert iceberg_rows(path) == offsets(log), f"killed at {seen[-1]}"


def test_a_second_driver_that_runs_at_any_step_of_the_first_adds_nothing_twice(tmp_path):
    for meet_at in range(len(steps_of_a_run(tmp_path))):
        log, path, seen = Topics(3, 2), tmp_path / f"meet {meet_at}", []

        def step(step_name):
            seen.append(step_name)
            if len(seen) == meet_at + 1:
                iceberg(path, log, name="b").run()

        iceberg(path, log, step=step).run()
        iceberg(path, log).run()
        assert iceberg_rows(path) == offsets(log), f"the second ran at {seen[meet_at]}"


def test_a_commit_that_loses_against_another_writer_is_made_anew(tmp_path):
    log, other = Topics(3), pa.Table.from_pylist([{"offset": 77, "partition": 9}], arrow_schema(DEFAULT))

    def step(step_name):
        made = step_name == "table read" and catalog(tmp_path).table_exists(TABLE)
        if made and table_of(tmp_path).current_snapshot() is None:
            table_of(tmp_path).append(other)

    iceberg(tmp_path, log, step=step).run()
    assert iceberg_rows(tmp_path) == [*offsets(log), (9, 77)]


@pytest.mark.parametrize(("by", "folders"), [("day", 2), ("hour", 34), ("partition", 1), ("topic", 1)])
def test_partition_by_divides_the_table(tmp_path, by, folders):
    log = Topics(100)
    iceberg(tmp_path, log, LoadOptions(TOPIC, layout=Layout("iceberg", by))).run()
    table = table_of(tmp_path)
    assert [field.name for field in table.spec().fields] == [by]
    assert len(table.inspect.partitions()) == folders
    assert sorted(table.scan(row_filter="offset >= 50").to_arrow()["offset"].to_pylist()) == list(range(50, 100))


def test_a_table_that_is_divided_otherwise_is_refused(tmp_path):
    iceberg(tmp_path, Topics(4)).run()
    with pytest.raises(LoadError, match="is divided by no column; --partition-by must name the same"):
        iceberg(tmp_path, Topics(4), LoadOptions(TOPIC, layout=Layout("iceberg", "day"))).run()


def test_a_table_of_others_whose_columns_do_not_fit_is_refused(tmp_path):
    catalog(tmp_path).create_table(TABLE, arrow_schema(["offset"]))
    with pytest.raises(LoadError, match="the Iceberg table shop.flights has no such column, the rows have key"):
        iceberg(tmp_path, Topics(4)).run()
    assert table_of(tmp_path).current_snapshot() is None


def test_a_table_whose_record_of_loads_is_gone_is_refused(tmp_path):
    log = Topics(4)
    iceberg(tmp_path, log).run()
    for name in tmp_path.rglob("*.*"):
        if "_flakelog" in str(name) or name.suffix == ".parquet" and name.is_file():
            name.unlink()
    with pytest.raises(LoadError, match="has loads of 't' up to number 0, and no record of them"):
        iceberg(tmp_path, log).run()


def test_verification_names_a_file_that_the_table_has_and_the_directory_does_not(tmp_path):
    iceberg(tmp_path, Topics(4)).run()
    sink = iceberg(tmp_path, Topics(4)).sink
    receipt = sink.newest().receipt
    assert verify(sink).problems == ()
    (name,) = receipt.files
    next(tmp_path.rglob(name)).unlink()
    assert verify(sink).problems == (f"{name} is gone",)


# --- another table of that name, or one that was put back ------------------------------------------------------------


def loaded(path, *numbers):
    """Return a log whose messages came into the table by loads of these numbers of messages."""
    log = Topics(0)
    for number in numbers:
        log.append(0, number)
        iceberg(path, log).run()
    return log


def refused(path, log, match):
    """Append a message, and assert that its load is refused and writes nothing."""
    log.append(0, 1)
    before, exists = record_of(path), catalog(path).table_exists(TABLE)
    with pytest.raises(OtherTarget, match=match) as refusal:
        iceberg(path, log).run()
    assert "Name a new place, or begin a new chain" in str(refusal.value) and "--start-over" in str(refusal.value)
    assert record_of(path) == before and catalog(path).table_exists(TABLE) == exists


def make_again(path):
    catalog(path).drop_table(TABLE)
    catalog(path).create_table(TABLE, arrow_schema(DEFAULT))


def start_over(path, log, **options):
    return iceberg(path, log, LoadOptions(TOPIC, layout=Layout("iceberg"), start_over=True, **options))


@pytest.mark.parametrize("age", ["new", "old"])
def test_a_dropped_table_is_refused_and_not_made_again(tmp_path, age):
    log = loaded(tmp_path, 5)
    if age == "old":
        as_an_older_version_wrote_it(tmp_path)
    catalog(tmp_path).drop_table(TABLE)
    refused(tmp_path, log, "the Iceberg table shop.flights is gone")


def test_a_table_that_was_made_again_is_refused(tmp_path):
    log = loaded(tmp_path, 5)
    make_again(tmp_path)
    refused(tmp_path, log, "is not the one of the earlier loads .*it was dropped and made again")


def test_a_table_that_was_made_again_is_refused_with_a_record_of_an_older_version(tmp_path):
    log = loaded(tmp_path, 5)
    as_an_older_version_wrote_it(tmp_path)
    make_again(tmp_path)
    refused(tmp_path, log, "no longer has load 0: it has no load, so it was made again or put back")


@pytest.mark.parametrize("age", ["new", "old"])
def test_a_table_that_was_rolled_back_before_the_last_load_is_refused(tmp_path, age):
    log = loaded(tmp_path, 5, 3)
    if age == "old":
        as_an_older_version_wrote_it(tmp_path)
    table = table_of(tmp_path)
    table.manage_snapshots().rollback_to_snapshot(table.snapshots()[0].snapshot_id).commit()
    assert len(iceberg_rows(tmp_path)) == 5
    refused(tmp_path, log, "no longer has load 1: its current snapshot .* so the table was rolled back")
    table_of(tmp_path).append(table_of(tmp_path).scan().to_arrow())
    refused(tmp_path, log, "was rolled back or replaced")


def test_a_table_that_was_replaced_is_refused(tmp_path):
    """CREATE OR REPLACE TABLE keeps the identity and the old snapshots, and begins a history of its own."""
    log = loaded(tmp_path, 5)
    table = table_of(tmp_path)
    with table.transaction() as change:
        change._apply((RemoveSnapshotRefUpdate(ref_name="main"),))
    append_of_another(table_of(tmp_path))
    assert table_of(tmp_path).current_snapshot().parent_snapshot_id is None
    refused(tmp_path, log, "was rolled back or replaced")


def test_a_rolled_back_load_is_missed_after_its_snapshot_expired(tmp_path):
    log = loaded(tmp_path, 5, 3)
    first, last = table_of(tmp_path).snapshots()
    table_of(tmp_path).manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    table_of(tmp_path).append(table_of(tmp_path).scan().to_arrow())
    table_of(tmp_path).maintenance.expire_snapshots().by_id(last.snapshot_id).commit()
    refused(tmp_path, log, "was rolled back or replaced")


def test_a_table_that_is_made_again_during_a_load_gets_nothing_of_it(tmp_path):
    log = loaded(tmp_path, 5)
    log.append(0, 2)
    source = iceberg(tmp_path, log)
    written = source.sink.write

    def write(*arguments):
        make_again(tmp_path)
        return written(*arguments)

    source.sink.write = write
    with pytest.raises(OtherTarget, match="is not the one of the earlier loads"):
        source.run()
    assert iceberg_rows(tmp_path) == []


def test_a_load_that_was_rolled_back_before_its_killed_run_is_finished_is_refused(tmp_path):
    log = loaded(tmp_path, 5)
    log.append(0, 2)

    def kill(step_name):
        if step_name == "committed":
            raise Killed

    with pytest.raises(Killed):
        iceberg(tmp_path, log, step=kill).run()
    table = table_of(tmp_path)
    table.manage_snapshots().rollback_to_snapshot(table.snapshots()[0].snapshot_id).commit()
    with pytest.raises(OtherTarget, match="no longer has load 1"):
        iceberg(tmp_path, log).run()


def append_of_another(table):
    table.append(pa.Table.from_pylist([{"offset": 77, "partition": 9}], arrow_schema(DEFAULT)))


def expire_the_load(table):
    append_of_another(table)
    table.maintenance.expire_snapshots().by_ids([snapshot.snapshot_id for snapshot in table.snapshots()[:-1]]).commit()


def roll_back_to_the_load(table):
    last = table.current_snapshot().snapshot_id
    append_of_another(table)
    table.manage_snapshots().rollback_to_snapshot(last).commit()


EVERYDAY = {
    "append": append_of_another,
    "delete of all": lambda table: table.delete("offset >= 0"),
    "delete of some": lambda table: table.delete("offset = 2"),
    "rewritten files": lambda table: table.overwrite(table.scan().to_arrow()),
    "expired snapshots": expire_the_load,
    "rolled back to the load": roll_back_to_the_load,
    "another column": lambda table: table.update_schema().add_column("more", LongType()).commit(),
}


@pytest.mark.parametrize("age", ["new", "old"])
@pytest.mark.parametrize("use", EVERYDAY)
def test_what_others_do_with_a_table_every_day_stays_allowed(tmp_path, use, age):
    log = loaded(tmp_path, 5, 3)
    if age == "old":
        as_an_older_version_wrote_it(tmp_path)
    EVERYDAY[use](table_of(tmp_path))
    before = iceberg_rows(tmp_path)
    for _ in range(2):
        log.append(0, 4)
        assert iceberg(tmp_path, log).run().rows == 4
    new = offsets(log)[8:]
    assert iceberg_rows(tmp_path) == sorted([*before, *new])


def test_a_record_of_an_older_version_gets_the_identity_of_its_table_at_the_next_load(tmp_path):
    log = loaded(tmp_path, 5)
    as_an_older_version_wrote_it(tmp_path)
    log.append(0, 3)
    iceberg(tmp_path, log).run()
    newest = iceberg(tmp_path, log).sink.newest()
    assert newest.load.target.id == str(table_of(tmp_path).metadata.table_uuid)
    assert (newest.load.target.commit.number, newest.receipt.commit.number) == (0, 1)
    make_again(tmp_path)
    refused(tmp_path, log, "is not the one of the earlier loads")


def test_a_plan_that_an_older_version_left_is_finished(tmp_path):
    log = loaded(tmp_path, 5)
    log.append(0, 3)
    run = iceberg(tmp_path, log)
    run.sink.save(run.sink.prepared(run.plan(run.sink.newest(), run.options)))
    as_an_older_version_wrote_it(tmp_path)
    assert iceberg(tmp_path, log).run().rows == 3
    assert iceberg_rows(tmp_path) == offsets(log)


@pytest.mark.parametrize("lose", [make_again, lambda path: catalog(path).drop_table(TABLE)])
def test_a_new_chain_takes_all_messages_again_and_keeps_the_old_record_and_files(tmp_path, lose):
    log = loaded(tmp_path, 5, 3)
    lose(tmp_path)
    record, files = record_of(tmp_path), set(tmp_path.rglob("t-*.parquet"))
    log.append(0, 1)
    assert start_over(tmp_path, log).run().rows == 9
    assert iceberg_rows(tmp_path) == offsets(log)
    assert record.items() <= record_of(tmp_path).items()
    new = set(tmp_path.rglob("t-*.parquet")) - files
    assert [path.name for path in new] == [f"t-00000-{0:020d}-{9:020d}-c1.parquet"]
    log.append(0, 2)
    assert iceberg(tmp_path, log).run().rows == 2
    assert iceberg_rows(tmp_path) == offsets(log)
    assert verify(iceberg(tmp_path, log).sink).problems == ()
    make_again(tmp_path)
    refused(tmp_path, log, "is not the one")
    assert start_over(tmp_path, log, since=Since(AtId(ID + 10))).run().rows == 2


def test_a_new_chain_is_refused_while_the_table_has_the_messages_of_the_old_one(tmp_path):
    log = loaded(tmp_path, 5, 3)
    log.append(0, 1)
    with pytest.raises(OtherTarget, match="still has messages of load 1, and a new chain would bring them twice"):
        start_over(tmp_path, log).run()
    table_of(tmp_path).delete("offset >= 0")
    assert start_over(tmp_path, log).run().rows == 9
    assert iceberg_rows(tmp_path) == offsets(log)


def test_a_new_chain_that_is_killed_at_any_step_is_finished_by_the_same_command(tmp_path):
    seen = []
    log = loaded(tmp_path / "count", 3)
    make_again(tmp_path / "count")
    run = start_over(tmp_path / "count", log)
    run.sink.step = seen.append
    run.run()
    for kill_at in range(len(seen)):
        path, steps = tmp_path / f"kill {kill_at}", []
        log = loaded(path, 3)
        make_again(path)

        def step(step_name):
            steps.append(step_name)
            if len(steps) == kill_at + 1:
                raise Killed

        run = start_over(path, log)
        run.sink.step = step
        with pytest.raises(Killed):
            run.run()
        start_over(path, log).run()
        assert iceberg_rows(path) == offsets(log), f"killed at {steps[-1]}"
