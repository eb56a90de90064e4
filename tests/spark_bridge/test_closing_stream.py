"""A reader of Arrow batches whose end reaches the Python iterator behind it."""

import gc

import duckdb
import polars
import pyarrow as pa
import pytest

from spark_bridge.reading.closing_stream import closing_reader

SCHEMA = pa.schema([("n", pa.int64())], metadata={"flakelog.manifest": "{}"})


class Closes:
    """Counts how often the reader closed its iterator."""

    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1


def batches(number, error=None):
    for n in range(number):
        yield pa.record_batch({"n": [n, n]})
    if error is not None:
        raise error


@pytest.fixture
def closes():
    return Closes()


def test_all_batches_come_with_the_schema_and_its_metadata(closes):
    reader = closing_reader(SCHEMA, batches(3), closes)
    assert reader.schema.metadata == {b"flakelog.manifest": b"{}"}
    assert reader.read_all().to_pydict() == {"n": [0, 0, 1, 1, 2, 2]}


def test_closing_the_reader_closes_the_iterator_once(closes):
    with closing_reader(SCHEMA, batches(3), closes) as reader:
        reader.read_next_batch()
        reader.close()
        assert closes.times == 1
    del reader
    gc.collect()
    assert closes.times == 1


def test_a_reader_that_was_not_read_stays_open_until_it_is_closed(closes):
    """The threads of a read start with its first batch."""
    with closing_reader(SCHEMA, batches(3), closes):
        pass
    assert closes.times == 0  # nothing was opened


def test_a_reader_that_is_forgotten_closes_the_iterator(closes):
    reader = closing_reader(SCHEMA, batches(3), closes)
    reader.read_next_batch()
    del reader
    gc.collect()
    assert closes.times == 1


@pytest.mark.parametrize("error", [RuntimeError("lost\n 5 rows"), ConnectionError("lost 5 rows")])
def test_the_first_line_of_an_error_has_its_name_and_its_message(closes, error):
    with pytest.raises(pa.ArrowInvalid) as raised:
        closing_reader(SCHEMA, batches(1, error), closes).read_all()
    assert f"{type(error).__name__}: lost 5 rows" in str(raised.value).splitlines()[0]
    assert closes.times == 1


def test_polars_and_duckdb_read_it(closes):
    assert polars.from_arrow(closing_reader(SCHEMA, batches(4), closes))["n"].sum() == 12
    reader = closing_reader(SCHEMA, batches(4), closes)  # noqa: F841  (duckdb finds it by its name)
    assert duckdb.sql("SELECT sum(n) FROM reader").fetchall() == [(12,)]
    assert closing_reader(SCHEMA, batches(4), closes).read_pandas()["n"].sum() == 12
