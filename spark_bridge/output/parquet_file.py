"""Parquet files whose bytes depend only on their rows."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROWS_PER_GROUP = 32_768
BYTES_PER_GROUP = 64 << 20
"""Most rows and bytes of a Parquet row group, and so what a task keeps in memory. A group has as many rows as fit, and
at least one. Both are fixed, because they determine a file's bytes."""

_TEXTS = pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary
FIELD_BYTES = 8  # a number, a time, or the place of a string


def write_parquet(sink: Any, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> int:
    """Write a file to `sink`, an open binary file, and return its number of rows.

    All settings that affect the file's bytes are fixed: the same rows and the same pyarrow give the same file.
    """
    rows = 0
    with closing(parquet_writer(sink, schema)) as writer:
        for group in groups(batches, schema):
            writer.write_table(group, row_group_size=ROWS_PER_GROUP)
            rows += group.num_rows
    return rows


def parquet_writer(sink: Any, schema: pa.Schema) -> pq.ParquetWriter:
    """Return a writer with the settings that affect a file's bytes. The caller writes groups of `groups`."""
    return pq.ParquetWriter(
        sink, schema, version="2.6", data_page_version="1.0", compression="zstd", compression_level=3
    )


def groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Regroup the rows. Where a group ends depends on the rows alone, and not on the batches."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for batch in batches:
        table = pa.Table.from_batches([batch])
        table = table if table.schema.equals(schema) else table.cast(schema)
        ends = np.cumsum(row_bytes(table))
        begin = before = 0
        while begin < table.num_rows:
            fit = int(np.searchsorted(ends, before + BYTES_PER_GROUP - size, side="right"))
            end = min(fit, begin + ROWS_PER_GROUP - rows, table.num_rows)
            if not rows:
                end = max(end, begin + 1)
            if end <= begin:
                yield pa.concat_tables(waiting).combine_chunks()
                waiting, rows, size = [], 0, 0
                continue
            waiting.append(table.slice(begin, end - begin))
            rows, size = rows + end - begin, size + int(ends[end - 1]) - before
            begin, before = end, int(ends[end - 1])
    if rows:
        yield pa.concat_tables(waiting).combine_chunks()


def row_bytes(table: pa.Table) -> npt.NDArray[np.int64]:
    """Return the size of each row: the lengths of its strings and binaries, and FIELD_BYTES for each other field."""
    total = np.zeros(table.num_rows, np.int64)
    for column in table.columns:
        for chunk, begin in zip(column.chunks, np.cumsum([0, *map(len, column.chunks)]), strict=False):
            total[begin : begin + len(chunk)] += _value_bytes(chunk)
    return total


def _value_bytes(values: pa.Array) -> npt.NDArray[np.int64]:
    kind = values.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        owners = pc.list_parent_indices(values).to_numpy()
        items = _value_bytes(pc.list_flatten(values))
        return np.bincount(owners, items, len(values)).astype(np.int64) + FIELD_BYTES
    if pa.types.is_struct(kind):
        fields = [_value_bytes(pc.struct_field(values, number)) for number in range(kind.num_fields)]
        return sum(fields, np.full(len(values), FIELD_BYTES, np.int64))
    if any(is_of(kind) for is_of in _TEXTS):
        lengths: npt.NDArray[np.int64] = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
        return lengths + np.int64(FIELD_BYTES)
    return np.full(len(values), FIELD_BYTES, np.int64)
