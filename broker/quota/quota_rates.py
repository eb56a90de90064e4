"""Recent usage, and the time to pause until its rate is within the quota.

Rates of bytes and connections and shares of time are counted in windows (Kafka's SampledStat and Rate): `number` of
them, each of `size_ms`. A rate of changes is counted by a token bucket instead (KIP-599), so that one large request
does not weigh on it until its window has passed.
"""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from broker.settings.config import INT_MAX


class Windows(NamedTuple):
    """`quota.window.num` and `quota.window.size.seconds`. The window being filled is one of `number`."""

    number: int
    size_ms: int

    @property
    def span_ms(self) -> int:
        return self.number * self.size_ms


@dataclass(slots=True)
class _Sample:
    began_ms: int
    last_ms: int
    value: float = 0.0


class Rate:
    """Usage in the last windows. Times are of one monotonic clock, in ms."""

    __slots__ = ("_windows", "_samples")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: deque[_Sample] = deque(maxlen=windows.number + 1)  # a sample may reach into the oldest window

    def add(self, value: float, now_ms: int) -> None:
        """Count usage. A negative `value` takes back an amount added at the same moment."""
        samples = self._samples
        if not samples or now_ms - samples[-1].began_ms >= self._windows.size_ms:
            samples.append(_Sample(now_ms, now_ms))
        samples[-1].value += value
        samples[-1].last_ms = now_ms

    def used(self, now_ms: int) -> float:
        """Return the usage in all windows."""
        self._expire(now_ms)
        return sum(sample.value for sample in self._samples)

    def over_ms(self, quota: float, now_ms: int) -> int:
        """Return the pause in ms after which the rate equals the quota (a number per second); 0 if it is not above it.

        If O was used in W seconds, and the quota allows T in W seconds, the pause is X with O / (W + X) = T / W.
        """
        used = self.used(now_ms)
        elapsed_ms = self._elapsed_ms(now_ms)
        if used * 1_000 / elapsed_ms <= quota:
            return 0
        return round(min(used * 1_000 / quota - elapsed_ms, INT_MAX))  # it may be infinite

    def _elapsed_ms(self, now_ms: int) -> int:
        """Return the time that the samples cover.

        It is at least all windows but one, because a client that has just begun would otherwise seem fast.
        """
        elapsed_ms = now_ms - self._samples[0].began_ms if self._samples else 0
        missing = self._windows.number - 1 - elapsed_ms // self._windows.size_ms
        return max(elapsed_ms + max(missing, 0) * self._windows.size_ms, 1)

    def _expire(self, now_ms: int) -> None:
        while self._samples and now_ms - self._samples[0].last_ms >= self._windows.span_ms:
            self._samples.popleft()


class TokenBucket:
    """Tokens that come at the rate of the quota, up to the number for all windows; a negative number is a debt.

    Each call takes the quota, because it may have changed.
    """

    __slots__ = ("_span_seconds", "_tokens", "_updated_ms")

    def __init__(self, windows: Windows) -> None:
        self._span_seconds = windows.span_ms / 1_000
        self._tokens = float("inf")  # full, whatever the quota
        self._updated_ms = 0

    def take(self, tokens: float, quota: float, now_ms: int) -> None:
        """Take tokens, even if this makes a debt."""
        self._refill(quota, now_ms)
        self._tokens -= tokens

    def over_ms(self, quota: float, now_ms: int) -> int:
        """Return the milliseconds until the debt is paid; 0 without a debt."""
        self._refill(quota, now_ms)
        return 0 if self._tokens >= 0 else round(min(-self._tokens / quota * 1_000, INT_MAX))

    def _refill(self, quota: float, now_ms: int) -> None:
        if now_ms > self._updated_ms:
            self._tokens += quota * (now_ms - self._updated_ms) / 1_000
        self._tokens = min(self._tokens, quota * self._span_seconds)
        self._updated_ms = now_ms
