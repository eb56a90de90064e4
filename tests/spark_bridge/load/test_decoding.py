"""Loads with --decode: typed columns in the files, and what does not decode kept apart."""

import io
import json

import pyarrow.parquet as pq
import pytest

from spark_bridge.load import load as loads
from spark_bridge.load.avro_schema import SchemaError
from spark_bridge.load.decoding import READ_COLUMNS, Decoding
from spark_bridge.load.driver import Driver
from spark_bridge.load.ledger import LoadOptions, OtherLayout
from spark_bridge.load.load import Layout
from spark_bridge.load.parquet_sink import ParquetSink
from spark_bridge.load.verify import verify
from tests.spark_bridge.load.world import TOPIC, Attempts, MemoryLog, MemoryStorage, Topics, Watcher, in_order

ORDER = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "order", "type": "long"}]})
DECODING = Decoding("json", ORDER, columns=("partition", "offset"))


class JsonLog(MemoryLog):
    """A log of orders. Every third value is no JSON."""

    def records(self, partition, start, end, topic_id):
        records = super().records(partition, start, end, topic_id)
        return [(offset, value if offset % 3 == 2 else b'{"order": %d}' % offset) for offset, value in records]


def decoding_driver(log, storage, decoding=DECODING):
    options = LoadOptions(TOPIC, columns=READ_COLUMNS, layout=Layout(decode=decoding.to_dict()))
    sink = ParquetSink(storage, TOPIC, Attempts())
    return Driver(options, sink, JsonLog(log), in_order, Watcher(), "code")


def rows_of(storage, is_wanted):
    tables = [pq.read_table(io.BytesIO(data)) for name, data in storage.objects.items() if is_wanted(name)]
    rows = [row for table in tables for row in table.to_pylist()]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def is_rejected(name):
    return name.startswith("_flakelog/t/rejected/")


def is_data(name):
    return not name.startswith("_") and name.endswith(".parquet")


def test_values_become_columns_and_those_that_do_not_decode_are_kept_apart_and_counted():
    storage = MemoryStorage()
    outcome = decoding_driver(Topics(4, 1), storage).run()
    assert rows_of(storage, is_data) == [
        {"order": 0, "partition": 0, "offset": 0},
        {"order": 1, "partition": 0, "offset": 1},
        {"order": 3, "partition": 0, "offset": 3},
        {"order": 0, "partition": 1, "offset": 0},
    ]
    (apart,) = rows_of(storage, is_rejected)
    assert (apart["partition"], apart["offset"], apart["value"]) == (0, 2, b"1/0/2")
    assert apart["reason"] == "the value is no JSON object"
    (receipt,) = outcome.receipts
    assert (receipt.rows, receipt.rejected_rows) == (4, 1)


def test_a_load_where_everything_decodes_has_no_file_of_rejected_messages():
    storage = MemoryStorage()
    decoding_driver(Topics(2), storage).run()
    assert not any(map(is_rejected, storage.objects))


def test_verification_names_a_file_of_rejected_messages_that_is_gone():
    storage = MemoryStorage()
    driver = decoding_driver(Topics(3), storage)
    driver.run()
    (name,) = filter(is_rejected, list(storage.objects))
    storage.delete(name)
    assert verify(driver.sink).problems == (f"{name} is gone",)


def test_a_place_keeps_the_schema_it_was_begun_with():
    storage, log = MemoryStorage(), Topics(2)
    decoding_driver(log, storage).run()
    log.append(0, 1)
    other = Decoding("json", ORDER.replace("long", "int"), columns=("partition", "offset"))
    with pytest.raises(OtherLayout):
        decoding_driver(log, storage, other).run()


def test_a_saved_load_says_how_its_values_are_decoded():
    storage = MemoryStorage()
    driver = decoding_driver(Topics(2), storage)
    driver.run()
    saved = loads.from_json(driver.sink.newest().load.to_json())
    assert Decoding.from_dict(saved.layout.decode) == DECODING


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": "xml"}, "--decode is json or avro; got 'xml'"),
        ({"writers": {7: ORDER}}, "only Avro values have the prefix of a schema registry"),
        ({"columns": ("value",)}, "columns value cannot be kept beside decoded values"),
        ({"columns": ("order",)}, "columns order cannot be kept beside decoded values"),
        ({"schema": ORDER.replace('"order"', '"offset"')}, "offset: a column of the message and a field of the value"),
    ],
)
def test_a_wrong_description_is_refused_by_name(fields, message):
    with pytest.raises(SchemaError, match=message):
        Decoding(**({"format": "json", "schema": ORDER} | fields))
