"""Loads into a Delta table: each row once, whatever is killed and whoever runs beside."""

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_bridge.load.delta_sink import DeltaSink
from spark_bridge.load.driver import Driver
from spark_bridge.load.ledger import LoadOptions
from spark_bridge.load.load import Layout, LoadError
from spark_bridge.output.storage import LocalStorage
from spark_bridge.reading.row import DEFAULT, arrow_schema
from tests.spark_bridge.load.tables import Killed, offsets
from tests.spark_bridge.load.world import TOPIC, Attempts, MemoryLog, Topics, Watcher, in_order, no_step

NOW_MS = 1_700_000_000_000


class SteppedStorage(LocalStorage):
    """A directory whose operations are steps."""

    step = staticmethod(no_step)

    def create(self, name, data):
        self.step(f"create {name}")
        super().create(name, data)

    def write(self, name):
        self.step(f"write {name}")
        return super().write(name)

    def move(self, name, to):
        self.step(f"move {name}")
        super().move(name, to)

    def delete(self, name):
        self.step(f"delete {name}")
        super().delete(name)


class SteppedTable(DeltaSink):
    """A table whose reads are steps. What it read is old when the step before its commit lets others go first."""

    step = staticmethod(no_step)

    def _table(self):
        table = super()._table()
        self.step("table read")
        return table

    def try_commit(self, load, receipt):
        done = super().try_commit(load, receipt)
        self.step("committed")
        return done


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


def delta(path, log, options=None, step=no_step, name="a", schema=None):
    options = options or LoadOptions(TOPIC, layout=Layout("delta"))
    storage = SteppedStorage(path)
    sink = SteppedTable(storage, TOPIC, Attempts(name), schema or arrow_schema(options.columns), lambda: NOW_MS)
    storage.step = sink.step = step
    return Driver(options, sink, MemoryLog(log), in_order, Watcher(), "code")


def rows_of(path):
    table = DeltaTable(path).to_pyarrow_table()
    return sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


def test_loads_append_to_one_table_which_all_readers_read(tmp_path):
    log = Topics(5, 3)
    path = tmp_path / "flights"
    delta(path, log).run()
    log.append(0, 4)
    delta(path, log).run()
    assert rows_of(path) == offsets(log)
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

        def step(what):
            seen.append(what)
            if len(seen) == kill_at + 1:
                raise Killed

        with pytest.raises(Killed):
            delta(path, log, step=step).run()
        log.append(1, 2)
        delta(path, log).run()
        delta(path, log).run()
        assert rows_of(path) == offsets(log), f"killed at {seen[-1]}"


def test_a_second_driver_that_runs_at_any_step_of_the_first_adds_nothing_twice(tmp_path):
    for meet_at in range(len(steps_of_a_run(tmp_path))):
        log, path, seen = Topics(3, 2), tmp_path / f"meet {meet_at}", []

        def step(what):
            seen.append(what)
            if len(seen) == meet_at + 1:
                delta(path, log, name="b").run()

        delta(path, log, step=step).run()
        delta(path, log).run()
        assert rows_of(path) == offsets(log), f"the second ran at {seen[meet_at]}"


def test_files_that_another_driver_committed_and_compaction_replaced_are_not_added_again(tmp_path):
    """Adding a file that is there changes nothing; adding one that was compacted would bring its rows back."""
    log, path, reads = Topics(3), tmp_path / "t", []
    delta(path, log).run()
    log.append(0, 2)

    def step(what):
        if what == "table read":
            reads.append(what)
            if len(reads) == 2:  # the table from which the commit starts
                delta(path, log, name="b").run()
                assert DeltaTable(path).optimize.compact()["numFilesRemoved"] == 2

    delta(path, log, step=step).run()
    assert len(reads) == 3, "the commit failed, and the table was read again"
    assert rows_of(path) == offsets(log)


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
    assert list(driver.sink.problems(driver.sink.newest().receipt)) == []


def test_a_partition_column_of_bytes_is_refused(tmp_path):
    log = Topics(4)
    with pytest.raises(LoadError, match="a table is divided by text, whole numbers, true and false, or dates"):
        delta(tmp_path / "t", log, LoadOptions(TOPIC, layout=Layout("delta", "key"))).run()


def test_rows_are_appended_to_a_table_of_others_whose_columns_fit(tmp_path):
    log, path = Topics(4), tmp_path / "t"
    DeltaTable.create(path, arrow_schema(DEFAULT))
    delta(path, log).run()
    assert rows_of(path) == offsets(log)


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
    assert list(sink.problems(receipt)) == []
    (name,) = receipt.files
    (path / name).unlink()
    assert list(sink.problems(receipt)) == [f"{name} is gone"]
