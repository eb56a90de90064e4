"""The files of one part: its rows, divided by the values of --partition-by.

The bytes of each file depend only on the part's rows, and not on the batches in which they come: rows are regrouped as
`spark_bridge.output.parquet_file` does, and everything below decides by groups.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from spark_bridge.load.load import LoadError
from spark_bridge.load.partitioning import Partitioning
from spark_bridge.load.receipt import DataFile
from spark_bridge.load.sink import Rows
from spark_bridge.load.value_decoder import REJECTED
from spark_bridge.output.file_name import file_name
from spark_bridge.output.hashing_file import HashingFile
from spark_bridge.output.parquet_file import BYTES_PER_GROUP, ROWS_PER_GROUP, groups, parquet_writer, row_bytes
from spark_bridge.reading.offset_range import OffsetRange

VALUES_MAX = 1_000
"""Values of --partition-by in one part. Each has an open file; with more, files would be too small to be of use."""
HELD_BYTES = 2 * BYTES_PER_GROUP
"""Rows that a part keeps in memory until a value has enough for a row group. Beyond it, the largest group is written
as it is."""

Write = Callable[[str], AbstractContextManager[BinaryIO]]
"""Opens a file by its name in the destination. The file appears whole after the block, or not at all."""


def write_files(
    part: OffsetRange, rows: Rows, partition_by: str | None, write: Write, chain: int = 0, *, keeps_column: bool = False
) -> dict[str, DataFile]:
    """Write all rows of a part and return its files by name; a part without rows has none. Raise LoadError.

    With `keeps_column`, the column of `partition_by` stays in the files.
    """
    partitioning = Partitioning(rows.schema, partition_by, keeps_column=keeps_column)
    files = PartFiles(part, partitioning.schema, write, chain)
    with ExitStack() as stack:
        try:
            for group in groups(rows, rows.schema):
                for folder, table in partitioning.divide(group):
                    files.add(folder, table, stack)
            files.finish()
        except BaseException:
            files.drop()
            raise
    return files.described()


class KeptApart:
    """The file of a part's messages whose values did not decode; without any, there is no file.

    A context manager: the file appears after the block, unless that raised an exception.
    """

    def __init__(self, part: OffsetRange, folder: str, write: Write, chain: int = 0) -> None:
        self._files = PartFiles(part, REJECTED, write, chain)
        self._folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> "KeptApart":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._files.finish()
        else:
            self._files.drop()
        self._stack.__exit__(kind, error, trace)

    def add(self, messages: pa.RecordBatch) -> None:
        """Keep messages, with the columns of value_decoder.REJECTED."""
        self._files.add(self._folder, pa.Table.from_batches([messages]), self._stack)

    def described(self) -> dict[str, DataFile]:
        return self._files.described()


class PartFiles:
    """The files of a part that are being written."""

    def __init__(self, part: OffsetRange, schema: pa.Schema, write: Write, chain: int) -> None:
        self._part = part
        self._name = file_name(part, chain)
        self._schema = schema
        self._write = write
        self._open: dict[str, _File] = {}
        self._held = 0

    def add(self, folder: str, table: pa.Table, stack: ExitStack) -> None:
        if folder not in self._open:
            if len(self._open) == VALUES_MAX:
                raise LoadError(
                    f"{self._part} has more than {VALUES_MAX:,} values of --partition-by, such as {folder}: choose a "
                    "column with fewer values, or smaller files with --file-rows"
                )
            self._open[folder] = _File(stack.enter_context(self._write(folder + self._name)), self._schema)
        file = self._open[folder]
        self._held += file.hold(table)
        if file.held_rows >= ROWS_PER_GROUP or file.held_bytes >= BYTES_PER_GROUP:
            self._held -= file.flush()
        while self._held > HELD_BYTES:
            self._held -= max(self._open.values(), key=lambda open_file: open_file.held_bytes).flush()

    def finish(self) -> None:
        for file in self._open.values():
            file.finish()

    def drop(self) -> None:
        for file in self._open.values():
            file.drop()

    def described(self) -> dict[str, DataFile]:
        return {folder + self._name: file.described() for folder, file in sorted(self._open.items())}


class _File:
    """A Parquet file that is being written, and the rows of its next group."""

    def __init__(self, sink: BinaryIO, schema: pa.Schema) -> None:
        self._sink = HashingFile(sink)
        self._writer: pq.ParquetWriter = parquet_writer(self._sink, schema)
        self._waiting: list[pa.Table] = []
        self._rows = 0
        self.held_rows = self.held_bytes = 0

    def hold(self, table: pa.Table) -> int:
        """Take rows and return their bytes."""
        size = int(row_bytes(table).sum())
        self._waiting.append(table)
        self.held_rows += table.num_rows
        self.held_bytes += size
        return size

    def flush(self) -> int:
        """Write the rows held so far and return their bytes."""
        size = self.held_bytes
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting).combine_chunks(), row_group_size=ROWS_PER_GROUP)
        self._rows += self.held_rows
        self._waiting, self.held_rows, self.held_bytes = [], 0, 0
        return size

    def finish(self) -> None:
        self.flush()
        self._writer.close()

    def drop(self) -> None:
        """Close the writer; its file is removed."""
        self._sink.dropped = True
        self._writer.close()

    def described(self) -> DataFile:
        return DataFile(self._rows, self._sink.size, self._sink.sha256)
