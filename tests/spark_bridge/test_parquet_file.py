"""A file's bytes depend only on its rows (a rerun gives the same bytes)."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_bridge.output import parquet_file
from spark_bridge.output.parquet_file import BYTES_PER_GROUP, ROWS_PER_GROUP

SCHEMA = pa.schema([("offset", pa.int64()), ("value", pa.binary())])


def write_parquet(path, batches, schema):
    with path.open("wb") as file:
        return parquet_file.write_parquet(file, batches, schema)


def table(rows):
    values = [b"value %d" % (n % 1000) if n % 7 else None for n in range(rows)]
    return pa.table({"offset": pa.array(range(rows), pa.int64()), "value": pa.array(values, pa.binary())})


def cut(rows, size):
    return table(rows).to_batches(max_chunksize=size)


@pytest.mark.parametrize("size", [1000, 4096, 7777, ROWS_PER_GROUP, 10**6])
def test_however_the_rows_come_the_bytes_are_the_same(tmp_path, size):
    """The sizes of Arrow batches do not affect the bytes; Spark chooses them by its settings."""
    rows = 2 * ROWS_PER_GROUP + 100
    assert write_parquet(tmp_path / "a", cut(rows, size), SCHEMA) == rows
    write_parquet(tmp_path / "b", cut(rows, 9999), SCHEMA)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_rows_are_all_there_in_groups_of_a_fixed_size(tmp_path):
    rows = 2 * ROWS_PER_GROUP + 100
    write_parquet(tmp_path / "a", cut(rows, 5000), SCHEMA)
    assert pq.read_table(tmp_path / "a").equals(table(rows))
    metadata = pq.read_metadata(tmp_path / "a")
    groups = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
    assert groups == [ROWS_PER_GROUP, ROWS_PER_GROUP, 100]


def test_no_rows_are_a_file_with_the_schema(tmp_path):
    """No rows give a file with the schema: a range may hold only a transaction marker, or a filter drops all rows."""
    assert write_parquet(tmp_path / "a", [], SCHEMA) == 0
    assert pq.read_table(tmp_path / "a").schema == SCHEMA


def test_batches_of_a_like_schema_are_brought_to_the_one_asked_for(tmp_path):
    """Batches are cast to the schema; Spark's batches may say large_binary, or that a column is never null."""
    large = table(10).cast(pa.schema([("offset", pa.int64()), ("value", pa.large_binary())]))
    write_parquet(tmp_path / "a", large.to_batches(), SCHEMA)
    assert pq.read_table(tmp_path / "a").equals(table(10))


def groups_of(path):
    metadata = pq.read_metadata(path)
    return [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]


@pytest.mark.parametrize("size", [1, 5, 64])
def test_a_group_of_large_messages_ends_by_its_bytes(tmp_path, size):
    """A task keeps a group in memory: 32,768 messages of a megabyte would need 32 GB."""
    megabytes = [b"x" * ((1 << 20) - 24)] * 130  # an offset and the place of the value take 16 bytes more
    rows = pa.table({"offset": pa.array(range(130), pa.int64()), "value": pa.array(megabytes, pa.binary())})
    write_parquet(tmp_path / "a", rows.to_batches(max_chunksize=size), SCHEMA)
    assert groups_of(tmp_path / "a") == [64, 64, 2]
    assert pq.read_table(tmp_path / "a").equals(rows)


def test_a_message_larger_than_a_group_is_a_group(tmp_path):
    values = [b"small", b"x" * (BYTES_PER_GROUP + 1), b"small"]
    rows = pa.table({"offset": pa.array(range(3), pa.int64()), "value": pa.array(values, pa.binary())})
    write_parquet(tmp_path / "a", rows.to_batches(), SCHEMA)
    assert groups_of(tmp_path / "a") == [1, 1, 1]


def test_headers_count_as_bytes_of_their_message(tmp_path):
    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    headers = [None, [], [{"key": "trace", "value": b"x" * (1 << 20)}] * 40, [{"key": "trace", "value": None}]] * 2
    rows = pa.table({"headers": pa.array(headers, pa.list_(header))})
    write_parquet(tmp_path / "a", rows.to_batches(max_chunksize=3), rows.schema)
    assert groups_of(tmp_path / "a") == [6, 2]
    assert pq.read_table(tmp_path / "a").equals(rows)
