"""k-sorted merging: put the ids of several streams, each of them in order or nearly so, into one order.

Ids of one worker ascend. Ids of several workers are k-sorted: a later id can be below an earlier one by at most k ms of
time, below one second by default. So an item is ready as soon as an id more than k ms above it has been seen.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import TypeVar

from idgen.layout import Layout

T = TypeVar("T")

K_MS = 1_000
WAITING_MAX = 1_000_000  # buffered items: one second of a fast stream


class NotKSorted(ValueError):
    """An item came too late: the merge has already yielded an item above it."""


def k_sorted(
    items: Iterable[T],
    *,
    key: Callable[[T], int],
    layout: Layout = Layout(),
    k_ms: int = K_MS,
    waiting_max: int = WAITING_MAX,
) -> Iterator[T]:
    """Yield the items in the order of their ids; `items` may be out of order by up to `k_ms` of their ids' times.

    At most `waiting_max` items are buffered; beyond that the lowest is yielded early. NotKSorted if an item is below
    one already yielded, so that no item is misplaced or silently dropped.
    """
    if k_ms < 0 or waiting_max < 1:
        raise ValueError(f"k_ms={k_ms}, waiting_max={waiting_max}: no negative k, and room for one item are due")
    reach = k_ms << layout.time_shift
    waiting: list[tuple[int, int, T]] = []
    highest = last = -1
    for number, item in enumerate(items):
        id = key(item)
        if id < last:
            raise NotKSorted(f"id {id} came after {last}: more than {k_ms} ms, or {waiting_max} items, out of order")
        heappush(waiting, (id, number, item))
        highest = max(highest, id)
        while waiting and (highest - waiting[0][0] > reach or len(waiting) > waiting_max):
            last, _, ready = heappop(waiting)
            yield ready
    while waiting:
        yield heappop(waiting)[2]
