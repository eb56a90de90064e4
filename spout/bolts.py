"""Bolts to build upon."""

from typing import ClassVar

from spout.api import Bolt, Tuple


class BatchBolt(Bolt):
    """Works on many tuples at once, as a transaction does: they are acked when `process_batch` returns.

    A batch is worked on when `batch_size` tuples have come, or `tick_interval_ms` after the last time. When
    `process_batch` raises, all of the batch fails and comes again, so what it did must be undone or harmless to repeat.
    """

    auto_ack: ClassVar[bool] = False
    batch_size: int = 500
    tick_interval_ms: int | None = 100

    _batch: list[Tuple] | None = None  # on the class, so that a subclass need not call our __init__

    def process_batch(self, batch: list[Tuple]) -> None:
        """Work on all of them, or raise; what is emitted is anchored to all of them if `anchors=batch` is given."""
        raise NotImplementedError(f"{type(self).__name__}.process_batch")

    def execute(self, tup: Tuple) -> None:
        """Keep the tuple for the batch."""
        if self._batch is None:
            self._batch = []
        self._batch.append(tup)
        if len(self._batch) >= self.batch_size:
            self.flush()

    def tick(self) -> None:
        """Work on what there is."""
        self.flush()

    def flush(self) -> None:
        """Work on the batch now."""
        batch, self._batch = self._batch, None
        if not batch:
            return
        try:
            self.process_batch(batch)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            self.collector.report_error(said)
            for tup in batch:
                self.fail(tup, said)
        else:
            for tup in batch:
                self.ack(tup)
