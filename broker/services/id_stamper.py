"""The ids of this process: which worker stamps them now, and what a request does that has to wait for them."""

from collections.abc import Callable

from broker.now import Now
from idgen.errors import IdError, LeadExhausted, NoWorkerNumber
from idgen.worker import IdWorker, Run

LEAD_RETRY_MS = 50  # how soon a request is tried again while the high-water mark is being raised


class Backpressure(Exception):
    """The request was not executed; try it again at `retry_wall_ms`. Until then its connection is not read from."""

    def __init__(self, retry_wall_ms: int) -> None:
        super().__init__(f"again at {retry_wall_ms}")
        self.retry_wall_ms = retry_wall_ms


def _no_worker() -> IdWorker:
    raise NoWorkerNumber("no ids: no worker number is claimed yet")


class IdStamper:
    """The source of this process's ids. `worker` returns the worker that is held now; each claim brings another."""

    def __init__(self) -> None:
        self.worker: Callable[[], IdWorker] = _no_worker

    def source(self) -> "IdWorker | IdStamper":
        """Return the worker that is held now; without one, return this stamper, whose methods raise the reason."""
        try:
            return self.worker()
        except IdError:
            return self

    @property
    def max_batch(self) -> int:
        return self.worker().max_batch

    def next_ids(self, n: int, now_ms: int, floor: int = -1) -> list[Run]:
        return self.worker().next_ids(n, now_ms, floor)

    def ensure(self, n: int, now: Now) -> None:
        """Raise Backpressure unless `n` ids, or one call's maximum if that is less, are available now.

        Ignore any other IdError, because the append raises it again.
        """
        try:
            worker = self.worker()
            ready = worker.ready_at_ms(min(n, worker.max_batch), now.wall_ms)
        except LeadExhausted:
            raise Backpressure(now.wall_ms + LEAD_RETRY_MS) from None
        except IdError:
            return
        if ready > now.wall_ms:
            raise Backpressure(ready)
