"""SHELL (pyspark, the network, a manifest's file): the Python Data Source "flakelog".

    register(spark)
    spark.read.format("flakelog").option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe", "flights")...

Options: spark_bridge.selection.option_table. Columns: spark_bridge.reading.row. A DataFrame is pinned when Spark asks
for its schema, which it does as soon as `load()` is called: "latest" then stays fixed, however often the DataFrame is
used. With flakelog.binding=late each action pins anew, as with the Kafka connector. Warnings go to standard error of
the driver or of the executor, through Python's logging. Spark pickles this object from one Python worker to the next,
and the tasks' partitions to the executors.
"""

import logging
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from broker.version import VERSION
from spark_bridge.output.file_name import file_name
from spark_bridge.reading.cluster import Cluster
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.range_reader import read_range
from spark_bridge.reading.row import sql_schema
from spark_bridge.reading.skipped import SkippedBatch, to_json
from spark_bridge.selection import manifest
from spark_bridge.selection.options import ReadOptions, parse
from spark_bridge.selection.pinned import PinnedRead, pin

NAME = "flakelog"
REPORT_ENDING = ".poison"
_log = logging.getLogger(__name__)


def register(spark: SparkSession) -> None:
    """Register format("flakelog") with this session."""
    spark.dataSource.register(FlakelogDataSource)


class FlakelogDataSource(DataSource):
    """A data source for batch reads of exact ranges."""

    _options: ReadOptions | None = None
    _pinned: PinnedRead | None = None  # late binding has none

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        options = self._options = parse(dict(self.options))
        for warning in options.warnings:
            _log.warning("%s", warning)
        if options.late:
            return sql_schema(options.columns)
        self._pinned = _pin(options)
        return sql_schema(self._pinned.columns)

    def reader(self, schema: StructType) -> "FlakelogReader":
        if self._options is None:
            raise ValueError("format flakelog has a schema of its own and takes none; name columns by option `columns`")
        return FlakelogReader(self._pinned or _pin(self._options))


def _pin(options: ReadOptions) -> PinnedRead:
    chosen = None if options.manifest is None else manifest.load(Path(options.manifest).read_bytes())
    with Cluster.connect(options.servers, options.driver_settings) as cluster:
        pinned = pin(options, cluster, chosen, VERSION)
    for lost in pinned.lost:
        _warn_of_loss(lost.within, lost.reason)
    return pinned


def _warn_of_loss(within: OffsetRange, reason: str) -> None:
    _log.warning("lost %d offsets, %s, because failOnDataLoss=false: %s", within.offsets, within, reason)


class RangePartition(InputPartition):
    """The input of one task: a range, and the id of its topic."""

    def __init__(self, within: OffsetRange, topic_id: str | None) -> None:
        super().__init__(within)
        self.within = within
        self.topic_id = topic_id


class FlakelogReader(DataSourceReader):
    """A reader whose `read` runs on executors with only `PinnedRead` and the partition as input.

    It deliberately accepts no filters. Spark (4.2) keeps the partitions left by `pushFilters` in the DataFrame's own
    source: after `rows.where("partition = 1").count()`, `rows.count()` would silently count partition 1 alone (a test
    guards against this). Use options to narrow a read: assign, startingOffsets, startingId and others.
    """

    def __init__(self, pinned: PinnedRead) -> None:
        self._pinned = pinned

    def partitions(self) -> Sequence[InputPartition]:
        return [RangePartition(one, self._pinned.topic_id(one)) for one in self._pinned.manifest.ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangePartition):
            return  # Spark makes one empty partition if `partitions` returned none
        pinned, within = self._pinned, partition.within
        skipped: list[SkippedBatch] = []
        yield from read_range(
            within, pinned.columns, pinned.servers, pinned.settings, partition.topic_id, skipped.append, _warn_of_loss
        )
        if skipped and pinned.poison_report is not None:
            _report(skipped, Path(pinned.poison_report) / report_name(within))


def report_name(within: OffsetRange) -> str:
    """Return the name of the file in which the task of a range names the batches that it left out."""
    return f".{file_name(within)}{REPORT_ENDING}"


def _report(skipped: list[SkippedBatch], path: Path) -> None:
    attempt = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    attempt.write_text(to_json(skipped), encoding="utf-8")
    os.replace(attempt, path)  # attempts of one task write the same text, so the last may win
