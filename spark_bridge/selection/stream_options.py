"""The options of a streaming read: those of a batch read without an end, and the limits of a micro-batch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from spark_bridge.selection.option_table import OptionError, Use, sort_out
from spark_bridge.selection.option_values import positive
from spark_bridge.selection.options import ReadOptions, parse_source, parse_start
from spark_bridge.selection.selector import LATEST, Bound, SelectionError


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The validated options of a streaming read."""

    read: ReadOptions
    """The options that a batch read has too; its selector is not used."""
    start: Bound
    """Where the first micro-batch starts; spark_bridge.selection.selector.starts resolves it."""
    max_offsets_per_trigger: int = 0
    min_offsets_per_trigger: int = 0


def parse_stream(options: Mapping[str, str]) -> StreamOptions:
    """Parse the options of `spark.readStream.format("flakelog")`. Raise OptionError."""
    given, warnings = sort_out(options, Use.STREAM)
    read = replace(parse_source(given), warnings=warnings)
    try:
        start = parse_start(given, LATEST)
    except SelectionError as error:
        raise OptionError(str(error)) from None
    return StreamOptions(read, start, positive(given, "maxOffsetsPerTrigger"), positive(given, "minOffsetsPerTrigger"))
