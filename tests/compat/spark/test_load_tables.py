"""`flakelog load` into tables and topics of a real broker, and with --decode."""

import json
import os
import random
import signal
import subprocess
import sys
from uuid import uuid4

import duckdb
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch
from tests.compat.server_process import ROOT

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "order", "type": "long"}, {"name": "who", "type": ["null", "string"]}],
}


class Orders:
    """A topic of orders in JSON."""

    def __init__(self, address):
        self.address, self.name, self.written = address, f"orders-{uuid4().hex[:8]}", 0
        self.client = Client(address)
        self.client.create_topic(self.name, 2)

    def append(self, *values):
        for partition in range(2):
            records = [BatchRecord(at, 0, b"k", value) for at, value in enumerate(values)]
            batch = encode_batch(records, base_timestamp_ms=1_700_000_000_000)
            self.client.produce(self.name, partition, batch)


@pytest.fixture
def orders(broker):
    made = Orders(broker.address)
    made.append(b'{"order": 1, "who": "me"}', b'{"order": 2}', b"no order")
    yield made
    made.client.close()


@pytest.fixture
def load(flakelog, orders):
    def run(to, *more):
        code, shown, errors = flakelog(" ".join(["load", orders.name, "--to", str(to), *more]))
        assert code == 0, errors
        return shown

    return run


def test_a_delta_table_gets_each_message_once(tmp_path, load, orders):
    load(tmp_path / "t", "--format delta --partition-by day")
    orders.append(b"later")
    assert "target: 8 rows in total\n" in load(tmp_path / "t", "--format delta --partition-by day")
    table = DeltaTable(tmp_path / "t").to_pyarrow_table()
    assert sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)) == [
        (partition, offset) for partition in range(2) for offset in range(4)
    ]
    DeltaTable(tmp_path / "t").delete('"partition" = 1')
    assert load(tmp_path / "t", "--format delta --partition-by day --verify").splitlines()[1:] == [
        "record: 8 messages in 4 files of 2 loads",
        "target: 4 rows",
    ]


def iceberg_of(tmp_path, orders):
    """Return the settings of a catalog, and a function that loads into a table of it and returns what it said."""
    settings = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    env = {f"PYICEBERG_CATALOG__SHOP__{name.upper()}": value for name, value in settings.items()}
    command = [sys.executable, "-m", "flakelog", "load", orders.name, "--to", "iceberg://shop/sales.orders"]

    def load(*more, code=0):  # pyiceberg reads its configuration once, when it is imported
        env_now = os.environ | env | {"FLAKELOG_SERVERS": orders.address}
        ended = subprocess.run([*command, *more], env=env_now, capture_output=True, text=True)
        assert ended.returncode == code, ended.stderr
        return ended.stdout + ended.stderr

    return settings, load


def test_an_iceberg_table_gets_each_message_once(tmp_path, orders):
    settings, load = iceberg_of(tmp_path, orders)
    load("--plan")
    assert not load_catalog("shop", **settings).table_exists("sales.orders"), "a plan writes nothing"
    load()
    orders.append(b"later")
    load()
    table = load_catalog("shop", **settings).load_table("sales.orders").scan().to_arrow()
    assert sorted(table["offset"].to_pylist()) == [0, 0, 1, 1, 2, 2, 3, 3]
    load("--verify")


def test_a_dropped_iceberg_table_is_refused_until_a_new_chain_begins(tmp_path, orders):
    settings, load = iceberg_of(tmp_path, orders)
    load()
    load_catalog("shop", **settings).drop_table("sales.orders")
    orders.append(b"later")
    shown = load(code=5)
    assert "the Iceberg table sales.orders is gone" in shown and "--start-over" in shown and "Traceback" not in shown
    assert not load_catalog("shop", **settings).table_exists("sales.orders"), "it is not made again before the check"
    load("--plan", code=5)
    assert "8 messages in 2 files" in load("--start-over")
    assert load_catalog("shop", **settings).load_table("sales.orders").scan().count() == 8
    assert "still has messages of load 0" in load("--start-over", code=5)
    load("--verify")


def delta_offsets(tmp_path, settings):
    return DeltaTable(tmp_path / "t").to_pyarrow_table().select(["partition", "offset"]).to_pylist()


def iceberg_offsets(tmp_path, settings):
    rows = load_catalog("shop", **settings).load_table("sales.orders").scan(selected_fields=("partition", "offset"))
    return rows.to_arrow().to_pylist()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("to", "format", "read"),
    [("{tmp_path}/t", "delta", delta_offsets), ("iceberg://shop/sales.orders", "iceberg", iceberg_offsets)],
    ids=["delta", "iceberg"],
)
def test_a_table_gets_each_message_once_though_its_loads_are_killed_half_way(tmp_path, orders, to, format, read):
    """Loads are killed at any moment. The next run finishes the load that was planned."""
    settings = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    env = os.environ | {f"PYICEBERG_CATALOG__SHOP__{name.upper()}": value for name, value in settings.items()}
    args = ["load", orders.name, "--servers", orders.address, "--to", to.format(tmp_path=tmp_path), "--format", format]
    argv = [sys.executable, "-m", "tests.compat.spark.load_program"]
    chance, killed, written = random.Random(4), 0, 3
    with subprocess.Popen(argv, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def run(kill_after_s):
            process.stdin.write(json.dumps([{"args": args, "kill_after_s": kill_after_s}]) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())[0]

        took_s = run(None)["took_s"]
        for _ in range(40):
            orders.append(b"later", b"and later")
            written += 2
            ended = run(chance.uniform(0.01, took_s))
            assert ended["code"] in (0, -signal.SIGALRM)
            killed += ended["code"] != 0
            rows = [(row["partition"], row["offset"]) for row in read(tmp_path, settings)]
            assert len(rows) == len(set(rows)), "no message is in twice, whatever was killed"
        assert run(None)["code"] == 0
        process.stdin.close()
    assert killed >= 10
    rows = [(row["partition"], row["offset"]) for row in read(tmp_path, settings)]
    assert sorted(rows) == [(partition, offset) for partition in range(2) for offset in range(written)]


def test_another_topic_gets_each_message_once(tmp_path, load, orders):
    target = f"copy-{uuid4().hex[:8]}"
    orders.client.create_topic(target, 2)
    uri = f"kafka://{orders.address}/{target}"
    load(uri, f"--record {tmp_path}")
    orders.append(b"later")
    load(uri, f"--record {tmp_path}")
    first, after = orders.client.fetch(target, 0, 0, committed=True)
    second, _ = orders.client.fetch(target, 0, after, committed=True)
    values = [record.value for record in [*first, *second]]
    assert values == [b'{"order": 1, "who": "me"}', b'{"order": 2}', b"no order", b"later"]
    load(uri, f"--record {tmp_path} --verify")


def test_decoded_values_are_columns_and_the_others_are_counted(tmp_path, load):
    (tmp_path / "order.avsc").write_text(json.dumps(SCHEMA))
    decode = f"--decode json --schema {tmp_path}/order.avsc --columns partition,offset"
    shown = json.loads(load(tmp_path / "t", decode, "--json"))
    assert (shown["rows"], shown["rejected"]) == (4, 2)
    files = f"{tmp_path}/t/*.parquet"
    rows = duckdb.sql(f'SELECT "order", who, "partition" FROM read_parquet({files!r}) ORDER BY ALL').fetchall()
    assert rows == [(1, "me", 0), (1, "me", 1), (2, None, 0), (2, None, 1)]
    apart = f"{tmp_path}/t/_flakelog/*/rejected/*.parquet"
    reasons = duckdb.sql(f"SELECT DISTINCT value::VARCHAR, reason FROM read_parquet({apart!r})").fetchall()
    assert reasons == [("no order", "the value is no JSON object")]


NOTED = SCHEMA | {"fields": [*SCHEMA["fields"], {"name": "note", "type": ["null", "string"]}]}


def schemas(tmp_path):
    """Return the options of loads by the schema of orders, and by the one with one more field."""
    for name, schema in (("order", SCHEMA), ("noted", NOTED)):
        (tmp_path / f"{name}.avsc").write_text(json.dumps(schema))
        yield ["--decode", "json", "--columns", "partition,offset", "--schema", f"{tmp_path}/{name}.avsc"]


@pytest.mark.parametrize("format", ["parquet", "delta"])
def test_a_new_field_reads_as_null_in_the_rows_of_earlier_loads(tmp_path, load, flakelog, orders, format):
    directory = tmp_path / "t"
    older, newer = (" ".join([*options, "--format", format]) for options in schemas(tmp_path))
    load(directory, older)
    orders.append(b'{"order": 3, "note": "new"}')
    load(directory, newer)
    if format == "delta":
        rows = DeltaTable(directory).to_pyarrow_table().to_pylist()
    else:
        files = f"{directory}/*.parquet"
        rows = duckdb.sql(f"FROM read_parquet({files!r}, union_by_name=true)").to_arrow_table().to_pylist()
    assert sorted({(row["order"], row["note"]) for row in rows}, key=str) == [(1, None), (2, None), (3, "new")]
    load(directory, newer, "--verify")
    orders.append(b'{"order": 4}')
    ended = flakelog(f"load {orders.name} --to {directory} {older}")
    assert ended[::2] == (5, "Error: field note is missing, and the earlier loads have it. Give what fits, or name "
                             "another place\n")  # fmt: skip


def test_a_new_field_comes_into_an_iceberg_table(tmp_path, orders):
    settings, load = iceberg_of(tmp_path, orders)
    older, newer = schemas(tmp_path)
    load(*older)
    orders.append(b'{"order": 3, "note": "new"}')
    load(*newer)
    rows = load_catalog("shop", **settings).load_table("sales.orders").scan().to_arrow().to_pylist()
    assert sorted({(row["order"], row["note"]) for row in rows}, key=str) == [(1, None), (2, None), (3, "new")]


def test_a_load_killed_half_way_ends_with_its_schema_and_the_next_one_takes_the_new_field(tmp_path, load, orders):
    directory = tmp_path / "t"
    older, newer = schemas(tmp_path)
    load(directory, *older)
    orders.append(b'{"order": 3, "note": "not in the plan"}')
    args = ["load", orders.name, "--servers", orders.address, "--to", str(directory), *older]
    argv = [sys.executable, "-m", "tests.compat.spark.load_program"]
    plan, kill_at = directory / f"_flakelog/{orders.name}/{1:020d}.plan.json", 10
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        while not plan.exists():
            kill_at += 1
            process.stdin.write(json.dumps([{"args": args, "kill_at": kill_at}]) + "\n")
            process.stdin.flush()
            (ended,) = json.loads(process.stdout.readline())
            assert ended["code"] == -signal.SIGKILL
        process.stdin.close()
    orders.append(b'{"order": 4, "note": "new"}')
    figures = json.loads(load(directory, *newer, "--json"))
    assert figures["loads"] == [1, 2]
    files = f"{directory}/*.parquet"
    rows = duckdb.sql(f'SELECT DISTINCT "order", note FROM read_parquet({files!r}, union_by_name=true) ORDER BY ALL')
    assert rows.fetchall() == [(1, None), (2, None), (3, None), (4, "new")]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--to t --format iceberg", "is no place of the format iceberg: write iceberg://CATALOG/NAMESPACE.TABLE"),
        ("--to kafka://h:1/t", "a load into a topic keeps its record of loads in a directory: name it by --record"),
        ("--to t --record r", "--record is for loads into a topic; parquet keeps the record of loads beside the data"),
        ("--to t --decode json", "--decode needs one --schema FILE, the schema of the columns; got 0"),
        ("--to t --schema nothing.avsc", "--schema says how values are decoded; give --decode json or avro with it"),
        ("--to t --decode json --schema nothing.avsc", "No such file or directory"),
        ("--to kafka://h:1/t --record r --partition-by day", "messages go to a topic as they are"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(flakelog, orders, more, message):
    code, _, errors = flakelog(f"load {orders.name} --servers {orders.address} {more}")
    assert code in (1, 2)
    assert message in errors
