"""Filters on offset, partition, topic and id, used to read less.

Only as bounds: Spark applies every filter to the rows as well, so a range need not become exactly as small as it could.
Ids rise strictly with the offset, so a bound on the id is a bound on the offset; times are no bound on anything.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from spark_bridge.offset_range import OffsetRange

FirstAtId: TypeAlias = Callable[[str, int], Mapping[int, int | None]]
"""(topic, id) -> {partition: first offset whose id is not below it, or None}"""

COMPARISONS = frozenset({"=", "<", "<=", ">", ">="})
_ID_MAX = (1 << 63) - 1


class Condition(NamedTuple):
    """`column` compared with `value`; "in" has a list of values."""

    column: str
    comparison: str
    value: Any


def narrow(
    ranges: Iterable[OffsetRange], conditions: Iterable[Condition], first_at_id: FirstAtId | None = None
) -> tuple[OffsetRange, ...]:
    """The ranges, each cut to what can fulfil all `conditions`; those of which nothing is left are gone."""
    left = list(ranges)
    for condition in conditions:
        apply = _BY_COLUMN.get(condition.column.lower())
        if apply is not None:
            left = [cut for one in left if (cut := apply(one, condition, first_at_id)) and cut.offsets]
    return tuple(left)


def _same(value: Any) -> Callable[[OffsetRange, Condition, FirstAtId | None], OffsetRange | None]:
    """Keeps or drops a range by a value all its rows share."""

    def apply(one: OffsetRange, condition: Condition, _: FirstAtId | None) -> OffsetRange | None:
        wanted = condition.value if condition.comparison == "in" else [condition.value]
        return one if condition.comparison not in ("=", "in") or value(one) in wanted else None

    return apply


def _by_offset(one: OffsetRange, condition: Condition, _: FirstAtId | None) -> OffsetRange:
    first, end = _bounds(condition)
    return _cut(one, first, end)


def _by_id(one: OffsetRange, condition: Condition, first_at_id: FirstAtId | None) -> OffsetRange:
    if first_at_id is None:
        return one
    first, end = _bounds(condition)
    return _cut(one, _at(one, first, first_at_id), _at(one, end, first_at_id))


def _at(one: OffsetRange, id: int | None, first_at_id: FirstAtId) -> int | None:
    if id is None or id > _ID_MAX:
        return None if id is None else one.end
    found = first_at_id(one.topic, max(id, 0))[one.partition]
    return one.end if found is None else found


def _bounds(condition: Condition) -> tuple[int | None, int | None]:
    """Half-open bounds a comparison with a whole number sets; None leaves a side open."""
    value = condition.value
    if condition.comparison == "in":
        whole = [each for each in value if type(each) is int]
        return (min(whole), max(whole) + 1) if whole and len(whole) == len(value) else (None, None)
    if type(value) is not int or condition.comparison not in COMPARISONS:
        return None, None
    return {
        "=": (value, value + 1),
        ">": (value + 1, None),
        ">=": (value, None),
        "<": (None, value),
        "<=": (None, value + 1),
    }[condition.comparison]


def _cut(one: OffsetRange, first: int | None, end: int | None) -> OffsetRange:
    start = one.start if first is None else min(max(one.start, first), one.end)
    stop = one.end if end is None else max(min(one.end, end), start)
    return OffsetRange(one.topic, one.partition, start, stop)


_BY_COLUMN: dict[str, Callable[[OffsetRange, Condition, FirstAtId | None], OffsetRange | None]] = {
    "offset": _by_offset,
    "id": _by_id,
    "partition": _same(lambda one: one.partition),
    "topic": _same(lambda one: one.topic),
}
