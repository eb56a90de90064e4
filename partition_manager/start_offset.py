"""The start position of reading: stored progress or a requested position, limited to what the log still has."""

from datetime import date, datetime
from typing import NamedTuple

from coordination.errors import FlakelogError
from partition_manager.config import LATEST, SpoutConfig
from partition_manager.ports import Bounds, FindId, FindTime
from partition_manager.progress import Progress, SettledRanges


class Earliest(NamedTuple):
    """The oldest message in the log."""


class Latest(NamedTuple):
    """The end of the log: read only messages appended from now on."""


class AtTime(NamedTuple):
    """The first message with this timestamp or a later one: ms since 1970, or a datetime with a time zone."""

    timestamp_ms: int | datetime


class AtId(NamedTuple):
    """The first message with this Snowflake id or a greater one."""

    id: int


class AtOffset(NamedTuple):
    """This offset in every partition, or the nearest one if the log does not have it."""

    offset: int


StartAt = Earliest | Latest | AtTime | AtId | AtOffset


class InvalidStart(FlakelogError, ValueError):
    """A wrong start position; the message names a right one."""


_RIGHT = "give Earliest(), Latest(), AtOffset(n), AtId(n) or AtTime(ms or a datetime with a time zone)"


def start_of(start: object) -> StartAt:
    """Return the start position, a time in milliseconds. Raise InvalidStart if it is no position."""
    if isinstance(start, AtTime) and isinstance(start.timestamp_ms, datetime):
        if start.timestamp_ms.tzinfo is None:
            raise InvalidStart(f"start={start!r}: the time has no zone; give one, as in datetime(..., tzinfo=UTC)")
        return AtTime(round(start.timestamp_ms.timestamp() * 1000))
    if isinstance(start, (AtTime, AtId, AtOffset)):
        (number,) = start
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise InvalidStart(f"start={start!r}: {number!r} is no whole number of 0 or more")
        return start
    if isinstance(start, (Earliest, Latest)):
        return start
    raise InvalidStart(f"start={start!r} is no position: {_meant(start)}")


def _meant(start: object) -> str:
    if isinstance(start, type) and issubclass(start, (Earliest, Latest, AtTime, AtId, AtOffset)):
        inside = "" if issubclass(start, (Earliest, Latest)) else "..."
        return f"give {start.__name__}({inside}), this is the class"
    if isinstance(start, str) and start.strip().lower() in ("earliest", "latest"):
        return f"give {start.strip().capitalize()}()"
    if isinstance(start, int) and not isinstance(start, bool):
        return f"give AtOffset({start}), AtId({start}) or AtTime({start})"
    if isinstance(start, date):
        return "give AtTime(...) with milliseconds since 1970 or a datetime with a time zone"
    return _RIGHT


class Start(NamedTuple):
    """The progress to begin with, the number of unsettled messages skipped, and the reason as text for a log.

    `truncated` is True if the log no longer has messages that the stored progress is about.
    """

    progress: Progress
    lost: int
    why: str
    truncated: bool = False


def question(at: StartAt, topic: str, partition: int) -> FindTime | FindId | None:
    """Return the request, besides the log's bounds, whose answer is needed to find this position, or None."""
    if isinstance(at, AtTime):
        assert isinstance(at.timestamp_ms, int), "start_of makes a number of it"
        return FindTime(topic, partition, at.timestamp_ms)
    if isinstance(at, AtId):
        return FindId(topic, partition, at.id)
    return None


def choose_start(
    stored: Progress | None, at: StartAt, bounds: Bounds, found: int | None, config: SpoutConfig
) -> Start:
    """Choose the start position. `found` is the answer to `question`, None if the log holds nothing that late.

    Stored progress takes precedence, even offset 0 (0.9.3 treated that as nothing stored). If the log no longer has the
    stored offset, the manager's rules for out of range apply, and messages that can no longer be read are counted as
    lost.
    """
    if stored is None:
        return Start(Progress(_position(at, bounds, found)), 0, "nothing stored")
    start, end = bounds
    if stored.offset > end:
        why = f"stored offset {stored.offset} is past the log's end {end}: it was truncated"
        return Start(Progress(end), 0, why, truncated=True)
    if stored.offset < start:
        to = end if config.spout_out_of_range == LATEST else start
        return _skip(stored, to, end, f"stored offset {stored.offset} is below the log's start {start}")
    limit = config.spout_max_start_lag
    if limit is not None and end - stored.offset > limit:
        to = max(stored.offset, _position(at, bounds, found))
        return _skip(stored, to, end, f"stored offset {stored.offset} is {end - stored.offset} behind, over {limit}")
    return _skip(stored, stored.offset, end, "stored")


def _position(at: StartAt, bounds: Bounds, found: int | None) -> int:
    if isinstance(at, Earliest):
        return bounds.log_start
    if isinstance(at, Latest):
        return bounds.log_end
    offset = at.offset if isinstance(at, AtOffset) else found
    return bounds.log_end if offset is None else min(max(offset, bounds.log_start), bounds.log_end)


def _skip(stored: Progress, to: int, log_end: int, why: str) -> Start:
    ranges = SettledRanges(stored)
    ranges.cut(log_end)
    lost = to - stored.offset - ranges.count_in(stored.offset, to)
    if to > stored.offset:
        ranges.add(stored.offset, to)
    return Start(ranges.progress, lost, why)
