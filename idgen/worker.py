"""The ids of one worker number: the sequence inside a millisecond, and the fence around it.

Ids rise strictly. The worker enters a millisecond t once, and only while t < H, the high-water mark that the registry
has acknowledged (`raise_limit`). No other holder of the number ever starts below H, so no id is issued twice. The fence
is checked when the worker enters a millisecond; the result holds for the whole millisecond, because H only rises.

If one millisecond's ids are not enough, the worker borrows from the next one, up to `max_ahead_ms` past the clock. This
bound keeps k (how far ids can be from time order) below one second. Past it, `SequenceExhausted` says when to retry; no
method here waits. A clock that stands still or goes back is handled in the same way.
"""

from typing import NamedTuple, NoReturn

from idgen.errors import Fenced, LayoutExhausted, LeadExhausted, SequenceExhausted
from idgen.layout import Layout
from idgen.sequence_start import SequenceStart

MAX_AHEAD_MS = 500  # keeps k below one second, with as much to spare


_run_of = tuple.__new__  # as IdRun(...), at half its price


class IdRun(NamedTuple):
    """`count` consecutive ids from `first` on."""

    first: int
    count: int  # type: ignore[assignment]  # hides tuple.count, as the field's name does


class _Position(NamedTuple):
    """The position of the next id: `next`, an id of millisecond `ms`, and `end`, the end of that millisecond's ids."""

    ms: int
    next: int
    end: int


class IdWorker:
    """An issuer of one worker number's ids, from `start_ms` on and below `limit_ms`. Not thread-safe or copyable.

    Times are Unix ms of the id clock. `start_ms` is at least the high-water mark found when the number was claimed.
    """

    __slots__ = (
        "layout", "worker_number", "max_ahead_ms", "_sequence_start", "_limit_ms", "_ms", "_next", "_end", "_last",
        "_fence", "_epoch_ms", "_time_shift", "_own_bits", "_sequences", "_whole_ms",
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
        self._ms = max(start_ms, layout.epoch_ms) - 1  # the last millisecond entered; its ids are used up
        self._next = self._end = 0
        self._last = -1
        self._fence: str | None = None
        self._epoch_ms, self._time_shift = layout.epoch_ms, layout.time_shift
        self._own_bits = worker_number << layout.worker_shift
        self._sequences = layout.max_sequence + 1
        self._whole_ms = self._sequences - (sequence_start.starts - 1 if sequence_start else 0)
        """The ids that any millisecond has, wherever its sequence starts."""

    def next_id(self, now_ms: int) -> int:
        """Return one id. SequenceExhausted, LeadExhausted, LayoutExhausted or Fenced leave the state unchanged."""
        id = self._next
        if now_ms > self._ms or id >= self._end:
            id = self._enter(self._following(now_ms), now_ms)
        self._next = id + 1
        return id

    def take_run(self, most: int, now_ms: int) -> IdRun:
        """Return up to `most` ids of one millisecond, at least one. Raise the errors of `next_id`."""
        first = self.next_id(now_ms)
        count = min(most, self._end - first)
        self._next = first + count
        return IdRun(first, count)

    def give_back(self, first: int) -> None:
        """Take back the ids from `first` on of the run taken last, because no caller has them; they are issued again.

        Call it before any other use of the worker. A fenced worker drops them. ValueError for other ids.
        """
        if self._fence is None:
            if not self._end - self._sequences <= first <= self._next:
                raise ValueError(f"id {first} is not of the run taken last, which ends before {self._next}")
            self._next = first

    def next_ids(self, n: int, now_ms: int, floor: int = -1) -> list[IdRun]:
        """Return `n` ids above `floor`, as one run for each millisecond. Issue all of them or, after an error, none.

        ValueError if `n` is not in 1..max_batch; the other errors are those of `next_id`.
        """
        first = self._next
        if now_ms <= self._ms and floor < first and 0 < n <= self._end - first:  # still in the same millisecond
            self._next = first + n
            return [_run_of(IdRun, (first, n))]
        runs, position = self._plan(n, now_ms, floor)
        if position.ms > self._ms:  # also after a fence, which empties the current millisecond
            self._check(position.ms, now_ms)
        self._ms, self._next, self._end = position
        return runs

    def ready_at_ms(self, n: int, now_ms: int, floor: int = -1) -> int:
        """Return when the run-ahead bound allows next_ids(n); a time <= now_ms means now.

        Raises the errors that waiting for the clock does not cure: Fenced, LeadExhausted, LayoutExhausted.
        """
        if now_ms <= self._ms and floor < self._next and 0 < n <= self._end - self._next:
            return now_ms  # in the millisecond entered last
        if self._ms < now_ms < self._limit_ms and floor < 0 < n <= self._whole_ms and self._fence is None:
            if now_ms <= self.layout.last_ms:
                return now_ms  # in the millisecond to be entered next
        _, position = self._plan(n, now_ms, floor)
        ready = position.ms - self.max_ahead_ms
        self._check(position.ms, max(now_ms, ready))
        return ready

    @property
    def max_batch(self) -> int:
        """The most ids that one call can ask for: those of a whole run-ahead."""
        return (self.max_ahead_ms + 1) * self._whole_ms

    @property
    def last_id(self) -> int:
        """The id issued last; -1 before the first one."""
        return self._next - 1 if self._end else self._last

    @property
    def last_ms(self) -> int:
        """The last millisecond of which this worker may have issued an id; a successor starts above it."""
        return self._ms

    @property
    def limit_ms(self) -> int:
        """The acknowledged high-water mark: ids are of milliseconds below it."""
        return self._limit_ms

    @property
    def fenced(self) -> str | None:
        """The reason why no more ids are issued, or None."""
        return self._fence

    def raise_limit(self, limit_ms: int) -> None:
        """Raise the limit to a newly acknowledged mark. ValueError for a lower mark: H never falls under a worker."""
        if limit_ms < self._limit_ms:
            raise ValueError(f"the high-water mark only rises: {limit_ms} is below {self._limit_ms}")
        self._limit_ms = limit_ms

    def fence(self, reason: str) -> None:
        """Stop issuing ids for good. `reason` names the remedy; the first reason stays."""
        if self._fence is None:
            self._last = self.last_id
            self._fence = reason
            self._next = self._end = 0  # so that next_id leaves its fast path, and refuses

    def _following(self, now_ms: int) -> _Position:
        """Return the start of the millisecond to enter next: the clock's, or the one after the last."""
        return self._start_of(max(now_ms, self._ms + 1))

    def _start_of(self, ms: int) -> _Position:
        first = ms - self._epoch_ms << self._time_shift | self._own_bits
        start = first if self._sequence_start is None else first + self._sequence_start.of(ms)
        return _Position(ms, start, first + self._sequences)

    def _above(self, position: _Position, floor: int) -> _Position:
        """Return `position`, or the first position after it whose next id is above `floor`."""
        if position.next > floor:
            return position
        floor_position = self._start_of(self.layout.epoch_ms + (floor >> self.layout.time_shift))
        following = max(position.next, floor_position.next, floor + 1)
        if following < floor_position.end:
            return floor_position._replace(next=following)
        return self._start_of(floor_position.ms + 1)

    def _plan(self, n: int, now_ms: int, floor: int) -> tuple[list[IdRun], _Position]:
        """Return the runs of `n` ids and the position after them, without changing the state."""
        if not 0 < n <= self.max_batch:
            raise ValueError(f"{n} ids at once; between 1 and {self.max_batch} can be asked for")
        position = _Position(self._ms, self._next, self._end)
        if now_ms > position.ms or position.next >= position.end:
            position = self._following(now_ms)
        position = self._above(position, floor)
        runs = []
        while True:
            count = min(n, position.end - position.next)
            runs.append(IdRun(position.next, count))
            n -= count
            if not n:
                return runs, position._replace(next=position.next + count)
            position = self._start_of(position.ms + 1)

    def _enter(self, position: _Position, now_ms: int) -> int:
        """Enter a millisecond if all bounds allow it, and return its first id."""
        self._check(position.ms, now_ms)
        self._ms, self._next, self._end = position
        return position.next

    def _check(self, ms: int, now_ms: int) -> None:
        """Raise unless ids of `ms` may be issued at `now_ms`. Errors that nothing cures come before those that pass."""
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
        """Refuse to copy or pickle, because a copy would issue the same ids."""
        raise TypeError("an IdWorker cannot be pickled or copied: the copy would repeat its ids; claim another number")
