"""Work in slices, so that one large request delays no other connection for long.

A function that may take long is a generator: it yields after each slice, and its value is the result. The engine runs
one slice after another, and executes the requests of other connections in between (`broker.channel.slices`).

`LazyArray` is an array of an answer whose items are made while the answer is encoded, so that a handler that only reads
needs no slices of its own: encoding makes an item, writes it and forgets it.
"""

from collections.abc import Callable, Collection, Generator, Iterator
from typing import Any, Generic, TypeAlias, TypeVar

from broker.now import Now

T = TypeVar("T")
Item = TypeVar("Item")

Steps: TypeAlias = Generator[None, Now, T]
"""Work in slices: it receives the current time at each `yield`, and returns its result."""

ITEMS_AT_ONCE = 500
"""The items of one slice. Most APIs take 2 to 10 microseconds for an item."""


CHANGES_AT_ONCE = 500
"""The changes that a handler makes in one go, such as offsets that it commits: each takes some 10 microseconds."""


class LargeMessage(Exception):
    """A message takes too long to be encoded at once, so it is to be encoded in slices."""


class Pace:
    """Counts the items of a slice."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = ITEMS_AT_ONCE

    def is_over(self, items: int = 1) -> bool:
        """Count items. Return True if the slice is over; the next one begins with the next call."""
        self.left -= items
        if self.left > 0:
            return False
        self.left = ITEMS_AT_ONCE
        return True


class LazyArray(Generic[Item]):
    """An array of an answer: `make` of each item, called when the item is encoded. The array may be encoded again."""

    __slots__ = ("items", "make")

    def __init__(self, items: Collection[Item], make: Callable[[Item], Any]) -> None:
        self.items = items
        self.make = make

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        return map(self.make, self.items)


def rest_of(steps: Steps[T]) -> Steps[T]:
    """Return the rest of work whose first slice is done, as work in slices."""
    while True:
        now = yield
        try:
            steps.send(now)
        except StopIteration as done:
            result: T = done.value
            return result


def at_once(steps: Steps[T], now: Now) -> T:
    """Return the result of work in slices, with all of it done now."""
    try:
        next(steps)
        while True:
            steps.send(now)
    except StopIteration as done:
        result: T = done.value
        return result
