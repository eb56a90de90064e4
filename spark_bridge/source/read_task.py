"""SHELL (pyspark, a log, files): the part of a read that runs in a task on an executor."""

import logging
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_bridge.output.file_name import file_name
from spark_bridge.reading.id_clock import IdClock
from spark_bridge.reading.network import Address
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.range_reader import read_range
from spark_bridge.reading.settings import ReadSettings
from spark_bridge.reading.skipped import SkippedBatch, to_json
from spark_bridge.source.one_line import one_line

REPORT_ENDING = ".poison"
_log = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """The input of one task: a range, the id of its topic, whether its records must have ids, and their layout."""

    def __init__(
        self, within: OffsetRange, topic_id: str | None, require_ids: bool, id_clock: IdClock = IdClock()
    ) -> None:
        super().__init__(within)
        self.within = within
        self.topic_id = topic_id
        self.require_ids = require_ids
        self.id_clock = id_clock


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
            settings = replace(self.settings, require_ids=partition.require_ids, id_clock=partition.id_clock)
            skipped: list[SkippedBatch] = []
            yield from read_range(
                partition.within,
                self.columns,
                self.servers,
                settings,
                partition.topic_id,
                skipped.append,
                warn_of_loss,
            )
            if skipped and self.poison_report is not None:
                _report(skipped, Path(self.poison_report) / report_name(partition.within))


def warn_of_loss(within: OffsetRange, reason: str) -> None:
    _log.warning("flakelog: lost %d offsets, %s, because failOnDataLoss=false: %s", within.offsets, within, reason)


def report_name(within: OffsetRange) -> str:
    """Return the name of the file in which the task of a range names the batches that it left out."""
    return f".{file_name(within)}{REPORT_ENDING}"


def _report(skipped: list[SkippedBatch], path: Path) -> None:
    attempt = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    attempt.write_text(to_json(skipped), encoding="utf-8")
    os.replace(attempt, path)  # attempts of one task write the same text, so the last may win
