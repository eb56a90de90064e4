"""Groupings: the rules that choose which of a bolt's tasks gets a tuple."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Tasks in turn, so that each gets an equal share."""


@dataclass(frozen=True, slots=True)
class ByFields:
    """Equal values of these fields go to the same task, also after a restart with the same parallelism."""

    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ToAll:
    """Every task gets each tuple."""


@dataclass(frozen=True, slots=True)
class ToFirst:
    """The task with the lowest number gets every tuple: Storm's global grouping."""


@dataclass(frozen=True, slots=True)
class Direct:
    """The emitter names the task."""


Grouping = Shuffle | ByFields | ToAll | ToFirst | Direct


def stable_hash(values: Sequence[Any]) -> int:
    """Return a number that is the same for equal values in every process.

    Python's own hash of text differs from run to run.

    1, 1.0 and True are equal, so they share a number. Raise TypeError for a value that is not text, bytes, a number,
    None or a tuple of these.
    """
    total = 0
    for value in values:
        total = crc32(_encoded(value), total)
    return total


def _encoded(value: Any) -> bytes:
    if isinstance(value, str):
        return b"s" + value.encode(errors="surrogatepass")
    if isinstance(value, bytes):
        return b"b" + value
    if isinstance(value, (int, float)):
        return b"n%d" % hash(value)  # the hash of a number is its value modulo a prime, without a seed
    if value is None:
        return b"0"
    if isinstance(value, tuple):
        return b"t%d" % stable_hash(value)
    raise TypeError(f"cannot group by {value!r}: a field to group by is text, bytes, a number, None or a tuple of them")
