"""SHELL (pyspark, a producer): the batch and streaming write of format "flakelog", at least once as in the connector.

A task writes its rows and waits until all are acknowledged. If it fails, Spark runs it again, and rows that were
acknowledged are written again. The commit message of a task has the number of its rows.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from spark_bridge.selection.write_options import WriteOptions
from spark_bridge.source.one_line import one_line
from spark_bridge.source.spare_imports import spare_imports
from spark_bridge.source.topic_producer import write_all
from spark_bridge.source.write_rows import WriteColumns, choose_columns, messages


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The commit message of a task: how many messages were acknowledged."""

    messages: int


@dataclass(frozen=True, slots=True)
class TopicWrite:
    """The part of a write that all its tasks share."""

    options: WriteOptions
    columns: WriteColumns

    @classmethod
    def of(cls, options: WriteOptions, fields: Iterable[tuple[str, str]]) -> "TopicWrite":
        """Check the columns (name, type) of the rows. Raise WriteError."""
        return cls(options, choose_columns(fields, options.topic))

    @one_line()
    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task. Raise WriteFailed, WriteError."""
        options = self.options
        rows = (messages(batch, self.columns) for batch in batches)
        written = Written(write_all(rows, options.producer, options.block_ms, options.security))
        spare_imports()
        return written


class BatchWriter(DataSourceArrowWriter):
    """The writer of `df.write`; `write` runs in tasks."""

    def __init__(self, job: TopicWrite) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._job.write(iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`; `write` runs in tasks, for each micro-batch."""

    def __init__(self, job: TopicWrite) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._job.write(iterator)
