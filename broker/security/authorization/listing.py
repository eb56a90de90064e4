"""Selects the resources that a client may see among all, for a listing.

A listing does not decide name by name. It takes the rules of one client, and selects the names of each rule: a name by
a look-up in the set of all names, a prefix by a binary search among the sorted names. So a listing of N names by P
prefixes takes about N + P * log N steps, few of them in Python, and however many rules others have.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from broker.security.authorization.acl import WILDCARD


class NamePatterns:
    """The patterns of some rules: names, "*" for all, and prefixes."""

    __slots__ = ("_literals", "_prefixes", "_has_all")

    def __init__(self, literals: Iterable[str], prefixes: Iterable[str]) -> None:
        self._literals = frozenset(literals)
        self._prefixes = _outermost(prefixes)
        self._has_all = WILDCARD in self._literals

    def select(self, names: AbstractSet[str]) -> AbstractSet[str]:
        """Return those of the names that have one of the patterns."""
        if self._has_all:
            return names
        selected = self._literals & names
        return selected.union(_with_prefixes(sorted(names), self._prefixes)) if self._prefixes else selected


class ListingRules(NamedTuple):
    """The rules that allow one client an operation on resources of one type, and those that deny it.

    `ruled` are the patterns of all rules about the type if a resource without rules is open, and None otherwise.
    """

    allowed: NamePatterns
    denied: NamePatterns
    ruled: NamePatterns | None

    def select(self, names: AbstractSet[str]) -> set[str]:
        """Return those of the names on which the client may do the operation. A rule that denies comes first."""
        selected = self.allowed.select(names)
        selected -= self.denied.select(selected)
        return set(selected if self.ruled is None else selected | (names - self.ruled.select(names)))


def _outermost(prefixes: Iterable[str]) -> list[str]:
    """Return the prefixes that begin with no other, sorted."""
    outermost: list[str] = []
    for prefix in sorted(prefixes):
        if not outermost or not prefix.startswith(outermost[-1]):
            outermost.append(prefix)
    return outermost


def _with_prefixes(names: Sequence[str], prefixes: Sequence[str]) -> list[str]:
    """Return the names with one of the prefixes. Both are sorted, and no prefix begins with another."""
    selected: list[str] = []
    end = 0
    for prefix in prefixes:
        begin = end = bisect_left(names, prefix, end)
        while end < len(names) and names[end].startswith(prefix):
            end += 1
        selected += names[begin:end]
    return selected
