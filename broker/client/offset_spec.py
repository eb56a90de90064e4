"""A position in the log (Kafka's OffsetSpec): its values, their text, and the offset that each has in a partition.

`broker.client.offset_lookup` asks the brokers for the offsets. The command line takes a position as one text, and the
console's forms as a kind and a value:

    Earliest()     earliest    kind "earliest"
    Latest()       latest      kind "latest"
    AtOffset(17)   17          kind "offset", value 17
    Last(10)       -10         kind "last", value 10
    AtTime(ms)     @TIME       kind "time"; `broker.client.times` names the forms of a time
    AtId(id)       id:ID       kind "id"
"""

from dataclasses import dataclass
from datetime import date, datetime
from typing import NamedTuple, TypeAlias

from broker.client.times import parse_time
from coordination.errors import FlakelogError, quoted

# Dataclasses, and no tuples: AtTime(5) is not equal to AtId(5).


@dataclass(frozen=True, slots=True)
class Earliest:
    """The oldest message in the log."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end of the log: read only messages appended from now on."""


@dataclass(frozen=True, slots=True)
class AtOffset:
    """This offset in every partition, or the nearest one if the log does not have it."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first message with this timestamp or a later one: ms since 1970, or a datetime with a time zone."""

    timestamp_ms: int | datetime


@dataclass(frozen=True, slots=True)
class AtId:
    """The first message with this Snowflake id or a greater one."""

    id: int


@dataclass(frozen=True, slots=True)
class Last:
    """The last `count` offsets of each partition."""

    count: int


OffsetSpec: TypeAlias = Earliest | Latest | AtOffset | AtTime | AtId | Last
_KINDS = (Earliest, Latest, AtOffset, AtTime, AtId, Last)
_ANY_KIND = "give Earliest(), Latest(), AtOffset(n), AtId(n), Last(n) or AtTime(ms or a datetime with a time zone)"


class InvalidStart(FlakelogError, TypeError, ValueError):
    """A start that is no position, or a position with an impossible number; the message names a right one."""


def check_start(start: object) -> OffsetSpec:
    """Return the start position, a time in milliseconds. Raise InvalidStart if it is no position."""
    number: object
    match start:
        case Earliest() | Latest():
            return start
        case AtTime(datetime() as when):
            if when.tzinfo is None:
                raise InvalidStart(f"start={start!r}: the time has no zone; give one, as in datetime(..., tzinfo=UTC)")
            return AtTime(round(when.timestamp() * 1000))
        case AtOffset(number) | AtTime(number) | AtId(number) | Last(number):
            least = 1 if isinstance(start, Last) else 0
            if not isinstance(number, int) or isinstance(number, bool) or number < least:
                raise InvalidStart(f"start={start!r}: {number!r} is no whole number of {least} or more")
            return start
    raise InvalidStart(f"start={start!r} is no position: {_right_spelling(start)}")


def _right_spelling(start: object) -> str:
    """Return what to write in place of a start that is no position."""
    if isinstance(start, type) and issubclass(start, _KINDS):
        inside = "" if issubclass(start, (Earliest, Latest)) else "..."
        return f"give {start.__name__}({inside}), this is the class"
    if isinstance(start, str) and start.strip().lower() in ("earliest", "latest"):
        return f"give {start.strip().capitalize()}()"
    if isinstance(start, int) and not isinstance(start, bool):
        return f"give AtOffset({start}), AtId({start}) or AtTime({start})"
    if isinstance(start, date):
        return "give AtTime(...) with milliseconds since 1970 or a datetime with a time zone"
    return _ANY_KIND


# --- text ------------------------------------------------------------------------------------------------------------

KINDS = ("earliest", "latest", "time", "offset", "id", "last")
_INT64_MAX = (1 << 63) - 1
_DIGITS_MAX = 40  # int() refuses thousands of digits


def parse_offset_spec(text: str, now_ms: int | None = None) -> OffsetSpec:
    """Parse a position. Raise ValueError for any other text. `@now` is a position if the caller gives `now_ms`."""
    if text in ("earliest", "latest"):
        return parse_value(text, "")
    if text.startswith("@"):
        return parse_value("time", text[1:], now_ms)
    for prefix, kind in (("id:", "id"), ("-", "last"), ("", "offset")):
        if text.startswith(prefix):
            try:
                return parse_value(kind, text.removeprefix(prefix))
            except ValueError:
                break
    raise ValueError(f"{quoted(text)} is no place to begin; give earliest, latest, an offset, -N, @TIME or id:ID")


def parse_value(kind: str, value: str, now_ms: int | None = None) -> OffsetSpec:
    """Return the position of a kind that has this value. Raise ValueError if the kind cannot have it."""
    match kind:
        case "earliest":
            return Earliest()
        case "latest":
            return Latest()
        case "time":
            return AtTime(parse_time(value, now_ms))
        case "offset":
            return AtOffset(_number(kind, value))
        case "id":
            return AtId(_number(kind, value))
        case "last":
            return Last(_number(kind, value, least=1))
    raise ValueError(f"{quoted(kind)} is no kind of position; give {', '.join(KINDS)}")


def _number(kind: str, text: str, least: int = 0) -> int:
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and least <= int(text) <= _INT64_MAX:
        return int(text)
    what = "number of messages" if kind == "last" else kind
    raise ValueError(f"{quoted(text)} is no {what}; give a number from {least} to 2**63 - 1")


# --- positions in partitions -----------------------------------------------------------------------------------------


class Bounds(NamedTuple):
    """The bounds of a log, half-open: readable offsets are log_start <= offset < log_end."""

    log_start: int
    log_end: int


class Position(NamedTuple):
    """A position in a partition. `offset` lies within the bounds.

    `wanted` is the offset before it was moved into the bounds, None if all messages are before the time or the id.
    """

    offset: int
    bounds: Bounds
    wanted: int | None


def position_of(spec: OffsetSpec, bounds: Bounds, match_offset: int | None = None) -> Position:
    """Return the position in a partition with these bounds.

    `match_offset` is the first offset at or after the time or the id, None without such a message.
    """
    match spec:
        case Earliest():
            wanted: int | None = bounds.log_start
        case Latest():
            wanted = bounds.log_end
        case Last(count):
            wanted = max(bounds.log_start, bounds.log_end - count)
        case AtOffset(offset):
            wanted = offset
        case AtTime() | AtId():
            wanted = match_offset
    offset = bounds.log_end if wanted is None else min(max(wanted, bounds.log_start), bounds.log_end)
    return Position(offset, bounds, wanted)
