"""The figures of a measured run: counted as it goes, for a line of progress every few seconds and for its end."""

from typing import Any, NamedTuple

from flakelog.bench.latencies import Latencies

TELL_SECONDS = 5.0  # as Kafka's performance tools
MB = 1_000_000
PER_MILLES = {"p50": 500, "p95": 950, "p99": 990, "p99.9": 999}


class Figures(NamedTuple):
    """What was done in `seconds`: things are messages or ids; bytes are those of keys and values."""

    things: int
    bytes: int
    seconds: float
    latencies: Latencies

    @property
    def things_per_second(self) -> float:
        return self.things / self.seconds if self.seconds > 0 else 0.0

    @property
    def mb_per_second(self) -> float:
        return self.bytes / MB / self.seconds if self.seconds > 0 else 0.0

    def latency_ms(self) -> dict[str, float]:
        """Return average, percentiles and maximum in ms, by name; all 0 without a latency."""
        latencies = self.latencies
        values_us = {"average": latencies.average_us}
        values_us |= {name: latencies.percentile_us(per_mille) for name, per_mille in PER_MILLES.items()}
        return {name: round(value / 1000, 3) for name, value in (values_us | {"max": latencies.max_us}).items()}

    def described(self, noun: str, *, has_bytes: bool) -> dict[str, Any]:
        """Return the figures for JSON; `noun` is messages or ids."""
        rates = {"seconds": round(self.seconds, 3), f"{noun}_per_second": round(self.things_per_second, 1)}
        sizes = {"bytes": self.bytes, "mb_per_second": round(self.mb_per_second, 3)} if has_bytes else {}
        return {noun: self.things} | rates | sizes


class Meter:
    """Counts what a run does. Times are seconds of any clock that never goes back."""

    def __init__(self, begun_s: float) -> None:
        self._begun_s = self._window_s = self.last_s = begun_s
        self._things = self._bytes = 0
        self._latencies = Latencies()
        self._before = 0, 0
        self._window = Latencies()

    @property
    def things(self) -> int:
        return self._things

    def count(self, things: int, size: int, now_s: float) -> None:
        """Count things that are done, and their bytes."""
        self._things += things
        self._bytes += size
        self.last_s = now_s

    def took(self, latency_s: float) -> None:
        """Count the time that a thing took."""
        self._window.add(max(round(latency_s * 1_000_000), 0))

    def is_due(self, now_s: float) -> bool:
        """Return True if the last line of progress is TELL_SECONDS old."""
        return now_s - self._window_s >= TELL_SECONDS

    def take_window(self, now_s: float) -> Figures:
        """Return the figures since the last call, or since the beginning."""
        things, size = self._before
        seconds, window = now_s - self._window_s, self._window
        self._latencies.merge(window)
        self._window_s, self._window, self._before = now_s, Latencies(), (self._things, self._bytes)
        return Figures(self._things - things, self._bytes - size, seconds, window)

    def total(self, end_s: float | None = None) -> Figures:
        """Return the figures from the beginning to a time, by default to that of the last thing done."""
        self._latencies.merge(self._window)
        self._window = Latencies()
        return Figures(
            self._things, self._bytes, (self.last_s if end_s is None else end_s) - self._begun_s, self._latencies
        )
