"""Selectors: a user's description of a read, resolved once to offset ranges.

A selector has a start, which is inclusive, and an end, which is exclusive. Each is a bound of one of these kinds, and
the kinds mix freely. Those without `Bound` are positions of broker.client.offset_spec:

    Earliest, Latest   the start and the end of each log.
    OffsetBound        an offset for each partition, as in the Kafka connector.
    TimeBound          the first record whose timestamp (ms since 1970) is at least the given one, as in the connector;
                       one time for all partitions, or one for each. Producers set timestamps, so a record in between
                       may have a timestamp outside the span.
    AtId               the first record whose id is at least the given one. Ids rise strictly with the offset in each
                       partition, so a range of ids is exact. `idgen.layout.Layout.id_range` converts times to ids.

A selector is resolved once, before any task starts, because "now" and "latest" move.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from broker.client.offset_spec import AtId, Earliest, Latest
from coordination.errors import FlakelogError
from spark_bridge.reading.offset_range import OffsetRange

EARLIEST = "earliest"
LATEST = "latest"
EARLIEST_OFFSET, LATEST_OFFSET = -2, -1  # in JSON, as in the connector
Offsets: TypeAlias = Mapping[int, int]
"""{partition: offset}"""
OptionalOffsets: TypeAlias = Mapping[int, int | None]
"""{partition: offset, or None if no record is there yet}"""


class LogOffsets(Protocol):
    """The requests that resolving makes to a cluster, for one topic; each answer has all of the topic's partitions."""

    def earliest(self, topic: str) -> Offsets:
        """Return the log start offsets."""
        ...

    def latest(self, topic: str, *, committed: bool = False) -> Offsets:
        """Return the high watermarks; with `committed` the last stable offsets."""
        ...

    def first_at_time(self, topic: str, time_ms: int) -> OptionalOffsets:
        """Return the first offsets whose timestamp is at least `time_ms`; None for a partition without one yet."""
        ...

    def first_at_id(self, topic: str, id: int) -> OptionalOffsets:
        """Return the first offsets whose id is at least `id`; None for a partition without one yet."""
        ...


class SelectionError(FlakelogError, ValueError):
    """The selection is not possible; the message names the topic, the partition and the available offsets."""


class TopicOffsets(NamedTuple):
    """The topic to resolve in, with the offsets that it has now; see `topic_offsets`."""

    topic: str
    first: Offsets
    last: Offsets
    log: LogOffsets
    committed: bool

    def readable(self, offsets: OptionalOffsets) -> OptionalOffsets:
        """Return the offsets; for read_committed None for those past the last stable offset, as in Kafka."""
        if not self.committed:
            return offsets
        return {p: offset if offset is not None and offset < self.last[p] else None for p, offset in offsets.items()}


def topic_offsets(topic: str, log: LogOffsets, *, committed: bool = False) -> TopicOffsets:
    return TopicOffsets(topic, log.earliest(topic), log.latest(topic, committed=committed), log, committed)


@dataclass(frozen=True, slots=True)
class OffsetBound:
    """{topic: {partition: offset}}. The offset -2 means earliest, -1 latest."""

    at: Mapping[str, Offsets]

    def __post_init__(self) -> None:
        for topic, partition, offset in _flattened(self.at):
            if offset < EARLIEST_OFFSET:
                raise SelectionError(f"the offset of {topic}-{partition} is {offset}; the least is 0, or -1, -2")

    def resolve(self, available: TopicOffsets) -> OptionalOffsets:
        given = _for_all(self.at, "offsets", available)
        marks = {EARLIEST_OFFSET: available.first, LATEST_OFFSET: available.last}
        return {p: marks[offset][p] if offset in marks else offset for p, offset in given.items()}


@dataclass(frozen=True, slots=True)
class TimeBound:
    """A time in ms since 1970, or {topic: {partition: time}}.

    If `strict`, a start past the end of a partition is an error, as with the connector's
    startingOffsetsByTimestampStrategy=error. Otherwise that partition starts at latest. An end is never strict.
    """

    ms: int | Mapping[str, Offsets]
    strict: bool = True

    def __post_init__(self) -> None:
        times = [self.ms] if isinstance(self.ms, int) else [time for _, _, time in _flattened(self.ms)]
        _refuse_negative("times", times)

    def resolve(self, available: TopicOffsets) -> OptionalOffsets:
        if isinstance(self.ms, int):
            return available.readable(available.log.first_at_time(available.topic, self.ms))
        given = _for_all(self.ms, "times", available)
        times = sorted(set(given.values()))
        offsets = {ms: available.readable(available.log.first_at_time(available.topic, ms)) for ms in times}
        return {p: offsets[ms][p] for p, ms in given.items()}

    def of(self, topic: str, partition: int) -> int:
        """Return the time for a partition."""
        return self.ms if isinstance(self.ms, int) else self.ms[topic][partition]


Bound: TypeAlias = Earliest | Latest | AtId | OffsetBound | TimeBound


def offset_bound(offsets: str | Mapping[str, Offsets]) -> Earliest | Latest | OffsetBound:
    """Return the bound for EARLIEST, LATEST or {topic: {partition: offset}}. Raise SelectionError."""
    if offsets == EARLIEST:
        return Earliest()
    if offsets == LATEST:
        return Latest()
    if isinstance(offsets, str):
        raise SelectionError(f"offsets are earliest, latest or an offset for each partition; got {offsets!r}")
    return OffsetBound(offsets)


@dataclass(frozen=True, slots=True)
class Selector:
    """The range from `start` up to `end`, exclusive, of each partition. Raise SelectionError if it is always empty."""

    start: Bound = Earliest()
    end: Bound = Latest()

    def __post_init__(self) -> None:
        _refuse_negative("ids", [bound.id for bound in (self.start, self.end) if isinstance(bound, AtId)])
        _refuse_mark(self.start, LATEST, LATEST_OFFSET, "start")
        _refuse_mark(self.end, EARLIEST, EARLIEST_OFFSET, "end")
        _refuse_backwards(self.start, self.end)

    @property
    def topics(self) -> set[str]:
        """Return the topics that offsets or times are given for, one by one."""
        return topics_of(self.start) | topics_of(self.end)

    @property
    def needs_ids(self) -> bool:
        return isinstance(self.start, AtId) or isinstance(self.end, AtId)


def by_offset(start: str | Mapping[str, Offsets] = EARLIEST, end: str | Mapping[str, Offsets] = LATEST) -> Selector:
    return Selector(offset_bound(start), offset_bound(end))


def by_time(start_ms: int | None = None, end_ms: int | None = None, *, strict: bool = True) -> Selector:
    """Select by timestamp, `start_ms` <= time < `end_ms`; None leaves that side open."""
    return Selector(
        Earliest() if start_ms is None else TimeBound(start_ms, strict),
        Latest() if end_ms is None else TimeBound(end_ms),
    )


def by_id(start: int | None = None, end: int | None = None) -> Selector:
    """Select by id, `start` <= id < `end`; None leaves that side open."""
    return Selector(
        Earliest() if start is None else AtId(start),
        Latest() if end is None else AtId(end),
    )


# --- resolving ---------------------------------------------------------------------------------------------------


class Lost(NamedTuple):
    """Selected offsets that the log does not have, or no longer has."""

    within: OffsetRange
    reason: str


def resolve(
    selector: Selector,
    topics: Iterable[str],
    log: LogOffsets,
    *,
    committed: bool = False,
    whole: bool = False,
    on_lost: Callable[[Lost], object] | None = None,
) -> tuple[OffsetRange, ...]:
    """Return the ranges of all partitions of `topics`, including empty ones, sorted. Raise SelectionError.

    With `committed`, latest is the last stable offset. A time or an id past it is cut to it, as in the connector; with
    `whole` that is an error. Offsets outside the log are an error. With `on_lost` they are passed to it, and the range
    is cut to what there is.
    """
    ranges = []
    for topic in sorted(set(topics)):
        # The high watermarks are asked for first: a log without open transactions is then stable up to them.
        visible = topic_offsets(topic, log) if committed and whole else None
        here = topic_offsets(topic, log, committed=committed)
        if visible is not None:
            _refuse_unstable(selector, visible, here.last)
        start, end = starts(selector.start, here), _ends(selector.end, here)
        ranges += [_within(here, partition, start[partition], end[partition], on_lost) for partition in here.last]
    return tuple(sorted(ranges))


def starts(bound: Bound, available: TopicOffsets) -> dict[int, int]:
    """Return the first offset to read of each partition: latest for a time or an id after all its records.

    Raise SelectionError for a strict time after all records, and for partitions that are missing in the bound.
    """
    offsets = _resolve_bound(bound, available)
    return {partition: _start(bound, offset, available, partition) for partition, offset in offsets.items()}


def _resolve_bound(bound: Bound, available: TopicOffsets) -> OptionalOffsets:
    match bound:
        case Earliest():
            return available.first
        case Latest():
            return available.last
        case AtId(id):
            return available.readable(available.log.first_at_id(available.topic, id))
        case OffsetBound() | TimeBound():
            return bound.resolve(available)


def _ends(bound: Bound, available: TopicOffsets) -> dict[int, int]:
    ends = {}
    for partition, offset in _resolve_bound(bound, available).items():
        if offset is None:
            offset = available.last[partition]
        elif isinstance(bound, (AtId, TimeBound)):
            offset = min(offset, available.last[partition])
        ends[partition] = offset
    return ends


def _start(bound: Bound, offset: int | None, available: TopicOffsets, partition: int) -> int:
    last = available.last[partition]
    if offset is not None:
        return min(offset, last) if isinstance(bound, (AtId, TimeBound)) else offset
    if isinstance(bound, TimeBound) and bound.strict:
        raise SelectionError(
            f"{available.topic}-{partition} has no record with a timestamp of {bound.of(available.topic, partition)} "
            "ms or later; name an earlier time, or in Spark the option startingOffsetsByTimestampStrategy=latest, "
            "which reads nothing from it"
        )
    return last


def _refuse_unstable(selector: Selector, visible: TopicOffsets, stable: Offsets) -> None:
    """Raise SelectionError if the range of a partition reaches past its last stable offset.

    `visible` has the log up to the high watermarks. An end at latest is the last stable offset itself.
    """
    for side, bound, offsets in (
        ("begins", selector.start, _offsets_in(selector.start, visible)),
        ("ends", selector.end, _ends(selector.end, visible)),
    ):
        for partition, offset in offsets.items():
            if _is_latest(bound, visible.topic, partition):
                continue
            if stable[partition] < min(offset, visible.last[partition]):
                raise SelectionError(
                    f"{visible.topic}-{partition}: the range {side} at offset {offset}, past the last stable offset "
                    f"{stable[partition]}, where a transaction is open. Wait until the transaction ends, leave the end "
                    "open to read up to there, or read with isolation read_uncommitted"
                )


def _offsets_in(bound: Bound, log: TopicOffsets) -> Offsets:
    """Return the offsets that a bound gives as offsets; none if it gives a time or an id."""
    offsets = {} if isinstance(bound, (AtId, TimeBound)) else _resolve_bound(bound, log)
    return {partition: offset for partition, offset in offsets.items() if offset is not None}


def _is_latest(bound: Bound, topic: str, partition: int) -> bool:
    match bound:
        case Latest():
            return True
        case OffsetBound(offsets):
            return offsets[topic][partition] == LATEST_OFFSET
    return False


def _within(
    available: TopicOffsets, partition: int, start: int, end: int, on_lost: Callable[[Lost], object] | None
) -> OffsetRange:
    topic, first, last = available.topic, available.first[partition], available.last[partition]
    if end < start:
        here = f"{topic}-{partition} has offsets {first} to {last}"
        raise SelectionError(f"{here}; the end {end} lies before the start {start}")
    begin, stop = min(max(start, first), last), min(max(end, first), last)
    if (begin, stop) == (start, end):
        return OffsetRange(topic, partition, start, end)
    reason = f"{topic}-{partition} has offsets {first} to {last}; asked for {start} to {end}"
    if on_lost is None:
        raise SelectionError(reason)
    for low, high in ((start, min(end, begin)), (max(start, stop), end)):
        if low < high:
            on_lost(Lost(OffsetRange(topic, partition, low, high), reason))
    return OffsetRange(topic, partition, begin, stop)


def to_dict(selector: Selector) -> dict[str, Any]:
    """Return the selector's bounds for the manifest, which also holds the resolved ranges."""
    return {"start": _json_of(selector.start), "end": _json_of(selector.end)}


def _json_of(bound: Bound) -> Any:
    match bound:
        case Earliest():
            return {"offsets": EARLIEST}
        case Latest():
            return {"offsets": LATEST}
        case OffsetBound(offsets):
            return {"offsets": _plain(offsets)}
        case AtId(id):
            return {"id": id}
        case TimeBound(ms, strict):
            return {"time_ms": _plain(ms)} | ({} if strict else {"strict": False})


# --- checks ------------------------------------------------------------------------------------------------------


def _flattened(given: Mapping[str, Offsets]) -> Iterable[tuple[str, int, int]]:
    return ((topic, p, value) for topic, values in given.items() for p, value in values.items())


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def topics_of(bound: Bound) -> set[str]:
    """Return the topics that a bound names one by one."""
    return set(_by_topic(bound) or ())


def _by_topic(bound: Bound) -> Mapping[str, Offsets] | None:
    match bound:
        case OffsetBound(offsets):
            return offsets
        case TimeBound(ms) if not isinstance(ms, int):
            return ms
    return None


def _for_all(given: Mapping[str, Offsets], kind: str, available: TopicOffsets) -> Offsets:
    values = given.get(available.topic, {})
    if set(values) != set(available.last):
        raise SelectionError(
            f"{available.topic} has partitions {sorted(available.last)}, {kind} are given for {sorted(values)}; give "
            f"all of them" + (", -2 is earliest and -1 latest" if kind == "offsets" else "")
        )
    return values


def _refuse_negative(kind: str, values: Iterable[int]) -> None:
    for value in values:
        if value < 0:
            raise SelectionError(f"{kind} are 0 or more; got {value}")


def _refuse_mark(bound: Bound, word: str, mark: int, side: str) -> None:
    if bound == offset_bound(word):
        raise SelectionError(f"a batch read cannot {side} at {word}: nothing would ever be in it")
    if not isinstance(bound, OffsetBound):
        return
    for topic, partition, offset in _flattened(bound.at):
        if offset == mark:
            raise SelectionError(
                f"the {side}ing offset of {topic}-{partition} is {mark}, {word}: a batch read cannot {side} there"
            )


def _refuse_backwards(start: Bound, end: Bound) -> None:
    """Refuse what lies backwards in every log; the rest shows when the bounds are resolved."""
    if isinstance(start, AtId) and isinstance(end, AtId) and end.id < start.id:
        raise SelectionError(f"ids {start.id} to {end.id}: the end lies before the start")
    if not (isinstance(start, TimeBound) and isinstance(end, TimeBound)):
        return
    if isinstance(start.ms, int) and isinstance(end.ms, int):
        _refuse_times(start.ms, end.ms, "")
        return
    bounds = [by_topic for by_topic in map(_by_topic, (start, end)) if by_topic is not None]
    named = [{(topic, p) for topic, p, _ in _flattened(by_topic)} for by_topic in bounds]
    for topic, partition in sorted(set.intersection(*named)):
        _refuse_times(start.of(topic, partition), end.of(topic, partition), f" of {topic}-{partition}")


def _refuse_times(start_ms: int, end_ms: int, where: str) -> None:
    if end_ms < start_ms:
        raise SelectionError(f"times {start_ms} to {end_ms}{where}: the end lies before the start")
