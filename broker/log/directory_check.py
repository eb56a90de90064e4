"""The check of a data directory whose server is stopped: a start and a scrub of all segments that change nothing.

The start runs on a storage that keeps its changes in memory (broker.log.storage.overlay_storage). So the check finds
what a start would refuse, and a walk with CRCs over every segment finds the rest.
"""

import sys
from collections.abc import Callable, Iterator

from broker.log.integrity.guard import check_aborted
from broker.log.integrity.region_check import Verdict
from broker.log.integrity.segment_walk import Damaged
from broker.log.log_manager import LogManager
from broker.log.partition_log import PartitionLog
from broker.log.segment import Segment
from broker.log.storage.port import StorageError


class DirectoryCheck:
    """A check of the opened logs of a data directory, and its totals."""

    def __init__(self, logs: LogManager) -> None:
        self._logs = logs
        self.partitions = self.segments = self.bytes = 0

    @property
    def size(self) -> int:
        """The bytes that `damages` reads."""
        return sum(segment.size for log in self._logs.all() for segment in log.segments.all)

    def damages(self, read: Callable[[int], object] = lambda size: None) -> Iterator[str]:
        """Yield one line for each damage. `read` is called with the size of each segment that was read."""
        self.partitions = len(self._logs.all())
        for name, reason in sorted(self._logs.offline.items()):
            self.partitions += 1
            yield f"{name}: {reason}"
        for log in self._logs.all():
            for segment in log.segments.all:
                if segment.size:
                    self.segments += 1
                    self.bytes += segment.size
                    if (line := self._damage_of(log, segment)) is not None:
                        yield f"{log.name}: {line}"
                    read(segment.size)

    @staticmethod
    def _damage_of(log: PartitionLog, segment: Segment) -> str | None:
        verdict = Verdict(log, segment)
        try:
            walk = verdict.walk_of(segment.apart(), segment.size, crc=True)
            walk.step(sys.maxsize, sys.maxsize)
            verdict.finished(walk)
            check_aborted(segment, segment.next_offset)
        except (Damaged, StorageError) as error:
            return str(error)
        if verdict.rebuilt is not None:
            return f"the indexes of the segment at {segment.base_offset} are wrong; a start rebuilds them when it reads"
        return None
