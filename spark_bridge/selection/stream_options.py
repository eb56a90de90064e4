"""The options of a streaming read: those of a batch read without an end, and the limits of a micro-batch."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from spark_bridge.selection.option_table import OptionError, Use, sort_out
from spark_bridge.selection.option_values import LONG_MAX, positive
from spark_bridge.selection.options import ReadOptions, parse_source, parse_start
from spark_bridge.selection.selector import LATEST, Bound, SelectionError
from spark_bridge.selection.stream_limits import MAX_TRIGGER_DELAY_MS, StreamLimits

_DURATION = re.compile(r"\s*(\d{1,18})\s*([a-z]*)\s*", re.IGNORECASE)
_UNIT_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The validated options of a streaming read."""

    read: ReadOptions
    """The options that a batch read has too; its selector is not used."""
    start: Bound
    """Where the first micro-batch starts; spark_bridge.selection.selector.starts resolves it."""
    limits: StreamLimits = StreamLimits()


def parse_stream(options: Mapping[str, str]) -> StreamOptions:
    """Parse the options of `spark.readStream.format("flakelog")`. Raise OptionError."""
    given, warnings = sort_out(options, Use.STREAM)
    read = replace(parse_source(given), warnings=warnings)
    try:
        start = parse_start(given, LATEST)
    except SelectionError as error:
        raise OptionError(str(error)) from None
    return StreamOptions(read, start, _limits(given))


def _limits(given: Mapping[str, str]) -> StreamLimits:
    most, least = positive(given, "maxOffsetsPerTrigger"), positive(given, "minOffsetsPerTrigger")
    return StreamLimits(most, least, duration_ms(given, "maxTriggerDelay", MAX_TRIGGER_DELAY_MS))


def duration_ms(given: Mapping[str, str], name: str, default_ms: int) -> int:
    """Return a time in Spark's form in ms: 500ms, 30s, 15m or 15min, 1h, 2d; without a unit it is ms."""
    if name not in given:
        return default_ms
    match = _DURATION.fullmatch(given[name])
    unit_ms = None if match is None else _UNIT_MS.get(match[2].lower())
    if match is None or unit_ms is None or int(match[1]) * unit_ms > LONG_MAX:
        raise OptionError(f"{name} is a time like 500ms, 30s, 15m, 1h; got {given[name]!r}")
    return int(match[1]) * unit_ms
