"""What the partitions of one task share: tickets, memory, and the lists of partitions that have work.

A manager lists its partition when work for it appears. The coordinator therefore visits only partitions with work, and
a step costs nothing for partitions that are idle.
"""

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, Generic, TypeVar

from partition_manager.ports import Fetched

T = TypeVar("T")


class Memory(Generic[T]):
    """The bytes of unsettled messages that all partitions of a task may keep together.

    Half of the limit is divided evenly: each partition may always keep its part of it. The other half goes to the
    partitions that ask first. So one partition can use most of the limit, and cannot starve the rest.

    A message may be larger than a part. So the limit as a whole counts too, and is exceeded by one message at most.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.members = 0
        self.waiting: list[Listing[T]] = []  # of partitions that found no room since bytes were last released

    def room_bytes(self, own_bytes: int) -> int:
        """Return the bytes that a partition which keeps `own_bytes` may add; 0 or less if there is no room."""
        part = self.limit_bytes // (2 * self.members)
        free = self.limit_bytes - self.used_bytes
        return min(free, max(part - own_bytes, free - part * (self.members - 1)))

    def is_low(self, room_bytes: int, fetch_bytes: int) -> bool:
        """Return True if a fetch is not worth it: less room than `fetch_bytes`, and than half of a partition's part."""
        return room_bytes < max(1, min(fetch_bytes, self.limit_bytes // (4 * self.members)))


class HeldAnswer:
    """The records that a partition keeps until it may use them; their unpacked bytes count towards the memory."""

    def __init__(self, memory: Memory[Any]) -> None:
        self._memory = memory
        self._answer: Fetched | None = None

    def keep(self, answer: Fetched) -> None:
        """Keep the records of one answer."""
        self._answer = answer
        self._memory.used_bytes += answer.unpacked_bytes

    def take(self) -> Fetched | None:
        """Return the kept records and release their memory; None without such."""
        answer, self._answer = self._answer, None
        if answer is not None:
            self._memory.used_bytes -= answer.unpacked_bytes
        return answer


class TaskShare(Generic[T]):
    """Shared by the managers of a task; `T` is what the coordinator knows a partition by."""

    def __init__(self, memory_max_bytes: int, tickets: Iterator[int] | None = None) -> None:
        self.tickets = tickets if tickets is not None else count(1)
        self.memory: Memory[T] = Memory(memory_max_bytes)
        self.ready: deque[T] = deque()  # may have a message to emit; each at most once, in turn
        self.waiting = 0  # messages of the ready partitions that wait to be emitted, as last counted
        self.fetches: list[T] = []  # may want a fetch; each at most once
        self.changed: list[T] = []  # may have progress to store
        self.prefers_new = False  # emit new messages before retries, in an outage
        self.due: list[tuple[int, int, Listing[T]]] = []  # a heap of the times when `wake` has partitions to list
        self._number = count()

    def take_fetches(self) -> list[T]:
        """Return and clear the partitions that may want a fetch."""
        fetches, self.fetches = self.fetches, []
        return fetches

    def take_changed(self) -> list[T]:
        """Return and clear the partitions that may have progress to store."""
        changed, self.changed = self.changed, []
        return changed

    def wake_at(self, due_ms: int, listing: "Listing[T]") -> None:
        """Wake the partition at `due_ms`."""
        heappush(self.due, (due_ms, next(self._number), listing))

    def wake(self, now_ms: int) -> None:
        """List the partitions whose time has come as ready."""
        due = self.due
        while due and due[0][0] <= now_ms:
            due_ms, _, listing = heappop(due)
            listing.wake(due_ms)

    def next_due_ms(self) -> int | None:
        """Return the time the next partition is woken, or None. The partition may have nothing to do at that time."""
        return self.due[0][0] if self.due else None


class Listing(Generic[T]):
    """The entries of one partition in its task's lists."""

    def __init__(self, share: TaskShare[T], owner: T) -> None:
        self.is_ready = False
        self.is_fetching = False
        self.awaits_memory = False
        self.is_changed = False
        self._counted = 0
        self._share = share
        self._owner = owner
        self._wake_at_ms: float = inf

    @property
    def is_due(self) -> bool:
        """Return True if the partition will be listed as ready at some time."""
        return self._wake_at_ms < inf

    def ready(self, waiting: int) -> None:
        """List the partition as ready to emit, with `waiting` messages."""
        if not self.is_ready:
            self.is_ready = True
            self._share.ready.append(self._owner)
        self.count(waiting)

    def count(self, waiting: int) -> None:
        """Count the partition's messages that wait, if it is ready: others cannot be emitted now."""
        counted = waiting if self.is_ready else 0
        self._share.waiting += counted - self._counted
        self._counted = counted

    def unlist(self, due_ms: int | None) -> None:
        """Leave the list of ready partitions, where the coordinator removes the entry, until `due_ms`."""
        self.is_ready = False
        self.count(0)
        if due_ms is not None:
            self.wake_by(due_ms)

    def wake_by(self, due_ms: int) -> None:
        """List the partition as ready at `due_ms`, if not earlier."""
        if due_ms < self._wake_at_ms:
            self._wake_at_ms = due_ms
            self._share.wake_at(due_ms, self)

    def wake(self, due_ms: int) -> None:
        """List the partition as ready, unless `due_ms` is not its earliest time."""
        if due_ms == self._wake_at_ms:
            self._wake_at_ms = inf
            self.ready(self._counted)

    def fetch(self) -> None:
        """List the partition as wanting a fetch."""
        if not self.is_fetching:
            self.is_fetching = True
            self._share.fetches.append(self._owner)

    def change(self) -> None:
        """List the partition as having progress to store."""
        if not self.is_changed:
            self.is_changed = True
            self._share.changed.append(self._owner)

    def await_memory(self) -> None:
        """List the partition as wanting a fetch once memory of the task is released."""
        if not self.awaits_memory:
            self.awaits_memory = True
            self._share.memory.waiting.append(self)

    def memory_released(self) -> None:
        """List all partitions of the task that wait for memory as wanting a fetch, because some is released."""
        memory = self._share.memory
        waiting, memory.waiting = memory.waiting, []
        for listing in waiting:
            listing.awaits_memory = False
            listing.fetch()
