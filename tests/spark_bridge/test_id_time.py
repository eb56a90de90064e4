"""The column id_time: the time in the id, from the layout of the broker's ids."""

import datetime

import pyarrow as pa
import pytest

from idgen.layout import Layout
from spark_bridge.reading import cluster as asking
from spark_bridge.reading.id_clock import IdClock
from spark_bridge.reading.id_time import columns_to_decode, id_times, with_id_time
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.range_fetch import RangeFetch
from spark_bridge.reading.row import ARROW, DEFAULT
from spark_bridge.selection.options import parse
from spark_bridge.selection.pinned import pin
from tests.spark_bridge.memory_cluster import Cluster

MS = 1_700_000_000_123
TIME = datetime.datetime.fromtimestamp(MS // 1000, datetime.UTC) + datetime.timedelta(milliseconds=MS % 1000)


def test_the_default_layout_is_that_of_the_broker():
    layout = Layout()
    assert IdClock() == (layout.epoch_ms, layout.time_bits)
    assert IdClock().shift == layout.time_shift


@pytest.mark.parametrize("layout", [Layout(), Layout(epoch_ms=1_600_000_000_000), Layout(39, 5, 5, 14)])
def test_it_is_the_time_of_the_layout_that_made_the_id(layout):
    ids = pa.array([layout.pack(MS, 1023, 7), None, layout.pack(MS, 0, 0)])
    times = id_times(ids, IdClock(layout.epoch_ms, layout.time_bits))
    assert (times.type, times.to_pylist()) == (ARROW["id_time"], [TIME, None, TIME])


def test_it_is_read_where_it_is_asked_for_though_the_id_is_not():
    """Spark checks that the columns of a batch are those of the schema, in their order."""
    assert "id_time" not in DEFAULT
    assert columns_to_decode(("offset", "id_time")) == ("offset", "id")
    assert columns_to_decode(("id", "id_time")) == ("id",)
    batch = pa.RecordBatch.from_pydict({"offset": pa.array([5]), "id": pa.array([Layout().pack(MS, 0, 0)])})
    made = with_id_time(batch, ("offset", "id_time"), IdClock())
    assert made.to_pylist() == [{"offset": 5, "id_time": TIME}]


@pytest.mark.parametrize("ids", [True, False])
def test_it_is_null_from_a_broker_that_keeps_no_ids(ids):
    options = parse({"kafka.bootstrap.servers": "b", "subscribe": "t", "columns": "id_time", "idEpochMs": "1000"})
    pinned = pin(options, asking.Cluster(Cluster(10, ids=ids)), None, "0.1.0")
    fetch = RangeFetch(OffsetRange("t", 0, 0, 3), pinned.columns, Cluster(10, ids=ids), pinned.settings)
    (batch,) = fetch.batches()
    after_a_second = datetime.datetime.fromtimestamp(1, datetime.UTC)  # the ids of this log are below a millisecond
    assert batch.to_pydict() == {"id_time": [after_a_second if ids else None] * 3}
