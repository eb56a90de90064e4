"""SHELL (pyspark, the network, a manifest's file): the Python Data Source "flakelog".

    spark.read.format("flakelog").option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe", "flights")...

Options: spark_bridge.selection.option_table. Columns: spark_bridge.reading.row. A DataFrame is pinned when Spark asks
for its schema, which it does as soon as `load()` is called: "latest" then stays fixed, however often the DataFrame is
used. With flakelog.binding=late the tasks of each action ask for it (spark_bridge.selection.late), as in the Kafka
connector. Warnings go to standard error of the driver or of the executor, through Python's logging. Spark pickles this
object from one Python worker to the next, and the tasks' partitions to the executors.

Spark finds the source in each session by the module pyspark_flakelog. `register` is for sessions that do not find it.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from broker.version import VERSION
from spark_bridge.reading.cluster import Cluster
from spark_bridge.reading.range_reader import warn_of_loss
from spark_bridge.reading.row import sql_schema
from spark_bridge.selection import manifest
from spark_bridge.selection.option_table import OptionError
from spark_bridge.selection.options import ReadOptions, parse
from spark_bridge.selection.pinned import PinnedRead, pin
from spark_bridge.selection.selector import SelectionError
from spark_bridge.selection.stream_options import parse_stream
from spark_bridge.selection.write_options import parse_write
from spark_bridge.source.one_line import one_line
from spark_bridge.source.read_task import NewPartitionsTask, TaskRange, TaskRead, input_partitions
from spark_bridge.source.stream_reader import FlakelogStreamReader
from spark_bridge.source.writer import BatchWriter, StreamWriter, TopicWrite

NAME = "flakelog"
OWN_SCHEMA = "format flakelog has a schema of its own and takes none; name columns by option `columns`"
_log = logging.getLogger(__name__)


def register(spark: SparkSession) -> None:
    """Register format("flakelog") with this session."""
    spark.dataSource.register(FlakelogDataSource)


class FlakelogDataSource(DataSource):
    """A data source for batch reads of exact ranges, streams and writes."""

    _options: ReadOptions | None = None
    _pinned: PinnedRead | None = None  # late binding has none
    _is_planned = False  # from now on the tasks' source is pickled, which needs no plan
    _only_stream: str | None = None
    """Why the options cannot be those of a batch read, if they can be those of a stream."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def __getstate__(self) -> dict[str, Any]:
        """Leave the plan out: Spark pickles the source for each task, and a plan may have thousands of ranges."""
        return self.__dict__ | ({"_pinned": None} if self._is_planned else {})

    @one_line()
    def schema(self) -> str:
        """Return the columns, and pin a batch read. Spark asks batch reads and streams alike, and says not which."""
        try:
            options = parse(dict(self.options))
            if not options.late:
                self._pinned = pin_now(options)
        except (OptionError, SelectionError) as error:
            return sql_schema(self._columns_of_stream(error))
        self._options = options
        return sql_schema(options.columns if self._pinned is None else self._pinned.columns)

    @one_line()
    def reader(self, schema: StructType) -> "FlakelogReader":
        if self._only_stream is not None:
            raise OptionError(self._only_stream)
        if self._options is None:
            raise OptionError(OWN_SCHEMA)
        for warning in self._options.warnings:
            _log.warning("flakelog: %s", warning)
        self._is_planned = True
        return FlakelogReader(self._pinned or pin_now(self._options), together=not self._options.is_split)

    @one_line()
    def streamReader(self, schema: StructType) -> FlakelogStreamReader:
        if self._options is None and self._only_stream is None:
            raise OptionError(OWN_SCHEMA)
        return FlakelogStreamReader(parse_stream(dict(self.options)))

    @one_line()
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        if overwrite:
            raise OptionError('save mode overwrite is not possible, a log is only appended to: mode("append")')
        return BatchWriter(self._write(schema))

    @one_line()
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return a writer. `overwrite` means output mode complete: each batch appends all rows, as in the connector."""
        return StreamWriter(self._write(schema))

    def _columns_of_stream(self, error: Exception) -> tuple[str, ...]:
        """Return the columns of the stream that the options describe. Raise `error` if they describe none."""
        try:
            columns = parse_stream(dict(self.options)).read.columns
        except OptionError:
            raise error from None
        self._only_stream = str(error)
        return columns

    def _write(self, schema: StructType) -> TopicWrite:
        options = parse_write(dict(self.options))
        for warning in options.warnings:
            _log.warning("flakelog: %s", warning)
        return TopicWrite.of(options, [(field.name, field.dataType.simpleString()) for field in schema.fields])


def pin_now(options: ReadOptions) -> PinnedRead:
    """Ask the cluster, and pin a batch read. Log a warning for lost offsets."""
    chosen = None if options.manifest is None else manifest.load(Path(options.manifest).read_bytes())
    with Cluster.connect(options.servers, options.driver_settings) as cluster:
        pinned = pin(options, cluster, chosen, VERSION)
    for lost in pinned.lost:
        warn_of_loss(lost.within, lost.reason)
    return pinned


class FlakelogReader(DataSourceReader):
    """A reader whose `read` runs on executors with only `TaskRead` and the partition as input.

    It deliberately accepts no filters. Spark (4.2) keeps the partitions left by `pushFilters` in the DataFrame's own
    source: after `rows.where("partition = 1").count()`, `rows.count()` would silently count partition 1 alone (a test
    guards against this). Use options to narrow a read: assign, startingOffsets, startingId and others.
    """

    def __init__(self, pinned: PinnedRead, *, together: bool) -> None:
        """Read the ranges of `pinned`, several small ones in a task if `together`."""
        self._pinned = pinned
        self._together = together

    def __reduce__(self) -> tuple[type[TaskRead], tuple[object, ...]]:
        """Give the executors a TaskRead in place of this: a plan of thousands of ranges takes time to unpickle."""
        pinned = self._pinned
        return TaskRead, (pinned.servers, pinned.columns, pinned.settings, pinned.poison_report)

    @one_line()
    def partitions(self) -> Sequence[InputPartition]:
        pinned, settings = self._pinned, self._pinned.settings
        ranges = [
            TaskRange(
                task.within,
                pinned.topic_id(task.within),
                settings.require_ids,
                settings.id_clock,
                task if task.moves else None,
                task.within.topic in settings.compacted_topics,
            )
            for task in pinned.tasks
        ]
        partitions_read: list[InputPartition] = input_partitions(ranges, together=self._together)
        if pinned.new is not None:
            partitions_read.append(NewPartitionsTask(pinned.new))
        return partitions_read

    def read(self, partition: InputPartition) -> NoReturn:
        raise TypeError("the tasks read: Spark pickles this reader for them, as a TaskRead")
