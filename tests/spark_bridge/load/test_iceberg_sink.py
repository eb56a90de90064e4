"""Loads into an Iceberg table of a catalog in SQLite: each row once, whatever is killed and whoever runs beside."""

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from spark_bridge.load.driver import Driver
from spark_bridge.load.iceberg_sink import IcebergSink
from spark_bridge.load.ledger import LoadOptions
from spark_bridge.load.load import Layout, LoadError
from spark_bridge.reading.row import DEFAULT, arrow_schema
from tests.spark_bridge.load.tables import Killed, offsets
from tests.spark_bridge.load.world import TOPIC, Attempts, MemoryLog, Topics, Watcher, in_order, no_step

TABLE = "shop.flights"


def catalog(path):
    path.mkdir(exist_ok=True)
    return load_catalog("test", type="sql", uri=f"sqlite:///{path}/catalog.db", warehouse=f"file://{path}")


class SteppedTable(IcebergSink):
    """A table whose reads and commits are steps."""

    step = staticmethod(no_step)

    def _table(self):
        table = super()._table()
        self.step("table read")
        return table

    def try_commit(self, load, receipt):
        done = super().try_commit(load, receipt)
        self.step("committed")
        return done


def iceberg(path, log, options=None, step=no_step, name="a"):
    options = options or LoadOptions(TOPIC, layout=Layout("iceberg"))
    schema = arrow_schema(options.columns)
    sink = SteppedTable(catalog(path), TABLE, TOPIC, Attempts(name), schema, options.layout.partition_by)
    sink.step = step
    return Driver(options, sink, MemoryLog(log), in_order, Watcher(), "code")


def table_of(path):
    return catalog(path).load_table(TABLE)


def rows_of(path):
    table = table_of(path).scan().to_arrow()
    return sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


def test_loads_append_to_one_table_which_all_readers_read(tmp_path):
    log = Topics(5, 3)
    iceberg(tmp_path, log).run()
    log.append(0, 4)
    iceberg(tmp_path, log).run()
    assert rows_of(tmp_path) == offsets(log)
    assert table_of(tmp_path).properties["flakelog.load.t"] == "1"
    assert table_of(tmp_path).scan().to_polars().height == 12
    rows = table_of(tmp_path).scan().to_arrow()  # noqa: F841  (DuckDB reads it by its name)
    assert duckdb.sql('SELECT max("offset") AS last FROM rows').fetchall() == [(8,)]


def test_a_look_at_an_empty_table_does_not_divide_it(tmp_path):
    schema = arrow_schema(DEFAULT)
    catalog(tmp_path).create_namespace("shop")
    catalog(tmp_path).create_table(TABLE, schema)
    sink = IcebergSink(catalog(tmp_path), TABLE, TOPIC, Attempts("a"), schema, "day", create=False)
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

        def step(what):
            seen.append(what)
            if len(seen) == kill_at + 1:
                raise Killed

        with pytest.raises(Killed):
            iceberg(path, log, step=step).run()
        log.append(1, 2)
        iceberg(path, log).run()
        iceberg(path, log).run()
        assert rows_of(path) == offsets(log), f"killed at {seen[-1]}"


def test_a_second_driver_that_runs_at_any_step_of_the_first_adds_nothing_twice(tmp_path):
    for meet_at in range(len(steps_of_a_run(tmp_path))):
        log, path, seen = Topics(3, 2), tmp_path / f"meet {meet_at}", []

        def step(what):
            seen.append(what)
            if len(seen) == meet_at + 1:
                iceberg(path, log, name="b").run()

        iceberg(path, log, step=step).run()
        iceberg(path, log).run()
        assert rows_of(path) == offsets(log), f"the second ran at {seen[meet_at]}"


def test_a_commit_that_loses_against_another_writer_is_made_anew(tmp_path):
    log, other = Topics(3), pa.Table.from_pylist([{"offset": 77, "partition": 9}], arrow_schema(DEFAULT))

    def step(what):
        if what == "table read" and table_of(tmp_path).current_snapshot() is None:
            table_of(tmp_path).append(other)

    iceberg(tmp_path, log, step=step).run()
    assert rows_of(tmp_path) == [*offsets(log), (9, 77)]


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
        iceberg(tmp_path, Topics(4), LoadOptions(TOPIC, layout=Layout("iceberg", "day")))


def test_a_table_of_others_whose_columns_do_not_fit_is_refused(tmp_path):
    catalog(tmp_path).create_namespace("shop")
    catalog(tmp_path).create_table(TABLE, arrow_schema(["offset"]))
    with pytest.raises(LoadError, match="the Iceberg table shop.flights refuses the files"):
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
    assert list(sink.problems(receipt)) == []
    (name,) = receipt.files
    next(tmp_path.rglob(name)).unlink()
    assert list(sink.problems(receipt)) == [f"{name} is gone"]
