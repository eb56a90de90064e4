"""Requests to other brokers that carry many items: the items of one turn share a request to their broker."""

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from broker.membership.peer_calls import PeerCalls
from broker.now import Now

T = TypeVar("T")

Settle: TypeAlias = Callable[[int, list[T], Any | None, Now], None]
"""Receives the outcome of a request: (broker id, its items, the response or None, now)."""


class PeerBatches(Generic[T]):
    """Gathers items until the shell takes calls, then asks each broker once, for at most `items_max` items a request.

    `request_of` makes the request of some items. Each item is passed to `settle` once.
    """

    def __init__(
        self, calls: PeerCalls, items_max: int, request_of: Callable[[list[T]], Any], settle: Settle[T]
    ) -> None:
        self._calls = calls
        self._items_max = items_max
        self._request_of = request_of
        self._settle = settle
        self._gathered: dict[int, list[T]] = {}
        self._now = Now(0, 0)
        calls.before_take.append(self._ask)

    def add(self, broker_id: int, item: T, now: Now) -> None:
        """Ask a broker for an item, in the next request to it."""
        self._gathered.setdefault(broker_id, []).append(item)
        self._now = now
        self._calls.pending.calls = True

    def _ask(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for broker_id, items in gathered.items():
            for first in range(0, len(items), self._items_max):
                batch = items[first : first + self._items_max]
                answered = partial(self._settle, broker_id, batch)
                self._calls.ask(broker_id, self._request_of(batch), answered, self._now)
