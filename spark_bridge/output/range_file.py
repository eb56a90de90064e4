"""The file of one range: written in a task, and described for the receipt.

A task reads the range, adds up what it read, and writes a Parquet file. The sums are of the rows as they were read.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_bridge.output.file_name import file_name
from spark_bridge.output.hashing_file import HashingFile
from spark_bridge.output.parquet_file import write_parquet
from spark_bridge.output.row_sum import RowSum
from spark_bridge.output.storage import Storage
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.row import arrow_schema
from spark_bridge.reading.skipped import SkippedBatch

OFFSET = "offset"

OnBatch = Callable[[pa.RecordBatch], object]


class RangeFile(NamedTuple):
    """The rows that a task read of a range, and the file that it wrote."""

    rows: int
    offset_sum: int
    checksum: str
    """The checksum of the rows read (spark_bridge.output.row_sum)."""
    bytes: int
    sha256: str
    skipped: tuple[SkippedBatch, ...] = ()


def columns_to_read(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that `write_range` needs: the offset also where the file has none."""
    return tuple(columns) if OFFSET in columns else (*columns, OFFSET)


def write_range(
    storage: Storage,
    within: OffsetRange,
    columns: Sequence[str],
    read: Callable[[Callable[[SkippedBatch], object]], Iterable[pa.RecordBatch]],
    on_batch: OnBatch = lambda batch: None,
) -> RangeFile:
    """Write the rows of a range to its file in `storage`, whole or not at all.

    `read` is called with a function for the batches that are left out, and returns the rows with `columns_to_read`.
    `on_batch` is called for each Arrow batch.
    """
    skipped: list[SkippedBatch] = []
    total = RowSum()
    offset_sum = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal offset_sum
        for batch in read(skipped.append):
            offset_sum += _sum(batch.column(OFFSET).to_numpy())
            chosen = batch.select(list(columns))
            total.add(chosen)
            on_batch(chosen)
            yield chosen

    with storage.write(file_name(within)) as file:
        sink = HashingFile(file)
        write_parquet(sink, counted(), arrow_schema(columns))
    return RangeFile(total.rows, offset_sum, total.digest(), sink.size, sink.sha256, tuple(skipped))


def _sum(offsets: npt.NDArray[np.int64]) -> int:
    """Return the exact sum, which may have more than 64 bits."""
    return (int((offsets >> 32).sum()) << 32) + int((offsets & 0xFFFF_FFFF).sum())
