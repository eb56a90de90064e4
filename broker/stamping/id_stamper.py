"""The ids of this process: which worker stamps them now, and what a request does that has to wait for them.

The last id of a log is the floor for its next one. If the clock is set back between two runs, the floor is ahead of the
clock, and the log has no ids until the clock has reached it. `ahead` is the way out: a second worker number, whose ids
may lie ahead of the clock. Only logs whose floor is ahead of the clock get its ids.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from broker.now import Now
from idgen.errors import IdError, LeadExhausted, NoWorkerNumber, SequenceExhausted
from idgen.worker import IdRun, IdWorker

LEAD_RETRY_MS = 50  # how soon a request is tried again while the high-water mark is being raised


class Backpressure(Exception):
    """The request was not executed; try it again at `retry_wall_ms`. Until then its connection is not read from."""

    def __init__(self, retry_wall_ms: int) -> None:
        super().__init__(f"again at {retry_wall_ms}")
        self.retry_wall_ms = retry_wall_ms


class AheadIds(NamedTuple):
    """The second worker number, for logs whose last id is ahead of the clock (`flakelog.ids.log.max.ahead.ms`).

    `worker` returns its worker, or raises NoWorkerNumber. `need` asks for a high-water mark above a time (Unix ms).
    """

    worker: Callable[[], IdWorker]
    need: Callable[[int], None]


def _no_worker() -> IdWorker:
    raise NoWorkerNumber("no ids: no worker number is claimed yet")


class IdStamper:
    """The source of this process's ids. `worker` returns the worker that is held now; each claim brings another.

    `max_wait_ms` limits how long requests wait while the high-water mark cannot be raised.
    """

    def __init__(self, max_wait_ms: int = 1_000) -> None:
        self.worker: Callable[[], IdWorker] = _no_worker
        self.max_wait_ms = max_wait_ms
        self.ahead: AheadIds | None = None
        """The worker number for logs whose last id is ahead of the clock; None without one."""
        self._without_lead_ms: int | None = None
        """Since when `ensure` has found no lead, on the monotonic clock; None if the last call found one."""

    def source(self) -> "IdWorker | IdStamper":
        """Return the worker that is held now; without one, return this stamper, whose methods raise the reason."""
        try:
            return self.worker()
        except IdError:
            return self

    @property
    def max_batch(self) -> int:
        return self.worker().max_batch

    def next_ids(self, n: int, now_ms: int, floor: int = -1) -> list[IdRun]:
        """Return ids as IdWorker.next_ids does. Take those of `ahead` if the floor is too far ahead of the clock."""
        worker = self.worker()
        try:
            return worker.next_ids(n, now_ms, floor)
        except SequenceExhausted:
            if self.ahead is None or self.ahead_ms(floor, now_ms) <= worker.max_ahead_ms:
                raise
        try:
            return self.ahead.worker().next_ids(n, now_ms, floor)
        except NoWorkerNumber:
            raise SequenceExhausted(now_ms + LEAD_RETRY_MS, worker.max_ahead_ms) from None  # it is being claimed
        except LeadExhausted:
            self.ahead.need(now_ms + self.ahead_ms(floor, now_ms))
            raise

    def ahead_ms(self, id: int, now_ms: int) -> int:
        """Return how far the time of an id is ahead of `now_ms`; negative if it is in the past. Raise NoWorkerNumber.

        Both times are Unix ms of the id clock.
        """
        layout = self.worker().layout
        return layout.epoch_ms + (id >> layout.time_shift) - now_ms

    def wait_ms(self, floor: int, now_ms: int) -> int:
        """Return how long a log with this last id has no ids because of the clock alone; 0 if it has some now."""
        try:
            worker = self.worker()
        except IdError:
            return 0  # the clock is not the reason
        max_ahead_ms = worker.max_ahead_ms
        if self.ahead is not None:
            with suppress(IdError):
                max_ahead_ms = self.ahead.worker().max_ahead_ms
        return max(self.ahead_ms(floor, now_ms) - max_ahead_ms, 0)

    def ensure(self, n: int, now: Now) -> None:
        """Raise Backpressure unless `n` ids, or one call's maximum if that is less, are available now."""
        retry_wall_ms = self.retry_wall_ms(n, now)
        if retry_wall_ms is not None:
            raise Backpressure(retry_wall_ms)

    def retry_wall_ms(self, n: int, now: Now) -> int | None:
        """Return when `n` ids, or one call's maximum if that is less, are available (Unix ms); None if they are now.

        Ignore an IdError other than LeadExhausted, because the append raises it again. After `max_wait_ms` without a
        lead, ignore LeadExhausted too, so that the request is refused.
        """
        try:
            worker = self.worker()
            ready = worker.ready_at_ms(min(n, worker.max_batch), now.wall_ms)
        except LeadExhausted:
            if self._without_lead_ms is None:
                self._without_lead_ms = now.ms
            if now.ms - self._without_lead_ms < self.max_wait_ms:
                return now.wall_ms + LEAD_RETRY_MS
            return None
        except IdError:
            return None
        self._without_lead_ms = None
        return ready if ready > now.wall_ms else None
