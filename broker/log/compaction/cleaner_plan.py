"""The part of a log to clean, and whether cleaning is due: plain functions over logs.

The rules are Kafka's (LogCleanerManager, KIP-58, KIP-354).

    log start      cleaned offset                end                            log end
    |-- cleaned ---|-- dirty --------------------|-- not yet -------------------|

The cleaner takes whole segments, and ends before the first segment that is active, holds an offset at or past the last
stable offset, is younger than min.compaction.lag.ms, or is not covered by the checkpoint on the disk. The last rule
holds because recovery expects every offset past the checkpoint.

It also ends before a segment with records of a transaction whose marker the checkpoint does not cover. A power cut may
remove that marker and with it all records of the transaction, and then the older records of the same keys must still
exist.
"""

from typing import NamedTuple

from broker.log.partition_log import PartitionLog
from broker.log.segment import Segment


class Plan(NamedTuple):
    """A plan to clean the segments of `log` below `end`; the part below `first_dirty` is already clean."""

    log: PartitionLog
    segments: tuple[Segment, ...]
    first_dirty: int
    end: int
    dirty_ratio: float
    is_overdue: bool
    """A dirty record is older than max.compaction.lag.ms."""

    @property
    def is_due(self) -> bool:
        """Return True if the log is dirty enough, or overdue."""
        return self.is_overdue or self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio


def plan(log: PartitionLog, wall_ms: int) -> Plan | None:
    """Return the plan for a log at `wall_ms`, even if the log is not due. Return None if nothing can be cleaned."""
    return _plan(log, wall_ms, _covered_offset(log))


def waits_for_checkpoint(log: PartitionLog, made: Plan | None, wall_ms: int) -> bool:
    """Return True if a longer plan than `made` would be due, and only the checkpoint does not cover it yet."""
    if _covered_offset(log) >= log.segments.active.base_offset:
        return False
    all_of_it = _plan(log, wall_ms, log.log_end_offset)
    return all_of_it is not None and all_of_it.is_due and (made is None or made.end < all_of_it.end)


def _covered_offset(log: PartitionLog) -> int:
    return min(log.durability.checkpointed.segment, log.durability.checkpointed.decided_offset)


def _plan(log: PartitionLog, wall_ms: int, covered_offset: int) -> Plan | None:
    if not log.config.compacts or log.offline is not None or log.uncleanable is not None:
        return None
    first_dirty = log.cleaned_offset
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        first_dirty = log.log_start_offset
    end = _end(log, first_dirty, min(log.last_stable_offset, covered_offset), wall_ms)
    segments = tuple(segment for segment in log.segments.all if segment.base_offset < end)
    dirty = [segment for segment in segments if segment.next_offset > first_dirty]
    if not dirty:
        return None
    ratio = sum(segment.size for segment in dirty) / max(sum(segment.size for segment in segments), 1)
    times_ms = [segment.first_timestamp_ms for segment in dirty if segment.first_timestamp_ms > 0]
    is_overdue = min(times_ms, default=wall_ms) < wall_ms - log.config.max_compaction_lag_ms
    return Plan(log, segments, first_dirty, end, ratio, is_overdue)


def _end(log: PartitionLog, first_dirty: int, limit: int, wall_ms: int) -> int:
    """Return the base offset of the first segment to leave out: one that is active, too young, or ends past `limit`."""
    lag_ms = log.config.min_compaction_lag_ms
    for segment in log.segments.all[:-1]:
        young = segment.next_offset > first_dirty and lag_ms > 0 and segment.newest_ms > wall_ms - lag_ms
        if segment.next_offset > limit or young:
            return segment.base_offset
    return log.segments.active.base_offset
