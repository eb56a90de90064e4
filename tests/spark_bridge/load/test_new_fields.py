"""Loads with --decode whose schema has more fields than before: into Parquet, a Delta table and an Iceberg table."""

import json

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.types import LongType, StringType

from spark_bridge.load.decoding import READ_COLUMNS, Decoding
from spark_bridge.load.delta_sink import DeltaSink
from spark_bridge.load.driver import Driver
from spark_bridge.load.iceberg_sink import IcebergSink
from spark_bridge.load.ledger import LoadOptions, OtherLayout
from spark_bridge.load.load import Layout, LoadError
from spark_bridge.load.parquet_sink import ParquetSink
from spark_bridge.load.verify import verify
from spark_bridge.output.storage import LocalStorage
from tests.spark_bridge.load.tables import Killed
from tests.spark_bridge.load.world import TOPIC, Attempts, MemoryLog, Topics, Watcher, in_order

FIELDS = [{"name": "order", "type": "long"}]
NOTE = {"name": "note", "type": ["null", "string"]}
TABLE = "shop.orders"


class NotedLog(MemoryLog):
    """A log of orders in JSON, each with a note."""

    def records(self, partition, start, end, topic_id):
        records = super().records(partition, start, end, topic_id)
        return [(offset, b'{"order": %d, "note": "n%d"}' % (offset, offset)) for offset, _ in records]


class ParquetTarget:
    format = "parquet"

    def __init__(self, path):
        self.path = path

    def sink(self, schema):
        return ParquetSink(LocalStorage(self.path / "t"), TOPIC, Attempts())

    def rows(self):
        files = f"{self.path}/t/*.parquet"
        return duckdb.sql(f"SELECT * FROM read_parquet({files!r}, union_by_name=true)").to_arrow_table().to_pylist()


class DeltaTarget(ParquetTarget):
    format = "delta"

    def sink(self, schema):
        storage = LocalStorage(self.path / "t")
        return DeltaSink(storage, TOPIC, Attempts(), schema, lambda: 1_700_000_000_000)

    def rows(self):
        return DeltaTable(self.path / "t").to_pyarrow_table().to_pylist()

    def add(self, name):
        DeltaTable(self.path / "t").alter.add_columns(pa_field(name))


class IcebergTarget(ParquetTarget):
    format = "iceberg"

    def catalog(self):
        catalog = load_catalog("test", type="sql", uri=f"sqlite:///{self.path}/c.db", warehouse=f"file://{self.path}")
        catalog.create_namespace_if_not_exists("shop")
        return catalog

    def sink(self, schema):
        return IcebergSink(self.catalog(), TABLE, TOPIC, Attempts(), schema)

    def rows(self):
        return self.catalog().load_table(TABLE).scan().to_arrow().to_pylist()

    def add(self, name):
        with self.catalog().load_table(TABLE).update_schema() as change:
            change.add_column(name, LongType())


def pa_field(name):
    from deltalake import Field
    from deltalake.schema import PrimitiveType

    return Field(name, PrimitiveType("long"))


@pytest.fixture(params=[ParquetTarget, DeltaTarget, IcebergTarget], ids=["parquet", "delta", "iceberg"])
def target(request, tmp_path):
    return request.param(tmp_path)


@pytest.fixture(params=[DeltaTarget, IcebergTarget], ids=["delta", "iceberg"])
def table(request, tmp_path):
    return request.param(tmp_path)


def driver(target, log, *more, fields=FIELDS, **options):
    schema = json.dumps({"type": "record", "name": "Order", "fields": [*fields, *more]})
    decoding = Decoding("json", schema, columns=("partition", "offset"))
    layout = Layout(target.format, decode=decoding.to_dict())
    load_options = LoadOptions(TOPIC, columns=READ_COLUMNS, layout=layout, **options)
    return Driver(load_options, target.sink(decoding.row_schema()), NotedLog(log), in_order, Watcher(), "code")


def notes(target):
    return {row["offset"]: row.get("note") for row in target.rows()}


def test_rows_before_a_new_field_read_as_null(target):
    log = Topics(2)
    driver(target, log).run()
    log.append(0, 1)
    driver(target, log, NOTE).run()
    log.append(0, 1)
    last = driver(target, log, NOTE)
    last.run()
    assert notes(target) == {0: None, 1: None, 2: "n2", 3: "n3"}
    assert verify(last.sink).problems == ()


def test_a_load_of_the_older_schema_is_refused_after_a_new_field(target):
    log = Topics(2)
    driver(target, log).run()
    log.append(0, 1)
    driver(target, log, NOTE).run()
    log.append(0, 1)
    with pytest.raises(OtherLayout, match="^field note is missing, and the earlier loads have it. Give what fits, or"):
        driver(target, log).run()


@pytest.mark.parametrize("step", ["written", "publish"])
def test_a_killed_load_ends_with_the_schema_of_its_plan_and_the_next_one_has_the_new_field(target, step):
    log = Topics(2)
    driver(target, log).run()
    log.append(0, 2)
    killed = driver(target, log)

    def kill(*_):
        raise Killed

    setattr(killed.sink, step, kill)
    with pytest.raises(Killed):
        killed.run()
    log.append(0, 1)
    outcome = driver(target, log, NOTE).run()
    assert [receipt.rows for receipt in outcome.receipts] == [2, 1]
    assert notes(target) == {0: None, 1: None, 2: None, 3: None, 4: "n4"}


def test_a_load_with_a_new_field_is_killed_before_its_commit_and_finished(table):
    log = Topics(2)
    driver(table, log).run()
    log.append(0, 1)
    killed = driver(table, log, NOTE)

    def kill(*_):
        raise Killed

    killed.sink.try_commit = kill
    with pytest.raises(Killed):
        killed.run()
    driver(table, log, NOTE).run()
    assert notes(table) == {0: None, 1: None, 2: "n2"}


def test_a_field_comes_into_the_table_though_the_load_that_brought_it_had_no_rows(table):
    log = Topics(2)
    driver(table, log).run()
    log.append(0, 1)
    log.expire(0, 3)
    driver(table, log, NOTE, accept_loss=True).run()
    log.append(0, 1)
    driver(table, log, NOTE).run()
    assert notes(table) == {0: None, 1: None, 3: "n3"}


def test_a_new_field_that_the_table_has_with_another_type_is_refused_before_the_load_is_planned(table):
    log = Topics(2)
    driver(table, log).run()
    table.add("note")
    log.append(0, 1)
    with pytest.raises(LoadError, match="note") as refused:
        driver(table, log, NOTE).run()
    assert "\n" not in str(refused.value)
    driver(table, log).run()
    assert sorted(notes(table)) == [0, 1, 2]


def test_several_new_fields_of_all_kinds_come_in_at_once(target):
    address = {"type": "record", "name": "Address", "fields": [{"name": "zip", "type": "string"}]}
    more = [
        NOTE,
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "address", "type": ["null", address]},
        {"name": "tags", "type": ["null", {"type": "array", "items": "string"}]},
    ]
    log = Topics(2)
    driver(target, log).run()
    log.append(0, 1)
    driver(target, log, *more).run()
    (row,) = (row for row in target.rows() if row["offset"] == 2)
    assert [row[name] for name in ("note", "at", "address", "tags")] == ["n2", None, None, None]


def test_the_table_of_others_gets_no_new_columns_from_a_first_load(tmp_path):
    write_deltalake(tmp_path / "t", pa.table({"partition": pa.array([9], pa.int32()), "offset": [9], "order": [9]}))
    with pytest.raises(LoadError, match="has no such column, the rows have note string: choose columns that fit"):
        driver(DeltaTarget(tmp_path), Topics(2), NOTE).run()


def test_a_dropped_column_does_not_come_back(tmp_path):
    target, log = IcebergTarget(tmp_path), Topics(2)
    driver(target, log, NOTE).run()
    with target.catalog().load_table(TABLE).update_schema() as change:
        change.delete_column("note")
        change.add_column("other", StringType())
    log.append(0, 1)
    with pytest.raises(LoadError, match="note"):
        driver(target, log, NOTE).run()


def test_fields_that_differ_in_case_only_are_refused_by_a_delta_table(tmp_path):
    with pytest.raises(LoadError, match="^a Delta table has no columns like these: .*'ORDER'"):
        driver(DeltaTarget(tmp_path), Topics(2), {"name": "ORDER", "type": "long"})


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("hour", "--partition-by hour makes directories of that name, and the rows have a column Hour: rename it"),
        ("nothing", "--partition-by nothing needs the column nothing; the columns are order, Hour, timestamp, offset"),
    ],
)
def test_directories_that_do_not_fit_the_rows_are_refused_before_a_load_is_planned(tmp_path, by, message):
    schema = json.dumps({"type": "record", "name": "Order", "fields": [*FIELDS, {"name": "Hour", "type": "string"}]})
    decode = Decoding("json", schema, columns=("timestamp", "offset")).to_dict()
    options = LoadOptions(TOPIC, columns=READ_COLUMNS, layout=Layout("parquet", by, decode))
    sink = ParquetTarget(tmp_path).sink(None)
    with pytest.raises(LoadError, match=message):
        Driver(options, sink, NotedLog(Topics(2)), in_order, Watcher(), "code").run()
    assert sink.newest() is None


def test_an_iceberg_table_of_other_columns_is_refused_in_one_line_before_a_load_is_planned(tmp_path):
    target = IcebergTarget(tmp_path)
    target.catalog().create_table(TABLE, pa.schema([("order", pa.string())]))
    first = driver(target, Topics(2))
    message = "the Iceberg table shop.orders has order string, the rows have order long required: choose columns that"
    with pytest.raises(LoadError, match=message) as refused:
        first.run()
    assert "\n" not in str(refused.value) and first.sink.newest() is None
