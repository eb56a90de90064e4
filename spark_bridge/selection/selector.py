"""Selectors: a user's description of a read, resolved once to offset ranges (spark.md section 6, step 1).

    By offset   earliest, latest, or an offset for each partition, as in the Kafka connector.
    By time     by the records' timestamps, in ms since 1970, as in the connector: from the first record whose timestamp
                is at least `start` up to the first record whose timestamp is at least `end`, exclusive. Producers set
                timestamps, so a record in between may have a timestamp outside the span.
    By id       exact: ids rise strictly with the offset in each partition, so a range of ids is a range of offsets.
                `idgen.layout.Layout.id_range` converts a span of time to a range of ids.

A selector is resolved once, before any task starts, because "now" and "latest" move.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeAlias

from spark_bridge.reading.offset_range import OffsetRange

EARLIEST = "earliest"
LATEST = "latest"
_EARLIEST_OFFSET, _LATEST_OFFSET = -2, -1  # in JSON, as in the connector
Offsets: TypeAlias = Mapping[int, int]
"""{partition: offset}"""


class LogOffsets(Protocol):
    """The requests that resolving makes to a cluster, for one topic; each answer has all of the topic's partitions."""

    def earliest(self, topic: str) -> Offsets:
        """Return the log start offsets."""
        ...

    def latest(self, topic: str, *, committed: bool = False) -> Offsets:
        """Return the high watermarks; with `committed` the last stable offsets."""
        ...

    def first_at_time(self, topic: str, time_ms: int) -> Mapping[int, int | None]:
        """Return the first offsets whose timestamp is at least `time_ms`; None for a partition without one yet."""
        ...

    def first_at_id(self, topic: str, id: int) -> Mapping[int, int | None]:
        """Return the first offsets whose id is at least `id`; None for a partition without one yet."""
        ...


class SelectionError(ValueError):
    """The selection is not possible; the message names the topic, the partition and the available offsets."""


@dataclass(frozen=True, slots=True)
class OffsetSelector:
    """A selection by offset: `start` and `end` are EARLIEST, LATEST or {topic: {partition: offset}}.

    An offset of -2 means earliest, -1 latest.
    """

    start: str | Mapping[str, Offsets] = EARLIEST
    end: str | Mapping[str, Offsets] = LATEST

    def __post_init__(self) -> None:
        if self.start == LATEST:
            raise SelectionError("a batch read cannot start at latest: nothing would ever be in it")
        if self.end == EARLIEST:
            raise SelectionError("a batch read cannot end at earliest: nothing would ever be in it")
        for one in (self.start, self.end):
            if isinstance(one, str) and one not in (EARLIEST, LATEST):
                raise SelectionError(f"offsets are earliest, latest or an offset for each partition; got {one!r}")
        _refuse(self.start, _LATEST_OFFSET, "the starting offset of {} is -1, latest: a batch read cannot start there")
        _refuse(self.end, _EARLIEST_OFFSET, "the ending offset of {} is -2, earliest: a batch read cannot end there")

    @property
    def topics(self) -> set[str]:
        """Return the topics that offsets are given for."""
        return {topic for one in (self.start, self.end) if not isinstance(one, str) for topic in one}

    def resolve(self, topic: str, log: LogOffsets) -> list[OffsetRange]:
        first, last = log.earliest(topic), log.latest(topic)
        start = _given(self.start, topic, first, last)
        end = _given(self.end, topic, first, last)
        return [_within(topic, p, start[p], end[p], first[p], last[p]) for p in sorted(last)]


@dataclass(frozen=True, slots=True)
class TimeSelector:
    """A selection by timestamp, `start_ms` <= time < `end_ms`; None leaves that side open.

    If `strict`, a start past the end of a partition is an error, as with the connector's
    startingOffsetsByTimestampStrategy=error. Otherwise that partition starts at latest.
    """

    start_ms: int | None = None
    end_ms: int | None = None
    strict: bool = True

    def __post_init__(self) -> None:
        _refuse_backwards("times", self.start_ms, self.end_ms)

    def resolve(self, topic: str, log: LogOffsets) -> list[OffsetRange]:
        start = None if self.start_ms is None else log.first_at_time(topic, self.start_ms)
        end = None if self.end_ms is None else log.first_at_time(topic, self.end_ms)
        for partition, offset in (start or {}).items():
            if self.strict and offset is None:
                raise SelectionError(
                    f"{topic}-{partition} has no record with a timestamp of {self.start_ms} ms or later; "
                    "startingOffsetsByTimestampStrategy=latest reads nothing from it instead"
                )
        return _between(topic, start, end, log)


@dataclass(frozen=True, slots=True)
class IdSelector:
    """A selection by id, `start` <= id < `end`; None leaves that side open."""

    start: int | None = None
    end: int | None = None

    def __post_init__(self) -> None:
        _refuse_backwards("ids", self.start, self.end)

    def resolve(self, topic: str, log: LogOffsets) -> list[OffsetRange]:
        start = None if self.start is None else log.first_at_id(topic, self.start)
        end = None if self.end is None else log.first_at_id(topic, self.end)
        return _between(topic, start, end, log)


Selector: TypeAlias = OffsetSelector | TimeSelector | IdSelector
_KINDS: dict[str, type[Selector]] = {"offset": OffsetSelector, "time": TimeSelector, "id": IdSelector}


def resolve(selector: Selector, topics: Iterable[str], log: LogOffsets) -> tuple[OffsetRange, ...]:
    """Return the ranges of all partitions of `topics`, including empty ones, sorted. Raise SelectionError."""
    return tuple(sorted(one for topic in sorted(set(topics)) for one in selector.resolve(topic, log)))


def to_dict(selector: Selector) -> dict[str, Any]:
    """Return the selector's parameters for the manifest, which also holds the resolved ranges."""
    (kind,) = (name for name, one in _KINDS.items() if isinstance(selector, one))
    asked = {field.name: getattr(selector, field.name) for field in fields(selector)}
    return {"by": kind} | {name: _plain(value) for name, value in asked.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    return value


def _given(one: str | Mapping[str, Offsets], topic: str, first: Offsets, last: Offsets) -> Offsets:
    if isinstance(one, str):
        return first if one == EARLIEST else last
    given = one.get(topic, {})
    if set(given) != set(last):
        raise SelectionError(f"{topic} has partitions {sorted(last)}, offsets are given for {sorted(given)}")
    names = {_EARLIEST_OFFSET: first, _LATEST_OFFSET: last}
    return {p: names[offset][p] if offset in names else offset for p, offset in given.items()}


def _refuse(one: str | Mapping[str, Offsets], refused: int, why: str) -> None:
    if isinstance(one, str):
        return
    for topic, offsets in one.items():
        for partition, offset in offsets.items():
            if offset == refused:
                raise SelectionError(why.format(f"{topic}-{partition}"))


Found: TypeAlias = Mapping[int, int | None] | None
"""{partition: offset, or None if not found}; None for an open side."""


def _between(topic: str, start: Found, end: Found, log: LogOffsets) -> list[OffsetRange]:
    first, last = log.earliest(topic), log.latest(topic)
    ranges = []
    for partition in sorted(last):
        stop = _bound(end, partition, last[partition], last[partition])
        begin = _bound(start, partition, first[partition], last[partition])
        ranges.append(OffsetRange(topic, partition, min(begin, stop), stop))
    return ranges


def _bound(found: Found, partition: int, when_open: int, latest: int) -> int:
    if found is None:
        return when_open
    offset = found[partition]
    return latest if offset is None else min(offset, latest)


def _within(topic: str, partition: int, start: int, end: int, first: int, last: int) -> OffsetRange:
    if not first <= start <= last or not first <= end <= last:
        raise SelectionError(f"{topic}-{partition} has offsets {first} to {last}; asked for {start} to {end}")
    if end < start:
        raise SelectionError(f"{topic}-{partition}: the end {end} lies before the start {start}")
    return OffsetRange(topic, partition, start, end)


def _refuse_backwards(what: str, start: int | None, end: int | None) -> None:
    if start is not None and start < 0 or end is not None and end < 0:
        raise SelectionError(f"{what} are 0 or more; got {start} to {end}")
    if start is not None and end is not None and end < start:
        raise SelectionError(f"{what} {start} to {end}: the end lies before the start")
