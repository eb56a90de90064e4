"""What the tests of both table formats share."""

import json
from dataclasses import replace

from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from spark_bridge.load import load as loads
from spark_bridge.load.delta_sink import DeltaSink
from spark_bridge.load.driver import Driver
from spark_bridge.load.iceberg_sink import IcebergSink
from spark_bridge.load.ledger import LoadOptions
from spark_bridge.load.load import Layout
from spark_bridge.output.storage import LocalStorage
from spark_bridge.reading.row import arrow_schema
from tests.spark_bridge.load.world import TOPIC, Attempts, MemoryLog, Watcher, in_order, no_step

NOW_MS = 1_700_000_000_000
TABLE = "shop.flights"


class Killed(BaseException):
    """The driver's process ends here."""


def offsets(log):
    """Return (partition, offset) of all records of a log that begins at 0."""
    return [(partition, offset) for partition, end in enumerate(log.ends) for offset in range(end)]


def as_an_older_version_wrote_it(directory):
    """Take out of all plans and receipts below a directory what versions before load.target did not write."""
    for path in directory.rglob("*.plan.json"):
        old = replace(loads.from_json(path.read_text()), target=None)
        path.write_text(old.to_json())
        for kind in ("decision", "receipt"):
            other = path.with_name(path.name.replace("plan", kind))
            if other.exists():
                fields = json.loads(other.read_text())
                fields.pop("commit", None)
                other.write_text(json.dumps(fields | {"load_sha256": old.sha256}))


def record_of(directory):
    """Return the files of the record of loads below a directory, with their bytes."""
    return {path: path.read_bytes() for path in directory.rglob("*") if "_flakelog" in str(path) and path.is_file()}


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


class SteppedTable:
    """A sink whose reads of the table and commits are steps.

    What it read is old when the step before its commit lets others go first.
    """

    step = staticmethod(no_step)

    def table(self):
        table = super().table()
        self.step("table read")
        return table

    def try_commit(self, table, load, receipt):
        done = super().try_commit(table, load, receipt)
        self.step("committed")
        return done


class SteppedDelta(SteppedTable, DeltaSink):
    pass


class SteppedIceberg(SteppedTable, IcebergSink):
    pass


def delta(path, log, options=None, step=no_step, name="a", schema=None):
    """Return a driver of loads into a Delta table."""
    options = options or LoadOptions(TOPIC, layout=Layout("delta"))
    storage = SteppedStorage(path)
    sink = SteppedDelta(storage, TOPIC, Attempts(name), schema or arrow_schema(options.columns), lambda: NOW_MS)
    storage.step = sink.step = step
    return Driver(options, sink, MemoryLog(log), in_order, Watcher(), "code")


def delta_rows(path):
    """Return (partition, offset) of all rows, sorted."""
    return _partition_offsets(DeltaTable(path).to_pyarrow_table())


def catalog(path):
    """Return a catalog in SQLite."""
    path.mkdir(exist_ok=True)
    catalog = load_catalog("test", type="sql", uri=f"sqlite:///{path}/catalog.db", warehouse=f"file://{path}")
    catalog.create_namespace_if_not_exists("shop")
    return catalog


def iceberg(path, log, options=None, step=no_step, name="a"):
    """Return a driver of loads into the table of a catalog."""
    options = options or LoadOptions(TOPIC, layout=Layout("iceberg"))
    schema = arrow_schema(options.columns)
    sink = SteppedIceberg(catalog(path), TABLE, TOPIC, Attempts(name), schema, options.layout.partition_by)
    sink.step = step
    return Driver(options, sink, MemoryLog(log), in_order, Watcher(), "code")


def table_of(path):
    return catalog(path).load_table(TABLE)


def iceberg_rows(path):
    """Return (partition, offset) of all rows, sorted."""
    return _partition_offsets(table_of(path).scan().to_arrow())


def _partition_offsets(table):
    return sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
