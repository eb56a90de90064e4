"""SHELL (files): Parquet files whose bytes depend only on their rows."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROWS_PER_GROUP = 32_768
"""Rows of a Parquet row group, and so the rows a task keeps in memory. Fixed, because it determines a file's bytes."""


def sha256(path: Path) -> str:
    """Return the hash of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_parquet(path: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> int:
    """Write one file and return its number of rows.

    All settings that affect the file's bytes are fixed: the same rows and the same pyarrow give the same file.
    """
    rows = 0
    with path.open("wb") as sink:
        writer = pq.ParquetWriter(
            sink, schema, version="2.6", data_page_version="1.0", compression="zstd", compression_level=3
        )
        with closing(writer):
            for group in _groups(batches, schema):
                writer.write_table(group, row_group_size=ROWS_PER_GROUP)
                rows += group.num_rows
        sink.flush()
        os.fsync(sink.fileno())
    return rows


def _groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Regroup the rows into tables of ROWS_PER_GROUP; only the last may be shorter."""
    waiting = schema.empty_table()
    for batch in batches:
        table = pa.Table.from_batches([batch])
        waiting = pa.concat_tables([waiting, table if table.schema.equals(schema) else table.cast(schema)])
        while waiting.num_rows >= ROWS_PER_GROUP:
            yield waiting.slice(0, ROWS_PER_GROUP).combine_chunks()
            waiting = waiting.slice(ROWS_PER_GROUP)
    if waiting.num_rows:
        yield waiting.combine_chunks()
