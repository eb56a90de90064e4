"""How much somebody used lately, and how long nothing more may be used for it to be no more than a quota allows.

A byte rate, a share of time and a rate of connections are counted in windows (Kafka's SampledStat and Rate): `number`
of them, each of `size_ms`. A rate of changes is counted by a bucket of tokens instead (KIP-599): one large request does
not weigh on it until its window is gone.
"""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from broker.config import INT_MAX


class Windows(NamedTuple):
    """`quota.window.num` and `quota.window.size.seconds`: the one that is being filled is one of them."""

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
    """What was used in the last windows. Times are of one monotonic clock, in ms."""

    __slots__ = ("_windows", "_samples")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: deque[_Sample] = deque(maxlen=windows.number + 1)  # one may reach into the oldest window

    def add(self, value: float, now_ms: int) -> None:
        """So much was used; less than 0 takes back what was added at the same moment."""
        samples = self._samples
        if not samples or now_ms - samples[-1].began_ms >= self._windows.size_ms:
            samples.append(_Sample(now_ms, now_ms))
        samples[-1].value += value
        samples[-1].last_ms = now_ms

    def used(self, now_ms: int) -> float:
        """In all windows."""
        self._expire(now_ms)
        return sum(sample.value for sample in self._samples)

    def over_ms(self, quota: float, now_ms: int) -> int:
        """How long nothing more may be used until the rate is the quota, which is a number a second; 0 where it is not
        above it. With O used in W seconds, where T would be right, that is X with O / (W + X) = T / W."""
        used = self.used(now_ms)
        elapsed_ms = self._elapsed_ms(now_ms)
        if used * 1_000 / elapsed_ms <= quota:
            return 0
        return round(min(used * 1_000 / quota - elapsed_ms, INT_MAX))  # it may be infinite

    def _elapsed_ms(self, now_ms: int) -> int:
        """The time the samples are of: all windows but one, at least, or who has just begun would seem fast."""
        elapsed_ms = now_ms - self._samples[0].began_ms if self._samples else 0
        missing = self._windows.number - 1 - elapsed_ms // self._windows.size_ms
        return max(elapsed_ms + max(missing, 0) * self._windows.size_ms, 1)

    def _expire(self, now_ms: int) -> None:
        while self._samples and now_ms - self._samples[0].last_ms >= self._windows.span_ms:
            self._samples.popleft()


class TokenBucket:
    """Tokens that come at the rate of the quota, until there are as many as of all windows; less than 0 is a debt. The
    quota is handed in each time, as it may be another one by now."""

    __slots__ = ("_span_seconds", "_tokens", "_updated_ms")

    def __init__(self, windows: Windows) -> None:
        self._span_seconds = windows.span_ms / 1_000
        self._tokens = float("inf")  # it is full, whatever the quota
        self._updated_ms = 0

    def take(self, tokens: float, quota: float, now_ms: int) -> None:
        """Take so many, also of those that are not there."""
        self._refill(quota, now_ms)
        self._tokens -= tokens

    def over_ms(self, quota: float, now_ms: int) -> int:
        """How long until there is no debt; 0 where there is none."""
        self._refill(quota, now_ms)
        return 0 if self._tokens >= 0 else round(min(-self._tokens / quota * 1_000, INT_MAX))

    def _refill(self, quota: float, now_ms: int) -> None:
        if now_ms > self._updated_ms:
            self._tokens += quota * (now_ms - self._updated_ms) / 1_000
        self._tokens = min(self._tokens, quota * self._span_seconds)
        self._updated_ms = now_ms
