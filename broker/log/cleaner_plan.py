"""Which log to clean next, and how far: plain functions over logs, the rules Kafka's (LogCleanerManager, KIP-58,
KIP-354).

    log start      cleaned offset                end                            log end
    |-- cleaned ---|-- dirty --------------------|-- not yet -------------------|

Whole segments are cleaned, and none that is appended to, holds an offset that is not stable, is younger than
min.compaction.lag.ms, or that the checkpoint on the disk does not cover: past the checkpoint recovery wants every
offset in its place. Nor one of a transaction whose marker the checkpoint does not cover: a power cut may take the
marker, and with it all that the transaction wrote, when what it stood in place of must still be there.
"""

from typing import NamedTuple

from broker.log.partition_log import PartitionLog
from broker.log.segment import Segment


class Plan(NamedTuple):
    """Clean the segments of `log` below `end`; those below `first_dirty` have been cleaned before."""

    log: PartitionLog
    segments: tuple[Segment, ...]
    first_dirty: int
    end: int
    dirty_ratio: float
    is_overdue: bool
    """A dirty record is older than max.compaction.lag.ms."""

    @property
    def is_due(self) -> bool:
        """Whether the log is dirty enough, or overdue."""
        return self.is_overdue or self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio


def plan(log: PartitionLog, wall_ms: int) -> Plan | None:
    """What is to be cleaned of a log at `wall_ms`, dirty enough or not; None where there is nothing, or none may be."""
    return _plan(log, wall_ms, _covered_offset(log))


def waits_for_checkpoint(log: PartitionLog, made: Plan | None, wall_ms: int) -> bool:
    """Whether more than is planned would be due if only the checkpoint covered it."""
    if _covered_offset(log) >= log.segments[-1].base_offset:
        return False
    all_of_it = _plan(log, wall_ms, log.log_end_offset)
    return all_of_it is not None and all_of_it.is_due and (made is None or made.end < all_of_it.end)


def _covered_offset(log: PartitionLog) -> int:
    return min(log.checkpointed.segment, log.checkpointed.decided_offset)


def _plan(log: PartitionLog, wall_ms: int, covered_offset: int) -> Plan | None:
    if not log.config.compacts or log.offline is not None or log.uncleanable is not None:
        return None
    first_dirty = log.cleaned_offset
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        first_dirty = log.log_start_offset
    end = _end(log, first_dirty, min(log.last_stable_offset, covered_offset), wall_ms)
    segments = tuple(segment for segment in log.segments if segment.base_offset < end)
    dirty = [segment for segment in segments if segment.next_offset > first_dirty]
    if not dirty:
        return None
    ratio = sum(segment.size for segment in dirty) / max(sum(segment.size for segment in segments), 1)
    times_ms = [segment.first_timestamp_ms for segment in dirty if segment.first_timestamp_ms > 0]
    is_overdue = min(times_ms, default=wall_ms) < wall_ms - log.config.max_compaction_lag_ms
    return Plan(log, segments, first_dirty, end, ratio, is_overdue)


def _end(log: PartitionLog, first_dirty: int, limit: int, wall_ms: int) -> int:
    """The base offset of the first segment that must stay as it is; all from the offset `limit` on must."""
    lag_ms = log.config.min_compaction_lag_ms
    for segment in log.segments[:-1]:
        young = segment.next_offset > first_dirty and lag_ms > 0 and segment.newest_ms > wall_ms - lag_ms
        if segment.next_offset > limit or young:
            return segment.base_offset
    return log.segments[-1].base_offset
