"""One worker number's ids: the sequence inside a millisecond, and the fence around all of it.

Ids rise strictly. A millisecond t is entered once, and only while t < H, the high-water mark the registry has
acknowledged (`raise_limit`); no other holder of the number ever starts below H, so no id is issued twice. The fence is
looked at when a millisecond is entered: inside it nothing can change for the worse, as H only rises.

More than one millisecond's ids are borrowed from the next one, up to `max_ahead_ms` past the clock. That bound keeps k
(how far ids can be from time order) below one second. Past it `SequenceExhausted` says when to ask again: nothing here
waits. A clock that stands still or goes back is met the same way.
"""

from typing import NamedTuple, NoReturn

from idgen.errors import Fenced, LayoutExhausted, LeadExhausted, SequenceExhausted
from idgen.layout import Layout
from idgen.sequence_start import SequenceStart

MAX_AHEAD_MS = 500  # DESIGN section 4: k stays below one second, with as much to spare


class Run(NamedTuple):
    """`count` consecutive ids from `first` on."""

    first: int
    count: int  # type: ignore[assignment]  # hides tuple.count, as the field's name does


class _Place(NamedTuple):
    """Where the next id comes from: the next one of millisecond `ms`, and the end of that millisecond's ids."""

    ms: int
    next: int
    end: int


class IdWorker:
    """Issues ids of one worker number from `start_ms` on, below `limit_ms`. Not thread-safe; cannot be copied.

    Times are Unix ms of the id clock. `start_ms` is at least the high-water mark found when the number was claimed.
    """

    __slots__ = (
        "layout", "worker_number", "max_ahead_ms", "_sequence_start", "_limit_ms", "_ms", "_next", "_end", "_last",
        "_fence", "_epoch_ms", "_time_shift", "_own_bits", "_sequences",
    )  # fmt: skip

    def __init__(
        self,
        layout: Layout,
        worker_number: int,
        *,
        start_ms: int,
        limit_ms: int,
        max_ahead_ms: int = MAX_AHEAD_MS,
        sequence_start: SequenceStart | None = None,
    ) -> None:
        layout.check_worker(worker_number)
        if max_ahead_ms < 0:
            raise ValueError(f"max_ahead_ms {max_ahead_ms} is negative")
        self.layout = layout
        self.worker_number = worker_number
        self.max_ahead_ms = max_ahead_ms
        self._sequence_start = sequence_start
        self._limit_ms = limit_ms
        self._ms = max(start_ms, layout.epoch_ms) - 1  # the millisecond entered last; its ids are spent
        self._next = self._end = 0
        self._last = -1
        self._fence: str | None = None
        self._epoch_ms, self._time_shift = layout.epoch_ms, layout.time_shift
        self._own_bits = worker_number << layout.worker_shift
        self._sequences = layout.max_sequence + 1

    def next_id(self, now_ms: int) -> int:
        """One id. SequenceExhausted, LeadExhausted, LayoutExhausted or Fenced, and nothing has changed."""
        id = self._next
        if now_ms > self._ms or id >= self._end:
            id = self._enter(self._following(now_ms), now_ms)
        self._next = id + 1
        return id

    def next_ids(self, n: int, now_ms: int, floor: int = -1) -> list[Run]:
        """`n` ids above `floor`, as runs that end at the last sequence of a millisecond. All of them or an error.

        ValueError when `n` is not in 1..max_batch. Else as `next_id`.
        """
        first = self._next
        if now_ms <= self._ms and floor < first and 0 < n <= self._end - first:  # still in the same millisecond
            self._next = first + n
            return [Run(first, n)]
        runs, place = self._plan(n, now_ms, floor)
        if place.ms > self._ms:  # a fence has emptied the millisecond, so it is met here too
            self._check(place.ms, now_ms)
        self._ms, self._next, self._end = place
        return runs

    def ready_at_ms(self, n: int, now_ms: int, floor: int = -1) -> int:
        """When the run-ahead bound lets next_ids(n) through: <= now_ms when it would succeed now.

        Raises what waiting for the clock does not cure: Fenced, LeadExhausted, LayoutExhausted.
        """
        _, place = self._plan(n, now_ms, floor)
        ready = place.ms - self.max_ahead_ms
        self._check(place.ms, max(now_ms, ready))
        return ready

    @property
    def max_batch(self) -> int:
        """The most ids one call can ask for: those of a whole run-ahead."""
        skipped = self._sequence_start.starts - 1 if self._sequence_start else 0
        return (self.max_ahead_ms + 1) * (self._sequences - skipped)

    @property
    def last_id(self) -> int:
        """The id issued last, -1 before the first one."""
        return self._next - 1 if self._end else self._last

    @property
    def last_ms(self) -> int:
        """The last millisecond this worker may have issued an id of; a successor starts above it."""
        return self._ms

    @property
    def limit_ms(self) -> int:
        """The acknowledged high-water mark: ids are of milliseconds below it."""
        return self._limit_ms

    @property
    def fenced(self) -> str | None:
        """Why no id is issued any more, or None."""
        return self._fence

    def raise_limit(self, limit_ms: int) -> None:
        """A higher mark was acknowledged. ValueError for a lower one: H never goes down under a worker."""
        if limit_ms < self._limit_ms:
            raise ValueError(f"the high-water mark only rises: {limit_ms} is below {self._limit_ms}")
        self._limit_ms = limit_ms

    def fence(self, reason: str) -> None:
        """Issue nothing from now on. `reason` names the remedy; the first reason stays."""
        if self._fence is None:
            self._last = self.last_id
            self._fence = reason
            self._next = self._end = 0  # next_id then takes the slow way, which refuses

    def _following(self, now_ms: int) -> _Place:
        """The start of the millisecond to enter next: the clock's, or the one after the last."""
        return self._start_of(max(now_ms, self._ms + 1))

    def _start_of(self, ms: int) -> _Place:
        first = ms - self._epoch_ms << self._time_shift | self._own_bits
        start = first if self._sequence_start is None else first + self._sequence_start.of(ms)
        return _Place(ms, start, first + self._sequences)

    def _above(self, place: _Place, floor: int) -> _Place:
        """`place`, or the first one after it whose next id is above `floor`."""
        if place.next > floor:
            return place
        floor_place = self._start_of(self.layout.epoch_ms + (floor >> self.layout.time_shift))
        following = max(place.next, floor_place.next, floor + 1)
        if following < floor_place.end:
            return floor_place._replace(next=following)
        return self._start_of(floor_place.ms + 1)

    def _plan(self, n: int, now_ms: int, floor: int) -> tuple[list[Run], _Place]:
        """The runs of `n` ids, and the place after them; changes nothing."""
        if not 0 < n <= self.max_batch:
            raise ValueError(f"{n} ids at once; between 1 and {self.max_batch} can be asked for")
        place = _Place(self._ms, self._next, self._end)
        if now_ms > place.ms or place.next >= place.end:
            place = self._following(now_ms)
        place = self._above(place, floor)
        runs = []
        while True:
            count = min(n, place.end - place.next)
            runs.append(Run(place.next, count))
            n -= count
            if not n:
                return runs, place._replace(next=place.next + count)
            place = self._start_of(place.ms + 1)

    def _enter(self, place: _Place, now_ms: int) -> int:
        """Enter a millisecond, if all bounds allow it; its first id."""
        self._check(place.ms, now_ms)
        self._ms, self._next, self._end = place
        return place.next

    def _check(self, ms: int, now_ms: int) -> None:
        """Whether ids of `ms` may be issued at `now_ms`. The order is from what nothing cures to what waiting does."""
        if self._fence is not None:
            self._refuse()
        if ms > self.layout.last_ms:
            raise LayoutExhausted(ms, self.layout.last_ms)
        if ms - now_ms > self.max_ahead_ms:
            raise SequenceExhausted(ms - self.max_ahead_ms, self.max_ahead_ms)
        if ms >= self._limit_ms:
            raise LeadExhausted(ms, self._limit_ms)

    def _refuse(self) -> NoReturn:
        raise Fenced(f"worker number {self.worker_number} issues no id: {self._fence}")

    def __reduce__(self) -> NoReturn:
        """Copies would share sequences: both would issue the same ids."""
        raise TypeError("an IdWorker cannot be pickled or copied: the copy would repeat its ids; claim another number")
