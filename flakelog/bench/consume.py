"""SHELL (a clock, a Consumer): read messages as fast as they come, and measure it."""

import time
from collections.abc import Callable, Mapping

from broker.client.consumer import Consumer
from broker.client.group_protocol import Partition
from flakelog.bench.load import Limit
from flakelog.bench.meter import Figures, Meter

POLL_MS = 250
RECORDS_MAX = 10_000  # of a poll, so that its own cost does not show
IDLE_SECONDS = 2.0  # at the end: markers of transactions may be the last of a partition, behind its last message

_now = time.perf_counter


class ConsumeRun:
    """Reads until the limit, or with `ends` until these offsets. `tell` gets the figures of the last seconds.

    The figures begin with the first request and end with the last message, so they have the time until a group has
    given partitions.
    """

    def __init__(
        self,
        consumer: Consumer,
        limit: Limit,
        ends: Mapping[Partition, int | None] | None,
        tell: Callable[[Figures], None],
    ) -> None:
        self.first_s: float | None = None
        """Seconds until the first message; None while there is none."""
        self._consumer, self._limit, self._ends, self._tell = consumer, limit, ends, tell
        self._meter = Meter(_now())

    def figures(self) -> Figures:
        """Return the figures until the last message."""
        return self._meter.total()

    def run(self, patience_s: float) -> bool:
        """Read. Return False if nothing came for `patience_s`, though the end is not reached."""
        begun = last = _now()
        self._meter = Meter(begun)
        assigned: float | None = None
        while True:
            remaining = None if self._limit.things is None else self._limit.things - self._meter.things
            records = self._consumer.poll(POLL_MS, RECORDS_MAX if remaining is None else min(remaining, RECORDS_MAX))
            now = _now()
            if assigned is None and self._consumer.assignment:
                assigned = last = now
            if records:
                last = now
                self.first_s = now - begun if self.first_s is None else self.first_s
                size = sum(len(record.value or b"") + len(record.key or b"") for record in records)
                self._meter.count(len(records), size, now)
            if self._meter.is_due(now):
                self._tell(self._meter.take_window(now))
            if self._limit.is_reached(self._meter.things, now - begun):
                return True
            if not records and assigned is not None and self._is_at_end(now - last):
                return True
            if now - last > patience_s:
                return False

    def _is_at_end(self, idle_s: float) -> bool:
        """Return True if the consumer has read its partitions to the ends, or nothing but markers can be left."""
        if self._ends is None:
            return False
        positions = {partition: self._consumer.position(*partition) for partition in self._consumer.assignment}
        if any(offset is None for offset in positions.values()):
            return False
        are_read = all((position or 0) >= (self._ends.get(partition) or 0) for partition, position in positions.items())
        return are_read or (idle_s > IDLE_SECONDS and self.first_s is not None)
