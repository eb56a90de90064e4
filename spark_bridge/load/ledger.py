"""Planning of a chain of loads: from the newest load and the log's offsets to the next load.

A load takes each partition from the position where the load before it ended up to the log's end at the time of
planning. A partition that is new starts at its earliest offset. A load is refused, and nothing is saved, if the log is
another one, was truncated, or no longer has offsets that no load took yet.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from broker.client.offset_spec import AtId, AtTime, Bounds, Earliest, position_of
from spark_bridge.load.load import Layout, Load, LoadError, describe
from spark_bridge.load.schema_change import refused_change
from spark_bridge.load.sink import SourceLog, StoredLoad
from spark_bridge.reading.cluster import Description
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.row import DEFAULT
from spark_bridge.selection.manifest import Manifest, ManifestError
from spark_bridge.selection.plan import TASKS_MAX, cut

FILE_ROWS = 1_000_000
"""Offsets of one part by default: about a minute's work of one task, which a killed load repeats at most."""
FILE_BYTES = 256 << 20
"""Bytes of keys and values of one part by default, estimated. Readers of Parquet like files of 100 MB to 1 GB."""


class LostData(LoadError):
    """The log no longer has offsets that no load took; `ranges` names them."""

    def __init__(self, message: str, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__(message)
        self.ranges = ranges


class OtherLog(LoadError):
    """The topic or the cluster is not the one of the earlier loads, or its log was truncated."""


class OtherLayout(LoadError):
    """The place holds loads of another kind than this one, or loads already, where a new place is needed."""


@dataclass(frozen=True, slots=True)
class Since:
    """Where the first load begins.

    Without a start, it continues after the last load; into a new place it takes everything. A start needs a new place.
    """

    start: Earliest | AtTime | AtId | None = None

    @property
    def word(self) -> str:
        """Return the kind of the start, as manifests and messages name it."""
        return str(self.to_dict()["by"])

    def to_dict(self) -> dict[str, Any]:
        match self.start:
            case None:
                return {"by": "last"}
            case Earliest():
                return {"by": "earliest"}
            case AtTime(timestamp_ms):
                return {"by": "time", "value": timestamp_ms}
            case AtId(id):
                return {"by": "id", "value": id}


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The options of a load."""

    topic: str
    since: Since = Since()
    columns: tuple[str, ...] = DEFAULT
    layout: Layout = Layout()
    read_committed: bool = True
    file_rows: int = FILE_ROWS
    file_bytes: int = FILE_BYTES
    accept_loss: bool = False
    start_over: bool = False
    """Begin a new chain of loads, in a place whose target no longer has what the earlier loads brought."""
    max_rejected: int | None = None
    """Messages of one load whose values may fail to decode; None allows any number."""

    def __post_init__(self) -> None:
        if self.max_rejected is not None and (self.max_rejected < 0 or self.layout.decode is None):
            raise LoadError("--max-rejected is a number from 0 on, and counts values that --decode cannot decode")
        if self.file_rows < 1 or self.file_bytes < 1:
            raise LoadError("a file has at least one row and one byte")


def next_load(
    options: LoadOptions,
    newest: StoredLoad | None,
    source: SourceLog,
    code_version: str,
    *,
    withdrawn: StoredLoad | None = None,
) -> Load | None:
    """Return the load after `newest`, which is published; None without new messages.

    A first load that begins at a time or an id has no parts if no message is there yet: it keeps the beginning.

    `withdrawn` is the last load, if it and those before it up to `newest` were withdrawn. Raise LostData, OtherLog,
    OtherLayout, LoadError, or an error of the source.
    """
    topic = options.topic
    described = source.describe([topic])
    first, last = source.earliest(topic), source.latest(topic, committed=options.read_committed)
    if newest is None:
        starts = _begin(options, source, first, last)
    else:
        check_place(options, newest.load)
        check_log(newest.load, described)
        starts = dict(first) | dict(newest.load.ends)
    _refuse_truncated(topic, starts, last)
    lost = tuple(OffsetRange(topic, p, starts[p], first[p]) for p in sorted(starts) if starts[p] < first[p])
    if lost and not options.accept_loss:
        raise LostData(_lost_message(lost), lost)
    fresh = [OffsetRange(topic, p, max(starts[p], first[p]), last[p]) for p in sorted(starts)]
    keeps_beginning = newest is None and isinstance(options.since.start, AtTime | AtId)
    if not lost and not keeps_beginning and not any(within.offsets for within in fresh):
        return None
    sizes = source.bytes_per_offset([range_ for range_ in fresh if range_.offsets])
    parts = split(fresh, options.file_rows, options.file_bytes, sizes)
    after = -1 if newest is None else newest.load.number
    number = after + 1 if withdrawn is None else withdrawn.load.number + 1
    manifest = Manifest(
        described.cluster_id,
        {topic: described.topics[topic].id},
        {"by": "load", "load": number, "since": options.since.to_dict()},
        parts,
        code_version,
        options.columns,
        read_committed=options.read_committed,
    )
    ends = {range_.partition: range_.end for range_ in fresh}
    skips = None if number == after + 1 else after
    return Load(topic, number, starts, ends, manifest, options.layout, lost, after=skips)


def check_since(options: LoadOptions, load: Load, *, is_finished: bool) -> None:
    """Raise OtherLayout if `options` name a beginning, unless it is that of the first load, which is not finished."""
    began = load.manifest.selector.get("since") if load.number == 0 and not is_finished else None
    if options.since.start is not None and options.since.to_dict() != began:
        raise OtherLayout(
            f"this place has loads of {load.topic!r} up to number {load.number}: --since {options.since.word} needs "
            "a new place; --since last goes on after the last load"
        )


def check_place(options: LoadOptions, load: Load) -> None:
    """Raise OtherLayout if the options do not fit the loads that are in the place."""
    same = {
        "the format": (load.layout.format, options.layout.format),
        "--partition-by": (load.layout.partition_by, options.layout.partition_by),
        "the columns": (load.manifest.columns, options.columns),
        "read_committed": (load.manifest.read_committed, options.read_committed),
    }
    for name, (before, now) in same.items():
        if before != now:
            raise OtherLayout(
                f"this place was begun with another value of {name}: {_shown(before)}, now {_shown(now)}. All loads of "
                "a place are alike; name another place"
            )
    reason = refused_change(load.layout.decode, options.layout.decode)
    if reason is not None:
        raise OtherLayout(f"{reason}. Give what fits, or name another place")


def check_log(load: Load, described: Description) -> None:
    """Raise OtherLog if the cluster or the topic is not the one that `load` was planned from."""
    try:
        load.manifest.check_log(described.cluster_id, described.topic_ids)
    except ManifestError as error:
        raise OtherLog(f"{error}. Its records cannot follow those that are loaded; name a new place") from None
    missing = sorted(set(load.starts) - set(described.topics[load.topic].leaders))
    if missing:
        raise OtherLog(
            f"topic {load.topic!r} had partitions {missing} and no longer has them: it was deleted and made again. "
            "Name a new place"
        )


def check_unread(load: Load, unread: Iterable[OffsetRange], source: SourceLog) -> None:
    """Raise LostData or OtherLog if the log no longer has the parts that a killed load still has to read."""
    first = source.earliest(load.topic)
    last = source.latest(load.topic, committed=load.manifest.read_committed)
    parts = list(unread)
    for range_ in parts:
        if last.get(range_.partition, -1) < range_.end:
            raise OtherLog(_truncated_message(range_.name, range_.end, last.get(range_.partition, -1)))
    lost = tuple(
        OffsetRange(range_.topic, range_.partition, range_.start, min(first[range_.partition], range_.end))
        for range_ in parts
        if range_.start < first[range_.partition]
    )
    if lost:
        raise LostData(_lost_message(lost), lost)


def split(
    ranges: Iterable[OffsetRange], file_rows: int, file_bytes: int, bytes_per_offset: Mapping[int, float]
) -> tuple[OffsetRange, ...]:
    """Cut the non-empty ranges into even parts of at most `file_rows` offsets and `file_bytes` bytes, estimated.

    Raise LoadError for more than TASKS_MAX parts.
    """
    counts = {}
    for within in sorted(within for within in ranges if within.offsets):
        by_bytes = -(-within.offsets * bytes_per_offset.get(within.partition, 0) // file_bytes)
        counts[within] = min(within.offsets, max(-(-within.offsets // file_rows), int(by_bytes), 1))
    if sum(counts.values()) > TASKS_MAX:
        raise LoadError(f"the load would have {sum(counts.values())} files, at most {TASKS_MAX}; ask for larger ones")
    return tuple(part for within, count in counts.items() for part in cut(within, count))


def _begin(
    options: LoadOptions, source: SourceLog, first: Mapping[int, int], last: Mapping[int, int]
) -> dict[int, int]:
    topic, start = options.topic, options.since.start
    match start:
        case None | Earliest():
            return dict(first)
        case AtTime(timestamp_ms):
            assert isinstance(timestamp_ms, int), "a load's time is in ms"
            matches = source.first_at_time(topic, timestamp_ms)
        case AtId(id):
            if not source.keeps_ids(topic):
                reason = f"the broker keeps no ids for topic {topic!r}"
                raise LoadError(f"{reason}; --since needs a time, or Flakelog's broker")
            matches = source.first_at_id(topic, id)
    return {
        partition: position_of(start, Bounds(first[partition], end), matches.get(partition)).offset
        for partition, end in last.items()
    }


def _refuse_truncated(topic: str, starts: Mapping[int, int], last: Mapping[int, int]) -> None:
    for partition, start in sorted(starts.items()):
        if start > last.get(partition, -1):
            raise OtherLog(_truncated_message(f"{topic}-{partition}", start, last.get(partition, -1)))


def _truncated_message(name: str, position: int, end: int) -> str:
    return (
        f"the log of {name} ends at {end}, but loads took or planned it up to {position} ({position - end:,} offsets "
        "more): it was truncated or made again. Its records cannot follow those that are loaded; name a new place"
    )


def _lost_message(lost: tuple[OffsetRange, ...]) -> str:
    return (
        f"the log no longer has {describe(lost)}, which no load took: retention or a deletion removed them. "
        "Nothing was published. --accept-loss goes on after them, and writes down what is missing"
    )


def _shown(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)
