"""Which TLS handshakes are under way, and which wait, so that a storm of connections delays nobody.

A handshake takes the CPU some tenths of a millisecond, and memory until it ends. So at most `at_once` are under way,
and at most `at_once_of_address` of one address. The others wait; addresses take turns. A handshake that has not ended
in time is to be closed, whether it waits or not.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K")


@dataclass(slots=True)
class HandshakeFigures:
    """Counts of handshakes by outcome since the start, and of those under way or waiting."""

    succeeded: int = 0
    failed: int = 0
    open: int = 0


class Handshakes(Generic[K]):
    """The handshakes under one limit. `K` is what the shell knows a connection by. Times are in monotonic ms."""

    def __init__(self, at_once: int, at_once_of_address: int, timeout_ms: int) -> None:
        self._at_once = at_once
        self._at_once_of_address = at_once_of_address
        self._timeout_ms = timeout_ms
        self._deadlines: dict[K, tuple[str, int]] = {}  # in the order of their begin, so of their deadlines too
        self._under_way: set[K] = set()
        self._of_address: dict[str, int] = {}
        self._waiting: OrderedDict[str, deque[K]] = OrderedDict()

    def __len__(self) -> int:
        """Return how many handshakes are under way or wait."""
        return len(self._deadlines)

    def is_under_way(self, key: K) -> bool:
        return key in self._under_way

    def opened(self, key: K, address: str, now_ms: int) -> bool:
        """Note a new connection. Return True if its handshake may begin at once."""
        self._deadlines[key] = address, now_ms + self._timeout_ms
        if self._has_room(address):
            self._begin(key, address)
            return True
        self._waiting.setdefault(address, deque()).append(key)
        return False

    def ended(self, key: K) -> list[K]:
        """Forget a connection whose handshake has ended, or that is closed. Return those that may begin now."""
        address, _ = self._deadlines.pop(key, ("", 0))
        if key in self._under_way:
            self._under_way.discard(key)
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]
        elif address in self._waiting:
            self._waiting[address].remove(key)
            if not self._waiting[address]:
                del self._waiting[address]
        return self._begin_waiting()

    def next_deadline_ms(self) -> int | None:
        """Return when the next handshake is late, None without any."""
        return next((deadline_ms for _, deadline_ms in self._deadlines.values()), None)

    def late(self, now_ms: int) -> list[K]:
        """Return the connections whose handshakes have not ended in time, for the shell to close."""
        keys = []
        for key, (_, deadline_ms) in self._deadlines.items():
            if deadline_ms > now_ms:
                break
            keys.append(key)
        return keys

    def _has_room(self, address: str) -> bool:
        is_room_of_address = self._of_address.get(address, 0) < self._at_once_of_address
        return len(self._under_way) < self._at_once and is_room_of_address

    def _begin(self, key: K, address: str) -> None:
        self._under_way.add(key)
        self._of_address[address] = self._of_address.get(address, 0) + 1

    def _begin_waiting(self) -> list[K]:
        begun: list[K] = []
        while len(self._under_way) < self._at_once:  # checked first: without it each end looks at all that wait
            address = next((waits for waits in self._waiting if self._has_room(waits)), None)
            if address is None:
                break
            waiting = self._waiting[address]
            begun.append(waiting.popleft())
            self._begin(begun[-1], address)
            self._waiting.move_to_end(address)
            if not waiting:
                del self._waiting[address]
        return begun
