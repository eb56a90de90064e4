"""Base classes for bolts."""

from collections.abc import Awaitable
from typing import ClassVar

from spout.api import Bolt, Tuple


class BatchBolt(Bolt):
    """A bolt that processes tuples in batches and acks them when `process_batch` returns.

    `process_batch` may be `async def`, or run in `threads`; then several batches are processed at once, up to
    `max_concurrent` or `threads`. Emitted tuples are anchored to the whole batch, which takes time for each tuple of
    it: pass `anchors=[tup]` for a tuple that came from one.

    A batch may be one transaction, for example. A batch is processed when it holds `batch_size` tuples, and on each
    tick, every `tick_interval_ms`. If `process_batch` raises, the whole batch fails and is emitted again, so its
    effects must be undone or harmless to repeat.
    """

    auto_ack: ClassVar[bool] = False
    work_method: ClassVar[str] = "process_batch"
    batch_size: int = 500
    tick_interval_ms: int | None = 100

    _batch: list[Tuple] | None = None  # a class attribute, so that a subclass need not call __init__

    def process_batch(self, batch: list[Tuple]) -> Awaitable[None] | None:
        """Process all tuples of the batch, or raise; may be `async def`."""
        raise NotImplementedError(f"{type(self).__name__}.process_batch")

    def execute(self, tup: Tuple) -> None:
        """Add the tuple to the batch; process the batch if it is full."""
        if self._batch is None:
            self._batch = []
        self._batch.append(tup)
        if len(self._batch) >= self.batch_size:
            self.flush()

    def tick(self) -> None:
        """Process the tuples received so far, unless as many batches as may are being processed."""
        if self.collector.is_free:
            self.flush()

    def flush(self) -> None:
        """Process the batch now."""
        batch, self._batch = self._batch, None
        if batch:
            self.collector.process(self.process_batch, batch, batch, settle=True)
