"""What to read, as a user says it, resolved once to offset ranges (spark.md section 6, step 1).

By offset   earliest, latest, or an offset for each partition, as in the Kafka connector.
By time     of the records' timestamps, in ms since 1970, as in the connector: from the first record whose timestamp is
            not below `start` to before the first whose timestamp is not below `end`. Producers set timestamps, so a
            record in between may be of another time.
By id       exact: ids rise strictly with the offset in each partition, so an id range is an offset range. The id
            range of a span of time is `idgen.layout.Layout.id_range`.

"Now" and "latest" move; a selector is resolved before any task starts, and never again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeAlias

from spark_bridge.offset_range import OffsetRange

EARLIEST = "earliest"
LATEST = "latest"
Offsets: TypeAlias = Mapping[int, int]
"""{partition: offset}"""


class LogOffsets(Protocol):
    """What resolving asks of a cluster, one topic at a time; each answer has all of the topic's partitions."""

    def earliest(self, topic: str) -> Offsets:
        """The log start offsets."""
        ...

    def latest(self, topic: str) -> Offsets:
        """The high watermarks."""
        ...

    def first_at_time(self, topic: str, time_ms: int) -> Mapping[int, int | None]:
        """The first offset whose record's timestamp is not below `time_ms`; None where there is none yet."""
        ...

    def first_at_id(self, topic: str, id: int) -> Mapping[int, int | None]:
        """The first offset whose id is not below `id`; None where there is none yet."""
        ...


class SelectionError(ValueError):
    """The selection cannot be made; the message names topic and partition, and what there is."""


@dataclass(frozen=True, slots=True)
class OffsetSelector:
    """`start` and `end` are EARLIEST, LATEST or {topic: {partition: offset}}; in it -2 is earliest, -1 latest."""

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

    def resolve(self, topic: str, log: LogOffsets) -> list[OffsetRange]:
        first, last = log.earliest(topic), log.latest(topic)
        start = _given(self.start, topic, first, last)
        end = _given(self.end, topic, first, last)
        return [_within(topic, p, start[p], end[p], first[p], last[p]) for p in sorted(last)]


@dataclass(frozen=True, slots=True)
class TimeSelector:
    """Timestamps `start_ms` <= time < `end_ms`; None leaves that side open. `strict`: a start past the end of a
    partition is an error, as the connector's startingOffsetsByTimestampStrategy=error; else it begins at latest."""

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
    """Ids `start` <= id < `end`; None leaves that side open."""

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
    """The ranges of all partitions of `topics`, empty ones too, sorted. Raises SelectionError."""
    return tuple(sorted(one for topic in sorted(set(topics)) for one in selector.resolve(topic, log)))


def to_dict(selector: Selector) -> dict[str, Any]:
    """For the manifest: what was asked, beside what it was resolved to."""
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
    return {p: {-2: first[p], -1: last[p]}.get(offset, offset) for p, offset in given.items()}


Found: TypeAlias = Mapping[int, int | None] | None
"""{partition: offset, or None where none is found}; None for a side that is left open."""


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
