"""Splitting of ranges into tasks, with two options of the Kafka connector: minPartitions, maxRecordsPerPartition.

The split depends only on the ranges and the options, never on the Spark cluster that runs it. So a rerun makes the same
tasks and the same files.
"""

from collections.abc import Iterable, Iterator, Sequence

from spark_bridge.reading.offset_range import OffsetRange

TASKS_MAX = 100_000
"""Spark's driver keeps state for each task; a plan with more tasks than this is a mistake."""

TASKS_ENOUGH = 100
"""Small ranges are put together down to about this many tasks, so that work on few messages still runs in parallel."""

GROUP_OFFSETS_MAX = 10_000
"""Offsets of the ranges that one task reads together."""


def plan(
    ranges: Iterable[OffsetRange], *, min_partitions: int = 0, max_records_per_partition: int = 0
) -> tuple[OffsetRange, ...]:
    """Split the non-empty ranges, in order, into about `min_partitions` parts of at most `max_records_per_partition`.

    The value 0 disables an option. As in the connector, `max_records_per_partition` splits first, and `min_partitions`
    splits only fewer parts than it asks for. It is approximate: each range gets a share of the tasks proportional to
    its offsets, rounded, and at least one. Raise ValueError for more than TASKS_MAX tasks, a negative option or
    overlapping ranges.
    """
    if min_partitions < 0 or max_records_per_partition < 0:
        raise ValueError("minPartitions and maxRecordsPerPartition are 0 (off) or more")
    ordered = sorted(range_ for range_ in ranges if range_.offsets)
    _refuse_overlap(ordered)
    counts = [-(-range_.offsets // max_records_per_partition) if max_records_per_partition else 1 for range_ in ordered]
    if sum(counts) < min_partitions:
        total = sum(range_.offsets for range_ in ordered)
        shares = [(range_.offsets * min_partitions + total // 2) // total for range_ in ordered]
        counts = [min(range_.offsets, max(pair)) for range_, *pair in zip(ordered, counts, shares, strict=True)]
    if sum(counts) > TASKS_MAX:
        raise ValueError(f"{sum(counts)} tasks asked for, at most {TASKS_MAX} are planned; ask for larger ones")
    return tuple(part for range_, count in zip(ordered, counts, strict=True) for part in cut(range_, count))


def groups(offsets: Sequence[int]) -> Iterator[range]:
    """Yield runs of neighbours, each for one task, from the number of offsets of each range.

    A task costs as long as 10,000 messages take to read. So where a plan has many more ranges than TASKS_ENOUGH, small
    neighbours are read by one task, as Spark does with small files; a large range stays alone. The result depends only
    on the ranges.
    """
    ranges_max = max(len(offsets) // TASKS_ENOUGH, 1)
    first, total = 0, 0
    for index, offset in enumerate(offsets):
        if index > first and (index - first == ranges_max or total + offset > GROUP_OFFSETS_MAX):
            yield range(first, index)
            first, total = index, 0
        total += offset
    if offsets:
        yield range(first, len(offsets))


def cut(range_: OffsetRange, count: int) -> Iterable[OffsetRange]:
    """Yield `count` adjacent ranges whose lengths differ by at most one offset."""
    for part in range(count):
        start = range_.start + part * range_.offsets // count
        end = range_.start + (part + 1) * range_.offsets // count
        yield OffsetRange(range_.topic, range_.partition, start, end)


def _refuse_overlap(ordered: Sequence[OffsetRange]) -> None:
    for range_, other in zip(ordered, ordered[1:], strict=False):
        if range_.name == other.name and other.start < range_.end:
            raise ValueError(f"{range_} and {other} overlap: their records would be read twice")
