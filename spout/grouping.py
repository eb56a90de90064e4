"""Groupings: the rules that choose which of a bolt's tasks gets a tuple."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from reprlib import repr
from typing import Any, Protocol, runtime_checkable
from zlib import crc32


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Tasks in turn, so that each gets an equal share."""


@dataclass(frozen=True, slots=True)
class LocalOrShuffle(Shuffle):
    """Tasks of the emitter's own process in turn, or all tasks if it has none: one process has them all."""


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


@dataclass(frozen=True, slots=True)
class PartialKey:
    """Each value of these fields has two tasks, and each tuple goes to the one that this emitter gave less so far.

    A frequent value so loads two tasks instead of one. A later bolt joins the two parts. Nasir et al., "The Power of
    Both Choices", ICDE 2015.
    """

    fields: tuple[str, ...]


@runtime_checkable
class CustomGrouping(Protocol):
    """A user's grouping, as in Storm. Each task that emits has its own copy."""

    def prepare(self, component: str, stream: str, tasks: Sequence[int]) -> None:
        """Prepare to choose among `tasks`, the numbers of the receiving tasks; `component` emits to `stream`."""

    def choose_tasks(self, task: int, values: Sequence[Any]) -> Sequence[int]:
        """Return the numbers of the tasks that receive `values`, which the task numbered `task` emits."""


@dataclass(frozen=True, slots=True)
class Custom:
    """A user's code chooses the tasks: a CustomGrouping, or a function of the values and the receiving tasks."""

    chooser: CustomGrouping | Callable[[Sequence[Any], Sequence[int]], int | Sequence[int]]


Grouping = Shuffle | ByFields | ToAll | ToFirst | Direct | PartialKey | Custom


def two_choices(hashed: int, tasks: int) -> tuple[int, int]:
    """Return the two tasks, of 0 to tasks - 1, of a value with this hash; they differ if there are two."""
    first = hashed % tasks
    if tasks == 1:
        return first, first
    mixed = (hashed * 2_654_435_769) % 2**32 >> 16  # Knuth's multiplicative hash, independent of the low bits
    return first, (first + 1 + mixed % (tasks - 1)) % tasks


def stable_hash(values: Sequence[Any]) -> int:
    """Return a number that is the same for equal values in every process.

    Python's own hash of text differs from run to run.

    1, 1.0 and True are equal, so they share a number. Raise TypeError for a value that is not text, bytes, a number,
    None or a tuple of these.
    """
    total = 0
    try:
        for value in values:
            total = crc32(_encoded(value), total)
    except RecursionError:
        raise TypeError("cannot group by a tuple that is nested so deep") from None
    return total


def _encoded(value: Any) -> bytes:
    if isinstance(value, str):
        return b"s" + value.encode(errors="surrogatepass")
    if isinstance(value, bytes):
        return b"b" + value
    if isinstance(value, (int, float)):
        if value != value:
            return b"nan"  # Python hashes each NaN by its address
        return b"n%d" % hash(value)  # the hash of a number is its value modulo a prime, without a seed
    if value is None:
        return b"0"
    if isinstance(value, tuple):
        return b"t%d" % stable_hash(value)
    wanted = "a field to group by is text, bytes, a number, None or a tuple of them"
    raise TypeError(f"cannot group by {repr(value)}: {wanted}")
