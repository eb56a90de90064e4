"""Hierarchical timing wheels (Varghese and Lauck, 1987; Kafka's purgatory since KAFKA-1989).

A wheel has `wheel_size` buckets. A bucket of the lowest wheel spans `tick_ms`; a bucket of the next wheel spans the
whole wheel below it:

    level 0   tick 1 ms    | 20 buckets |   the next 20 ms
    level 1   tick 20 ms   | 20 buckets |   the next 400 ms
    level 2   tick 400 ms  | 20 buckets |   the next 8 s    ... made when a deadline first needs it

A deadline past a wheel goes up to the first wheel that reaches it, and comes down again when its bucket is due. Insert
and cancel are O(1) in the number of timers, because a bucket is a dict: it forgets a timer without a search and keeps
the order of insertion. The heap holds buckets, not timers: at most `wheel_size` for each level. Time moves from one
occupied bucket to the next, never tick by tick.
"""

from heapq import heappop, heappush
from itertools import chain
from typing import Generic, TypeVar

T = TypeVar("T")

TICK_MS = 1  # Kafka's SystemTimer: fine enough for a fetch's max wait
WHEEL_SIZE = 20  # Kafka's SystemTimer: eight levels reach 296 days


class Timer(Generic[T]):
    """An item and its deadline. `cancel()` removes it from its wheel; a second or late call is harmless."""

    __slots__ = ("deadline_ms", "item", "_bucket")

    def __init__(self, deadline_ms: int, item: T) -> None:
        self.deadline_ms = deadline_ms
        self.item = item
        self._bucket: _Bucket[T] | None = None

    @property
    def pending(self) -> bool:
        """True until the timer is cancelled or handed out as due."""
        return self._bucket is not None

    def cancel(self) -> None:
        if self._bucket is not None:
            del self._bucket.timers[self]
            self._bucket = None


class _Bucket(Generic[T]):
    """The timers of one span of time. `start_ms` is its start while the bucket is in the heap, else None."""

    __slots__ = ("start_ms", "timers")

    def __init__(self) -> None:
        self.start_ms: int | None = None
        self.timers: dict[Timer[T], None] = {}

    def put(self, timer: Timer[T]) -> None:
        self.timers[timer] = None
        timer._bucket = self

    def empty(self) -> list[Timer[T]]:
        timers = list(self.timers)
        self.timers.clear()
        self.start_ms = None
        return timers


class TimingWheel(Generic[T]):
    """Items by deadline, in ms of any clock that the caller uses.

    A timer is never early, and late by less than a tick, because its deadline counts as the next full tick.
    Raise ValueError if `tick_ms` or `wheel_size` is too small.
    """

    def __init__(self, tick_ms: int = TICK_MS, wheel_size: int = WHEEL_SIZE, start_ms: int = 0) -> None:
        if tick_ms < 1 or wheel_size < 2:
            raise ValueError(f"a wheel needs a tick of 1 ms or more and 2 buckets or more, not {tick_ms}, {wheel_size}")
        self._tick_ms = tick_ms
        self._wheel_size = wheel_size
        self._now_ms = start_ms
        self._levels: list[list[_Bucket[T]]] = []
        self._due: _Bucket[T] = _Bucket()
        self._occupied: list[tuple[int, int, _Bucket[T]]] = []  # (start, tick, bucket): the first two are unique

    def __len__(self) -> int:
        """Return the number of timers that are neither cancelled nor handed out. Look at each bucket once."""
        return sum(len(bucket.timers) for bucket in chain([self._due], *self._levels))

    def add(self, deadline_ms: int, item: T) -> Timer[T]:
        """Remember `item` until `deadline_ms`. A deadline in the past is due at the next `advance`."""
        timer = Timer(deadline_ms, item)
        self._insert(timer)
        return timer

    def advance(self, now_ms: int) -> list[T]:
        """Move to `now_ms`. Return the items due by then, in the order of their deadlines. Time never steps back."""
        # Empty all buckets before the clock moves, because afterwards their places belong to a later turn of the wheel.
        reached: list[Timer[T]] = []
        while self._occupied and self._occupied[0][0] <= now_ms:
            reached += heappop(self._occupied)[2].empty()
        self._now_ms = max(self._now_ms, now_ms)
        for timer in reached:
            self._insert(timer)
        due = sorted(self._due.empty(), key=_deadline)
        for timer in due:
            timer._bucket = None
        return [timer.item for timer in due]

    def next_deadline_ms(self) -> int | None:
        """Return when to call `advance` next, or None without a timer.

        It is never later than the first deadline is due. It is earlier only when timers of a higher wheel have to come
        down.
        """
        if self._due.timers:
            return self._now_ms
        while self._occupied:
            start_ms, _, bucket = self._occupied[0]
            if bucket.timers:
                return start_ms
            heappop(self._occupied)
            bucket.start_ms = None  # all its timers were cancelled
        return None

    def _insert(self, timer: Timer[T]) -> None:
        due_ms = -(-timer.deadline_ms // self._tick_ms) * self._tick_ms
        if due_ms <= self._now_ms:
            self._due.put(timer)
            return
        tick_ms, level = self._tick_ms, 0
        while due_ms // tick_ms - self._now_ms // tick_ms >= self._wheel_size:
            tick_ms, level = tick_ms * self._wheel_size, level + 1
        bucket = self._level(level)[due_ms // tick_ms % self._wheel_size]
        bucket.put(timer)
        if bucket.start_ms is None:
            bucket.start_ms = due_ms // tick_ms * tick_ms
            heappush(self._occupied, (bucket.start_ms, tick_ms, bucket))

    def _level(self, level: int) -> list[_Bucket[T]]:
        while level >= len(self._levels):
            self._levels.append([_Bucket() for _ in range(self._wheel_size)])
        return self._levels[level]


def _deadline(timer: Timer[T]) -> int:
    return timer.deadline_ms
