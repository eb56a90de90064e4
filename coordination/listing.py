"""Lists of names in lines for people.

It is in the lowest package, and imports none of ours, so that every other package can import it.
"""

from collections.abc import Iterable


def listed(names: Iterable[object], named_max: int, separator: str = ", ") -> str:
    """Return the first `named_max` names as text, and how many more there are: "a, b and 3 more"."""
    texts = list(map(str, names))
    more = len(texts) - named_max
    return separator.join(texts[:named_max]) + (f" and {more:,} more" if more > 0 else "")
