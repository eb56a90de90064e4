"""SHELL (pyspark, the network, the clock): the streaming read of format "flakelog".

Spark keeps one FlakelogStreamReader in a Python process beside the driver for as long as the query runs, and asks it
for offsets and partitions. Another instance reads on the executors. The batches are planned by
spark_bridge.selection.stream_planner.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from spark_bridge.reading.cluster import Cluster
from spark_bridge.reading.id_clock import IdClock
from spark_bridge.selection.pinned import compacted_topics, id_clock
from spark_bridge.selection.stream_begin import Loss
from spark_bridge.selection.stream_log import SelectedLog
from spark_bridge.selection.stream_options import StreamOptions
from spark_bridge.selection.stream_planner import StreamPlanner
from spark_bridge.source.one_line import one_line
from spark_bridge.source.read_task import TaskRange, TaskRead, input_partitions

_log = logging.getLogger(__name__)


class FlakelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader of micro-batches. It opens no connection before Spark asks it for an offset."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._read = TaskRead(
            options.read.servers, options.read.columns, options.read.settings, options.read.poison_report
        )
        self._cluster: Cluster | None = None
        self._id_clock: IdClock | None = None
        self._is_compacted: dict[str, bool] = {}

    def __reduce__(self) -> tuple[type["FlakelogStreamReader"], tuple[StreamOptions]]:
        """Send the options alone to the executors, without connections."""
        return type(self), (self._options,)

    @one_line()
    def initialOffset(self) -> dict[str, Any]:
        return self._open().initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        limits = self._options.limits
        if limits.max_offsets:
            return ReadMaxRows(limits.max_offsets)
        return ReadMinRows(limits.min_offsets) if limits.min_offsets else ReadAllAvailable()

    @one_line()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch. Spark passes one limit back; the planner applies both that were set."""
        limited = not isinstance(limit, ReadAllAvailable)
        end: dict[str, Any] = self._open().next(start, limited=limited, now_ms=int(time.monotonic() * 1000))
        return end

    @one_line()
    def prepareForTriggerAvailableNow(self) -> None:
        self._open().freeze()

    @one_line()
    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._open().report()

    @one_line()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        planned = self._open().ranges(start, end)
        self._ask_for_compaction({planned_range.within.topic for planned_range in planned})
        ranges = [
            TaskRange(
                planned_range.within,
                planned_range.topic_id,
                self._keeps_ids(planned_range.within.topic),
                self._clock(),
                is_compacted=self._is_compacted[planned_range.within.topic],
            )
            for planned_range in planned
        ]
        return input_partitions(ranges, together=not self._options.read.is_split)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read.read(partition)

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()

    def _keeps_ids(self, topic: str) -> bool:
        return self._cluster is not None and self._cluster.keeps_ids(topic)

    def _ask_for_compaction(self, topics: set[str]) -> None:
        """Ask once in a run which topics are compacted."""
        new = topics - self._is_compacted.keys()
        if new:
            assert self._cluster is not None, "partitions opens it"
            compacted = compacted_topics(self._options.read.settings, new, self._cluster)
            self._is_compacted |= {topic: topic in compacted for topic in new}

    def _clock(self) -> IdClock:
        if self._id_clock is None:
            assert self._cluster is not None, "partitions opens it"
            self._id_clock = id_clock(self._options.read, self._options.read.columns, self._cluster)
        return self._id_clock

    def _open(self) -> StreamPlanner:
        if self._cluster is None:
            options = self._options
            for warning in options.read.warnings:
                _log.warning("flakelog: %s", warning)
            self._cluster = Cluster.connect(options.read.servers, options.read.driver_settings)
            self._planner = StreamPlanner(
                SelectedLog(self._cluster, options, _warn_of_start),
                options.limits,
                fail_on_data_loss=options.read.fail_on_data_loss,
                min_partitions=options.read.min_partitions,
                max_records_per_partition=options.read.max_records_per_partition,
                on_loss=_warn_of_loss,
            )
        return self._planner


def _warn_of_loss(loss: Loss) -> None:
    _log.warning("lost %d offsets or more, and went on because failOnDataLoss=false: %s", loss.offsets, loss.reason)


def _warn_of_start(reason: str) -> None:
    _log.warning("because failOnDataLoss=false: %s", reason)
