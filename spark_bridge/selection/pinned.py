"""Pinning of a read: options and a cluster in, a manifest out. The selection is fixed from then on."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from spark_bridge.reading.cluster import Description
from spark_bridge.reading.id_clock import IdClock
from spark_bridge.reading.network import Address
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.row import DEFAULT, ID_TIME
from spark_bridge.reading.settings import ReadSettings
from spark_bridge.selection.late import LateRange, NewPartitions, late_ranges, new_partitions
from spark_bridge.selection.manifest import Manifest
from spark_bridge.selection.option_table import OptionError
from spark_bridge.selection.options import ReadOptions, Topics
from spark_bridge.selection.plan import plan
from spark_bridge.selection.selector import LogOffsets, Lost, resolve, to_dict


class Log(LogOffsets, Protocol):
    """The requests that pinning makes to a cluster; spark_bridge.reading.cluster.Cluster implements it."""

    def describe(self, topics: Iterable[str] | None = None) -> Description: ...

    def snapshot(self, described: Description) -> LogOffsets:
        """Return the offsets of all described topics, with one request to each broker for each question."""
        ...

    def keeps_ids(self, topic: str) -> bool: ...

    def compacted(self, topics: Iterable[str]) -> frozenset[str]:
        """Return the topics that the broker compacts, so that their logs may lack offsets."""
        ...


class LogOfIds(Log, Protocol):
    """A Log that tells the layout of its ids."""

    def id_clock(self) -> IdClock: ...


@dataclass(frozen=True, slots=True)
class PinnedRead:
    """The immutable input of all tasks."""

    manifest: Manifest
    servers: tuple[Address, ...]
    columns: tuple[str, ...]
    settings: ReadSettings
    poison_report: str | None = None
    lost: tuple[Lost, ...] = ()
    """Selected offsets that the log did not have; only with failOnDataLoss=false."""
    late: tuple[LateRange, ...] = ()
    """The tasks of a read with late binding."""
    new: NewPartitions | None = None
    """The partitions that a read with late binding also reads, if they are added after the first action."""

    @property
    def tasks(self) -> tuple[LateRange, ...]:
        """Return the range of each task. With late binding some move; all others are the manifest's."""
        return self.late or tuple(LateRange(range_) for range_ in self.manifest.ranges)

    def topic_id(self, range_: OffsetRange) -> str | None:
        return self.manifest.topic_ids[range_.topic]


def pin(options: ReadOptions, log: LogOfIds, manifest: Manifest | None, code_version: str) -> PinnedRead:
    """Pin the read that `options` describe. `manifest` is the loaded manifest that the options name, if any.

    Raise OptionError, SelectionError, ManifestError, or an error of the log.
    """
    lost: list[Lost] = []
    late: list[LateRange] = []
    new = None
    if manifest is None:
        manifest, ranges = _select(options, log, code_version, lost.append)
        if options.late:
            late = late_ranges(ranges, manifest.ranges, options.selector.start, options.selector.end)
            new = new_partitions(options, ranges)
    else:
        described = log.describe(manifest.topic_ids)
        manifest.check_log(described.cluster_id, described.topic_ids)
    has_ids = all(log.keeps_ids(topic) for topic in sorted(manifest.topic_ids))
    columns = options.columns or manifest.columns or DEFAULT
    settings = replace(
        options.settings,
        require_ids=has_ids,
        read_committed=manifest.read_committed,
        id_clock=id_clock(options, columns, log),
        compacted_topics=compacted_topics(options.settings, manifest.topic_ids, log),
    )
    return PinnedRead(
        manifest, options.servers, columns, settings, options.poison_report, tuple(lost), tuple(late), new
    )


def compacted_topics(settings: ReadSettings, topics: Iterable[str], log: Log) -> frozenset[str]:
    """Return the topics that the broker compacts. Return none if `settings` say whether offsets may be missing."""
    return log.compacted(topics) if settings.compacted is None else frozenset()


def id_clock(options: ReadOptions, columns: Sequence[str], log: LogOfIds) -> IdClock:
    """Return the layout of the ids, for the column `id_time`."""
    if ID_TIME not in columns:
        return IdClock()
    return log.id_clock() if options.id_epoch_ms is None else IdClock(options.id_epoch_ms)


def select(options: ReadOptions, log: Log, code_version: str) -> Manifest:
    """Return a manifest of the ranges that `options` select now, for a replay or a load.

    It is complete, so failOnDataLoss=false is refused, and so is a read_committed range that reaches past the last
    stable offset. Raise OptionError, SelectionError, or an error of the log.
    """
    if not options.fail_on_data_loss:
        raise OptionError("failOnDataLoss=false is for reads only; a replay or a load is complete, or fails")
    return _select(options, log, code_version, on_lost=None, whole=True).manifest


def find_new(
    new: NewPartitions, log: Log, on_lost: Callable[[Lost], object]
) -> list[tuple[OffsetRange, str | None]]:
    """Return the ranges of partitions that are new to a read with late binding, each with its topic's id.

    Raise SelectionError, or an error of the log.
    """
    options = new.options
    described = describe_topics(options.topics, log)
    added = {
        name: tuple(sorted(set(topic.leaders) - new.known.get(name, frozenset())))
        for name, topic in described.topics.items()
    }
    added = {name: partitions for name, partitions in added.items() if partitions}
    topics = {name: described.topics[name] for name in added}
    ranges = resolve(
        options.selector,
        topics,
        Assigned(log.snapshot(replace(described, topics=topics)), added),
        committed=options.read_committed,
        on_lost=None if options.fail_on_data_loss else on_lost,
    )
    return [(range_, topics[range_.topic].id) for range_ in ranges if range_.offsets]


class _Selected(NamedTuple):
    manifest: Manifest
    ranges: tuple[OffsetRange, ...]
    """A range for each partition, before the split into tasks; some may be empty."""


def _select(
    options: ReadOptions,
    log: Log,
    code_version: str,
    on_lost: Callable[[Lost], object] | None,
    *,
    whole: bool = False,
) -> _Selected:
    described = describe_topics(options.topics, log)
    if options.selector.needs_ids:
        require_ids(described.topics, log)
    refuse_other_topics(options.selector.topics, described)
    ranges = resolve(
        options.selector,
        described.topics,
        Assigned(log.snapshot(described), options.topics.partitions),
        committed=options.read_committed,
        whole=whole,
        on_lost=None if options.fail_on_data_loss else on_lost,
    )
    tasks = plan(
        ranges,
        min_partitions=options.min_partitions,
        max_records_per_partition=options.max_records_per_partition,
    )
    chosen = to_dict(options.selector)
    manifest = Manifest(
        described.cluster_id,
        described.topic_ids,
        chosen,
        tasks,
        code_version,
        options.columns,
        options.read_committed,
    )
    return _Selected(manifest, ranges)


def describe_topics(topics: Topics, log: Log) -> Description:
    """Describe the topics of a read. Raise OptionError for partitions that do not exist, NoSuchTopic for topics."""
    if topics.pattern is None:
        described = log.describe(topics.names or topics.partitions)
    else:
        pattern = re.compile(topics.pattern)
        everything = log.describe(None)
        matching = {
            name: topic for name, topic in everything.topics.items() if pattern.search(name) and not topic.internal
        }
        described = replace(everything, topics=matching)
    for name, partitions in topics.partitions.items():
        missing = set(partitions) - set(described.topics[name].leaders)
        if missing:
            raise OptionError(f"assign: topic {name!r} has no partitions {sorted(missing)}")
    return described


def refuse_other_topics(given: set[str], described: Description) -> None:
    """Raise OptionError if a bound names topics that are not read."""
    others = sorted(given - described.topics.keys())
    if others:
        read = ", ".join(sorted(described.topics)) or "none"
        raise OptionError(f"offsets or times are given for {', '.join(others)}; the topics of this read are: {read}")


def require_ids(topics: Iterable[str], log: Log) -> None:
    """Raise OptionError if a topic has records without ids."""
    for topic in sorted(topics):
        if not log.keeps_ids(topic):
            raise OptionError(f"the broker keeps no ids for topic {topic!r}; startingId and endingId need Flakelog's")


class Assigned:
    """A view of a log that shows only the assigned partitions."""

    def __init__(self, log: LogOffsets, partitions: Mapping[str, tuple[int, ...]]) -> None:
        self._log = log
        self._partitions = partitions

    def earliest(self, topic: str) -> dict[int, int]:
        return {p: offset for p, offset in self._log.earliest(topic).items() if self._sees(topic, p)}

    def latest(self, topic: str, *, committed: bool = False) -> dict[int, int]:
        latest = self._log.latest(topic, committed=committed)
        return {p: offset for p, offset in latest.items() if self._sees(topic, p)}

    def first_at_time(self, topic: str, time_ms: int) -> dict[int, int | None]:
        return {p: offset for p, offset in self._log.first_at_time(topic, time_ms).items() if self._sees(topic, p)}

    def first_at_id(self, topic: str, id: int) -> dict[int, int | None]:
        return {p: offset for p, offset in self._log.first_at_id(topic, id).items() if self._sees(topic, p)}

    def _sees(self, topic: str, partition: int) -> bool:
        return topic not in self._partitions or partition in self._partitions[topic]
