"""The topics and the range of a read as arguments of a call or a command, made into the Data Source's options.

A range is half-open, and None leaves a side open:

    ids=(first, end)                    Snowflake ids
    times=(first, end)                  timestamps: a datetime (without a zone: UTC) or Unix ms
    offsets={0: (5, 10), 1: (0, None)}  by partition, and only these; for several topics {topic: {partition: ...}}

`options` are more options by their names, of which Spark ignores the case. They may name the topics (subscribe, assign,
subscribePattern) and bounds, as long as nothing is said twice.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

from spark_bridge.selection.option_table import OptionError

Ids: TypeAlias = tuple[int | None, int | None]
Times: TypeAlias = tuple[datetime | int | None, datetime | int | None]
Offsets: TypeAlias = Mapping[int, Ids] | Mapping[str, Mapping[int, Ids]]

TOPICS = ("subscribe", "assign", "subscribePattern")
STRATEGY = "startingOffsetsByTimestampStrategy"
_START = ("startingId", "startingTimestamp", "startingOffsets", "startingOffsetsByTimestamp")
_END = ("endingId", "endingTimestamp", "endingOffsets", "endingOffsetsByTimestamp")


def selection_options(
    topics: Sequence[str],
    *,
    ids: Ids | None = None,
    times: Times | None = None,
    offsets: Offsets | None = None,
    partitions: Sequence[int] = (),
    options: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return `options` and those that the arguments stand for.

    `partitions` limits the read to these of each topic. Raise OptionError if topics or a bound are missing, are given
    twice, or have the wrong form.
    """
    given = dict(options or {})
    by_topic = {} if offsets is None else _by_topic(list(topics), offsets)
    topics = list(topics) or list(by_topic)
    in_options = _present(given, TOPICS)
    if topics and in_options:
        raise OptionError(f"the topics are given twice: {', '.join(topics)}, and by the option {in_options[0]}")
    if not topics and not in_options:
        raise OptionError(f"a read needs topics, or one of the options {', '.join(TOPICS)}")
    bounds = _bounds("ids", ("startingId", "endingId"), ids)
    bounds |= _bounds("times", ("startingTimestamp", "endingTimestamp"), times)
    if offsets is not None:
        bounds |= _offset_bounds(by_topic)
    _refuse_second_bound(given, bounds)
    if offsets is not None or not topics:
        return given | bounds
    if partitions:
        return given | {"assign": json.dumps({name: sorted(set(partitions)) for name in topics})} | bounds
    return given | {"subscribe": ",".join(topics)} | bounds


def merge(options: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Return all options. Raise OptionError for a name that both have, in whatever case."""
    merged = dict(options)
    for name, value in more.items():
        if _present(merged, [name]):
            raise OptionError(f"option {name} is given twice, as an argument or in another spelling too")
        merged[name] = value
    return merged


def value_of(options: Mapping[str, str], name: str) -> str | None:
    """Return the value of an option in whatever case its name is written; None if it is not given."""
    return next((value for key, value in options.items() if key.lower() == name.lower()), None)


def without(options: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the options but one, in whatever case its name is written."""
    return {key: value for key, value in options.items() if key.lower() != name.lower()}


def _present(options: Mapping[str, str], names: Sequence[str]) -> list[str]:
    low = set(map(str.lower, options))
    return [name for name in names if name.lower() in low]


def _refuse_second_bound(options: Mapping[str, str], bounds: Mapping[str, str]) -> None:
    for side, names in (("start", _START), ("end", _END)):
        argument, option = _present(bounds, names), _present(options, names)
        if argument and option:
            raise OptionError(
                f"the {side} of the range is given twice: as an argument, which is {argument[0]}, and by the option "
                f"{option[0]}"
            )


def _bounds(argument: str, names: tuple[str, str], bounds: Times | None) -> dict[str, str]:
    if bounds is None:
        return {}
    pairs = zip(names, map(_in_ms, _pair(argument, bounds)), strict=True)
    return {name: str(value) for name, value in pairs if value is not None}


def _by_topic(topics: list[str], offsets: Offsets) -> dict[str, Mapping[int, Ids]]:
    """Return {topic: {partition: (first, end)}}. Raise OptionError unless the topics are those of the offsets."""
    named: Any = offsets if all(isinstance(key, str) for key in offsets) else {name: offsets for name in topics[:1]}
    if not named or topics and set(topics) != set(named):
        raise OptionError("offsets are {partition: (first, end)} of one topic, or {topic: {partition: (first, end)}}")
    return dict(named)


def _offset_bounds(by_topic: Mapping[str, Mapping[int, Ids]]) -> dict[str, str]:
    start: dict[str, dict[str, int]] = {}
    end: dict[str, dict[str, int]] = {}
    for topic, partitions in by_topic.items():
        for partition, bounds in partitions.items():
            first, last = _pair(f"offsets of {topic}-{partition}", bounds)
            start.setdefault(topic, {})[str(partition)] = -2 if first is None else first
            end.setdefault(topic, {})[str(partition)] = -1 if last is None else last
    assigned = {topic: sorted(map(int, partitions)) for topic, partitions in start.items()}
    return {"assign": json.dumps(assigned), "startingOffsets": json.dumps(start), "endingOffsets": json.dumps(end)}


def _pair(argument: str, bounds: Any) -> tuple[Any, Any]:
    if not isinstance(bounds, Sequence) or isinstance(bounds, str) or len(bounds) != 2:
        raise OptionError(f"{argument} are a pair (first, end), half-open, with None for an open side; got {bounds!r}")
    return bounds[0], bounds[1]


def _in_ms(time: datetime | int | None) -> int | None:
    if not isinstance(time, datetime):
        return time
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
