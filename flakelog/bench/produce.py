"""SHELL (a clock, a Producer): send messages as fast as wanted, and measure when they are acknowledged."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle

from broker.client.errors import ProduceError, QueueFull
from broker.client.producer import Producer
from broker.client.producer_outcomes import Delivered
from flakelog.bench.load import Limit, wait_seconds
from flakelog.bench.meter import Figures, Meter

POLL_MS = 100  # the longest time without a look at the progress
LAST_SECONDS = 1.0  # after Ctrl-C, for messages that are under way

_now = time.perf_counter


class ProduceRun:
    """Sends `values` and `keys` by turns to a topic. `tell` gets the figures of the last seconds, every few seconds.

    The producer has an `enqueue_timeout_ms` of 0, so that a full queue does not stop the progress. A latency is the
    time from `send` to the acknowledgement, the wait for room in the queue included.
    """

    def __init__(self, producer: Producer, topic: str, limit: Limit, tell: Callable[[Figures], None]) -> None:
        self.failure: ProduceError | None = None
        """Why the first message failed; no more are sent then."""
        self._producer, self._topic, self._limit, self._tell = producer, topic, limit, tell
        self._sent = self._settled = 0
        self._meter = Meter(_now())

    @property
    def waiting(self) -> int:
        """The number of messages whose outcome is not known."""
        return self._sent - self._settled

    def figures(self) -> Figures:
        """Return the figures from the first message to the last acknowledgement."""
        return self._meter.total()

    def run(self, values: Sequence[bytes], keys: Sequence[bytes | None], throughput: float | None) -> None:
        """Send until the limit or a failure, and wait for the outcome of each message."""
        begun = _now()
        self._meter = Meter(begun)
        next_value, next_key = cycle(values).__next__, cycle(keys).__next__
        while self.failure is None and not self._limit.is_reached(self._sent, _now() - begun):
            wait = wait_seconds(self._sent, _now() - begun, throughput)
            if wait > 0:
                self._serve(min(int(wait * 1000), POLL_MS))
            else:
                self._send(next_value(), next_key())
        while self.waiting:
            self._serve(POLL_MS)

    def end_now(self) -> None:
        """Give messages under way a last moment, and drop the rest."""
        ends = _now() + LAST_SECONDS
        while self.waiting and _now() < ends:
            self._producer.poll(timeout_ms=POLL_MS)
        self._producer.purge()

    def _send(self, value: bytes, key: bytes | None) -> None:
        begun = _now()
        settled = partial(self._settle, begun, len(value) + len(key or b""))
        while self.failure is None:
            try:
                self._producer.send(self._topic, value, key, settled)
            except QueueFull:
                self._serve(POLL_MS)
                continue
            self._sent += 1
            break
        self._tell_if_due(begun)

    def _serve(self, timeout_ms: int) -> None:
        self._producer.poll(timeout_ms=timeout_ms)
        self._tell_if_due(_now())

    def _tell_if_due(self, now: float) -> None:
        if self._meter.is_due(now):
            self._tell(self._meter.take_window(now))

    def _settle(self, begun: float, size: int, error: ProduceError | None, delivered: Delivered | None) -> None:
        self._settled += 1
        if error is None:
            now = _now()
            self._meter.count(1, size, now)
            self._meter.took(now - begun)
        elif self.failure is None:
            self.failure = error
