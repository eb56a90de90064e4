"""SHELL (pyspark, the network, a manifest's file): the Python Data Source "flakelog".

    register(spark)
    spark.read.format("flakelog").option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe", "flights")...

Options: spark_bridge.options. Columns: spark_bridge.row. A DataFrame is pinned when its schema is asked for, which
Spark does as soon as `load()` is called: what "latest" was then stays, however often the DataFrame is used. Spark
pickles this object from one Python worker to the next, and the tasks' partitions to the executors.
"""

from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from spark_bridge import manifest
from spark_bridge.cluster import Cluster
from spark_bridge.offset_range import OffsetRange
from spark_bridge.options import parse
from spark_bridge.pinned import PinnedRead, pin
from spark_bridge.pushdown import Condition, narrow
from spark_bridge.range_reader import SocketNetwork, read_range
from spark_bridge.row import sql_schema

NAME = "flakelog"

_COMPARISONS: dict[type[Filter], str] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    In: "in",
}


def register(spark: SparkSession) -> None:
    """Make format("flakelog") known to this session, with the setting its filters need (Spark's default refuses a
    source that takes filters)."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(FlakelogDataSource)


class FlakelogDataSource(DataSource):
    """Batch reads of exact ranges."""

    _pinned: PinnedRead | None = None

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        options = parse(dict(self.options))
        chosen = None if options.manifest is None else manifest.load(Path(options.manifest).read_bytes())
        self._pinned = pin(options, Cluster(options.servers, SocketNetwork()), chosen, version("flakelog"))
        return sql_schema(self._pinned.columns)

    def reader(self, schema: StructType) -> "FlakelogReader":
        if self._pinned is None:
            raise ValueError("format flakelog has a schema of its own and takes none; name columns by option `columns`")
        return FlakelogReader(self._pinned)


class RangePartition(InputPartition):
    """One task: a range, and the id of the topic it is of."""

    def __init__(self, within: OffsetRange, topic_id: str | None) -> None:
        super().__init__(within)
        self.within = within
        self.topic_id = topic_id


class FlakelogReader(DataSourceReader):
    """`read` runs on executors: what it needs there is in `PinnedRead` and in the partition."""

    def __init__(self, pinned: PinnedRead) -> None:
        self._pinned = pinned
        self._ranges = pinned.manifest.ranges

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Read less where filters allow it; all are handed back, so Spark applies them to the rows too."""
        cluster = Cluster(self._pinned.servers, SocketNetwork())
        first_at_id = cluster.first_at_id if self._pinned.settings.require_ids else None
        self._ranges = narrow(self._ranges, _conditions(filters), first_at_id)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        return [RangePartition(one, self._pinned.topic_id(one)) for one in self._ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangePartition):
            return  # Spark makes one empty partition where `partitions` gave none
        pinned = self._pinned
        yield from read_range(partition.within, pinned.columns, pinned.servers, pinned.settings, partition.topic_id)


def _conditions(filters: Iterable[Filter]) -> Iterator[Condition]:
    for each in filters:
        comparison = _COMPARISONS.get(type(each))
        if comparison is not None:
            attribute = getattr(each, "attribute")
            if len(attribute) == 1:
                yield Condition(attribute[0], comparison, getattr(each, "value"))
