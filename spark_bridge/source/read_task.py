"""SHELL (pyspark, files): the part of a read that runs in a task on an executor."""

import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_bridge.output.file_name import file_name
from spark_bridge.reading.cluster import Cluster, Snapshot
from spark_bridge.reading.id_clock import IdClock
from spark_bridge.reading.kept_clients import CLIENTS
from spark_bridge.reading.network import Address
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.range_reader import read_range, warn_of_loss
from spark_bridge.reading.settings import ReadSettings
from spark_bridge.reading.skipped import SkippedBatch, to_json
from spark_bridge.selection.late import LateRange, NewPartitions
from spark_bridge.selection.pinned import compacted_topics, find_new
from spark_bridge.selection.plan import GROUP_OFFSETS_MAX, groups
from spark_bridge.source.one_line import one_line
from spark_bridge.source.spare_imports import spare_imports

REPORT_ENDING = ".poison"


@dataclass(frozen=True, slots=True)
class TaskRange:
    """A range that a task reads, the id of its topic, whether its records must have ids, and their layout.

    `is_compacted` is True if the broker compacts the topic, so that offsets may be missing.

    `late` is the same range if the task must ask first where it begins or ends; see spark_bridge.selection.late.
    """

    within: OffsetRange
    topic_id: str | None
    require_ids: bool
    id_clock: IdClock = IdClock()
    late: LateRange | None = None
    is_compacted: bool = False


class RangePartition(InputPartition):
    """The input of one task: the ranges that it reads one after the other."""

    def __init__(self, ranges: Sequence[TaskRange]) -> None:
        super().__init__(tuple(ranges))
        self.ranges = tuple(ranges)


class NewPartitionsTask(InputPartition):
    """The input of the task that looks for partitions that are new to a read with late binding."""

    def __init__(self, new: NewPartitions) -> None:
        super().__init__(new)
        self.new = new


def input_partitions(ranges: Sequence[TaskRange], *, together: bool) -> list[InputPartition]:
    """Return the tasks' inputs: one for each range, or several small ranges `together`; see plan.groups."""
    if not together:
        return [RangePartition([range_]) for range_ in ranges]
    # The size of a late range is not known.
    offsets = [GROUP_OFFSETS_MAX if range_.late else range_.within.offsets for range_ in ranges]
    return [RangePartition(ranges[group.start : group.stop]) for group in groups(offsets)]


@dataclass(frozen=True, slots=True)
class TaskRead:
    """The part of a read that all its tasks share."""

    servers: Sequence[Address]
    columns: tuple[str, ...]
    settings: ReadSettings
    poison_report: str | None = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        with one_line():
            for range_ in self._ranges(partition):
                yield from self._range(range_)
        spare_imports()

    def _ranges(self, partition: InputPartition) -> Sequence[TaskRange]:
        if isinstance(partition, RangePartition):
            return partition.ranges
        if isinstance(partition, NewPartitionsTask):
            return self._new(partition.new)
        return ()  # Spark makes one empty partition if a batch read has none

    def _range(self, range_: TaskRange) -> Iterator[pa.RecordBatch]:
        within = range_.within if range_.late is None else self._now(range_.late)
        compacted = frozenset((within.topic,)) if range_.is_compacted else frozenset[str]()
        settings = replace(
            self.settings, require_ids=range_.require_ids, id_clock=range_.id_clock, compacted_topics=compacted
        )
        skipped: list[SkippedBatch] = []
        yield from read_range(within, self.columns, self.servers, settings, range_.topic_id, skipped.append)
        if skipped and self.poison_report is not None:
            _report(skipped, Path(self.poison_report) / report_name(within))

    def _new(self, new: NewPartitions) -> list[TaskRange]:
        settings = self.settings
        with CLIENTS.lend(self.servers, settings) as client:
            cluster = Cluster(client, settings.patience)
            planned = find_new(new, cluster, lambda lost: warn_of_loss(lost.within, lost.reason))
            compacted = compacted_topics(settings, {within.topic for within, _ in planned}, cluster)
        return [
            TaskRange(within, topic_id, settings.require_ids, settings.id_clock, None, within.topic in compacted)
            for within, topic_id in planned
        ]

    def _now(self, late: LateRange) -> OffsetRange:
        topic, partition, committed = late.within.topic, late.within.partition, self.settings.read_committed
        with CLIENTS.lend(self.servers, self.settings) as client:
            cluster = Cluster(client, self.settings.patience)
            cluster.describe([topic])  # names a deleted topic without retries
            now = Snapshot(cluster, [(topic, partition)])
            return late.resolve(now.earliest(topic), now.latest(topic, committed=committed))


def report_name(within: OffsetRange) -> str:
    """Return the name of the file in which the task of a range names the batches that it left out."""
    return f".{file_name(within)}{REPORT_ENDING}"


def _report(skipped: list[SkippedBatch], path: Path) -> None:
    attempt = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    attempt.write_text(to_json(skipped), encoding="utf-8")
    os.replace(attempt, path)  # attempts of one task write the same text, so the last may win
