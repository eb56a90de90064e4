"""SHELL (pyspark, a log, files): the part of a read that runs in a task on an executor."""

import gc
import logging
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_bridge.output.file_name import file_name
from spark_bridge.reading.cluster import Cluster
from spark_bridge.reading.id_clock import IdClock
from spark_bridge.reading.network import Address
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.range_reader import read_range
from spark_bridge.reading.settings import ReadSettings
from spark_bridge.reading.skipped import SkippedBatch, to_json
from spark_bridge.selection.late import LateRange
from spark_bridge.selection.plan import GROUP_OFFSETS_MAX, groups
from spark_bridge.source.one_line import one_line

REPORT_ENDING = ".poison"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskRange:
    """A range that a task reads, the id of its topic, whether its records must have ids, and their layout.

    `late` is the same range if the task must ask first where it begins or ends; see spark_bridge.selection.late.
    """

    within: OffsetRange
    topic_id: str | None
    require_ids: bool
    id_clock: IdClock = IdClock()
    late: LateRange | None = None


class RangePartition(InputPartition):
    """The input of one task: the ranges that it reads one after the other."""

    def __init__(self, ranges: Sequence[TaskRange]) -> None:
        super().__init__(tuple(ranges))
        self.ranges = tuple(ranges)


def input_partitions(ranges: Sequence[TaskRange], *, together: bool) -> list[InputPartition]:
    """Return the tasks' inputs: one for each range, or several small ranges `together`; see plan.groups."""
    if not together:
        return [RangePartition([one]) for one in ranges]
    offsets = [GROUP_OFFSETS_MAX if one.late else one.within.offsets for one in ranges]  # late ranges may be large
    return [RangePartition(ranges[each.start : each.stop]) for each in groups(offsets)]


@dataclass(frozen=True, slots=True)
class TaskRead:
    """The part of a read that all its tasks share."""

    servers: Sequence[Address]
    columns: tuple[str, ...]
    settings: ReadSettings
    poison_report: str | None = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        if not isinstance(partition, RangePartition):
            return  # Spark makes one empty partition if a batch read has none
        with one_line():
            for one in partition.ranges:
                yield from self._range(one)
        spare_imports()

    def _range(self, one: TaskRange) -> Iterator[pa.RecordBatch]:
        within = one.within if one.late is None else self._now(one.late)
        settings = replace(self.settings, require_ids=one.require_ids, id_clock=one.id_clock)
        skipped: list[SkippedBatch] = []
        yield from read_range(
            within, self.columns, self.servers, settings, one.topic_id, skipped.append, warn_of_loss
        )
        if skipped and self.poison_report is not None:
            _report(skipped, Path(self.poison_report) / report_name(within))

    def _now(self, late: LateRange) -> OffsetRange:
        topic, committed = late.within.topic, self.settings.read_committed
        with Cluster.connect(self.servers, self.settings) as cluster:
            return late.resolve(cluster.earliest(topic), cluster.latest(topic, committed=committed))


@cache
def spare_imports() -> None:
    """Leave the modules of this process out of garbage collections, once, after its first task has imported them.

    pyspark's daemon collects garbage after each task. It looks at 100,000 objects of imported modules then, for 60 ms,
    in which a task reads 250,000 messages (https://docs.python.org/3/library/gc.html#gc.freeze).
    """
    gc.collect()
    gc.freeze()


def warn_of_loss(within: OffsetRange, reason: str) -> None:
    _log.warning("flakelog: lost %d offsets, %s, because failOnDataLoss=false: %s", within.offsets, within, reason)


def report_name(within: OffsetRange) -> str:
    """Return the name of the file in which the task of a range names the batches that it left out."""
    return f".{file_name(within)}{REPORT_ENDING}"


def _report(skipped: list[SkippedBatch], path: Path) -> None:
    attempt = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    attempt.write_text(to_json(skipped), encoding="utf-8")
    os.replace(attempt, path)  # attempts of one task write the same text, so the last may win
