"""Late binding: a task that looks up "earliest" and "latest" when it runs, as in the Kafka connector.

Spark plans a DataFrame at its first action, and keeps the tasks for all later actions. Offsets, times and ids are
resolved then. A log's start and end move on, so tasks look those up again in each action: the first task of a partition
begins at its earliest offset, and the last task ends at its latest. One more task reads the partitions that were added
after the first action (`NewPartitions`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from broker.client.offset_spec import Earliest, Latest
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.selection.options import ReadOptions
from spark_bridge.selection.selector import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Bound,
    OffsetBound,
    Offsets,
    topics_of,
)


@dataclass(frozen=True, slots=True)
class LateRange:
    """A task's range. A side that moves with the log is looked up when the task runs."""

    within: OffsetRange
    from_earliest: bool = False
    to_latest: bool = False

    @property
    def moves(self) -> bool:
        return self.from_earliest or self.to_latest

    def resolve(self, first: Offsets, last: Offsets) -> OffsetRange:
        """Return the range with its moving sides replaced: `first` has the log start offsets now, `last` the ends."""
        within = self.within
        start = first[within.partition] if self.from_earliest else within.start
        end = last[within.partition] if self.to_latest else within.end
        return replace(within, start=min(start, end), end=end)


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """The partitions that `options` select when a task runs, and that were not there at the first action."""

    options: ReadOptions
    known: Mapping[str, frozenset[int]]
    """The partitions of the first action by topic."""


def new_partitions(options: ReadOptions, ranges: Iterable[OffsetRange]) -> NewPartitions | None:
    """Return what the task for added partitions looks for; None if the options name the partitions one by one."""
    start, end = options.selector.start, options.selector.end
    if options.topics.partitions or topics_of(start) or topics_of(end):
        return None
    known: dict[str, set[int]] = {}
    for range_ in ranges:
        known.setdefault(range_.topic, set()).add(range_.partition)
    return NewPartitions(options, {topic: frozenset(partitions) for topic, partitions in known.items()})


def late_ranges(
    ranges: Iterable[OffsetRange], tasks: Sequence[OffsetRange], start: Bound, end: Bound
) -> list[LateRange]:
    """Return the tasks with the sides that move, and one task for each partition of `ranges` that is empty now."""
    late = []
    for range_ in ranges:
        parts = [part for part in tasks if part.name == range_.name] or [range_]
        for part in parts:
            from_earliest = part is parts[0] and _moves(start, range_, Earliest(), EARLIEST_OFFSET)
            to_latest = part is parts[-1] and _moves(end, range_, Latest(), LATEST_OFFSET)
            late.append(LateRange(part, from_earliest, to_latest))
    return [range_ for range_ in late if range_.moves or range_.within.offsets]


def _moves(bound: Bound, within: OffsetRange, side: Earliest | Latest, mark: int) -> bool:
    """Return True if the bound of a partition is that side of its log; `mark` is the offset that means it."""
    return bound == side or isinstance(bound, OffsetBound) and bound.at[within.topic][within.partition] == mark
