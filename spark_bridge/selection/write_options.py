"""The options of a write, batch and streaming."""

from collections.abc import Mapping
from dataclasses import dataclass

from spark_bridge.reading.network import Address
from spark_bridge.selection.option_table import Use, sort_out
from spark_bridge.selection.options import parse_servers


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The validated options of a write."""

    servers: tuple[Address, ...]
    topic: str | None = None
    """The topic of all rows; None if the column `topic` names it."""
    warnings: tuple[str, ...] = ()
    """For the user: options that are ignored, and why."""


def parse_write(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of `write.format("flakelog")` and `writeStream`. Raise OptionError."""
    given, warnings = sort_out(options, Use.WRITE)
    return WriteOptions(parse_servers(given), given.get("topic"), warnings)
