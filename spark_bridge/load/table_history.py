"""The fate of the files of loads in a table, by the commits of its history.

Other writers may do with a table what they like: a compaction writes the rows of its files into others, and a delete
leaves files out, or writes the rows that are left into others. So the messages of a load are followed from the files
that it added to the files that took their rows. A load without any file at the end was removed by the last commit that
took one away. If that commit put the table back to an older state, or if there is no such commit, messages are missing
that nobody deleted.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum


class Kind(Enum):
    """The effect of a commit on the rows of the files that it takes away."""

    REWRITE = "rewrite"
    """A compaction: the same rows are in the files that it adds."""
    CHANGE = "change"
    """A delete, an update or an overwrite by another writer, which chose what happens to the rows."""
    PUT_BACK = "put back"
    """The table is as it was before. The files that come back have the rows that they had."""


@dataclass(frozen=True, slots=True)
class TableCommit:
    """A commit, with the paths of data files that it adds and takes away. `name` is its name for people."""

    name: str
    kind: Kind
    added: Collection[str]
    removed: Collection[str]


@dataclass(frozen=True, slots=True)
class History:
    """The commits of a table that its metadata still has, the oldest first.

    `begins` is the position of the oldest one, by a number of Commit.at, None if this table has no order. A `complete`
    history begins with the table.
    """

    commits: Collection[TableCommit]
    begins: int | None
    complete: bool

    def reaches(self, position: int | None) -> bool:
        """Return True if the history has all commits since the one at a position, None for an unknown one."""
        return self.complete or (self.begins is not None and position is not None and position >= self.begins)


@dataclass(slots=True)
class Fates:
    """The fate of loads, by their numbers."""

    held: set[int] = field(default_factory=set)
    """The loads that have a file in the table, their own or one that took rows of it."""
    removed: dict[int, TableCommit] = field(default_factory=dict)
    """The commit that took away the last file of a load that has none."""
    changed: dict[str, set[int]] = field(default_factory=dict)
    """The loads of whose files another writer's commit took some away, by the commit's name."""


def follow(loads: Mapping[int, Iterable[str]], commits: Iterable[TableCommit], now: Collection[str]) -> Fates:
    """Follow the files of loads through the commits of a table, the oldest first, to the files that it has now."""
    fates = Fates()
    of_file = {name: {number} for number, names in loads.items() for name in names}
    last: dict[int, TableCommit] = {}
    for commit in commits:
        numbers = {number for name in commit.removed for number in of_file.get(name, ())}
        last |= dict.fromkeys(numbers, commit)
        if commit.kind is Kind.CHANGE and numbers:
            fates.changed[commit.name] = numbers
        if commit.kind is not Kind.PUT_BACK and numbers:
            for name in commit.added:
                of_file[name] = of_file.get(name, set()) | numbers
    fates.held = {number for name in now for number in of_file.get(name, ())}
    fates.removed = {number: commit for number, commit in last.items() if number not in fates.held}
    return fates


def in_words(numbers: Iterable[int]) -> str:
    """Return the numbers of loads in words, as in "load 3" or "loads 0 to 2, 5"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    shown = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
    return f"load {shown}" if len(runs) == 1 and len(runs[0]) == 1 else f"loads {shown}"
