"""Figures over time, sampled while a page with live figures is open.

Counters become rates between two samples. A pause of more than GAP_MS, in which no page was open, is a gap.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import NamedTuple

INTERVAL_MS = 2_000  # between two samples of live figures
GAP_MS = 5 * INTERVAL_MS
POINTS_MAX = 1_800  # an hour of samples
SERIES_MAX = 50  # consumer groups whose lag is kept; the one not looked at for longest makes room


class Point(NamedTuple):
    """Values at a Unix time in ms; None is a gap."""

    at_ms: int
    values: tuple[float | None, ...]


class Series:
    """Values over time. `add` takes a sample unless the last one is too new."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._points: deque[Point] = deque(maxlen=POINTS_MAX)

    def is_due(self, now_ms: int) -> bool:
        """Return True if the last sample is old enough; several pages share the samples."""
        return not self._points or now_ms - self._points[-1].at_ms >= INTERVAL_MS // 2

    def add(self, now_ms: int, values: Sequence[float | None]) -> None:
        """Add a sample, with a gap before it if no page was open."""
        if self._points and now_ms - self._points[-1].at_ms > GAP_MS:
            self._points.append(Point(now_ms - INTERVAL_MS, (None,) * len(self.names)))
        self._points.append(Point(now_ms, tuple(values)))

    def columns(self, since_ms: int = 0) -> list[list[float | None]]:
        """Return the samples after a time as columns: seconds since 1970, then each value, as uPlot takes them."""
        points = [point for point in self._points if point.at_ms > since_ms]
        seconds: list[float | None] = [point.at_ms / 1_000 for point in points]
        return [seconds, *([point.values[at] for point in points] for at in range(len(self.names)))]

    @property
    def last(self) -> Point | None:
        return self._points[-1] if self._points else None


class RateSeries(Series):
    """Rates in a second of counters that are sampled."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        self._before: tuple[int, tuple[float, ...]] | None = None

    def is_due(self, now_ms: int) -> bool:
        return self._before is None or now_ms - self._before[0] >= INTERVAL_MS // 2

    def count(self, now_ms: int, counters: Sequence[float]) -> None:
        """Take counters; they add a sample of rates unless the last ones are missing or long ago."""
        before, self._before = self._before, (now_ms, tuple(counters))
        if before is None or now_ms <= before[0]:
            return
        if now_ms - before[0] <= GAP_MS:
            seconds = (now_ms - before[0]) / 1_000
            self.add(now_ms, [max(b - a, 0) / seconds for a, b in zip(before[1], counters, strict=True)])


class SeriesByName:
    """A series for each of the names that were looked at last."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._series: OrderedDict[str, Series] = OrderedDict()

    def of(self, name: str) -> Series:
        """Return the series of a name, which is made if there is no such series."""
        if name not in self._series:
            self._series[name] = Series(self._columns)
            if len(self._series) > SERIES_MAX:
                self._series.popitem(last=False)
        self._series.move_to_end(name)
        return self._series[name]
