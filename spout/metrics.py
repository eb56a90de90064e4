"""Counters and gauges of a component's own."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from spout.work import EXECUTION

M = TypeVar("M", bound="Metric")


class Metric:
    """A number of one task. Code in a bolt's thread changes it when its `execute` returns."""

    def __init__(self) -> None:
        self.value: float = 0

    def _change(self, change: Callable[[], None]) -> None:
        execution = EXECUTION.get()
        if execution is not None and execution.in_thread:
            execution.calls.append(change)
        else:
            change()


class TaskCounter(Metric):
    """The spout.api.Counter of one task."""

    def add(self, n: float = 1) -> None:
        """Count `n` more. Raise ValueError if `n` is negative."""
        if n < 0:
            raise ValueError(f"a counter only counts up, got {n}: use a gauge")
        self._change(partial(self._add, n))

    def _add(self, n: float) -> None:
        self.value += n


class TaskGauge(Metric):
    """The spout.api.Gauge of one task."""

    def set(self, value: float) -> None:
        """Set the value."""
        self._change(partial(self._set, value))

    def _set(self, value: float) -> None:
        self.value = value


class TaskMetrics:
    """The counters and gauges of one task, by name."""

    def __init__(self, component: str, limit: int) -> None:
        self._component = component
        self._limit = limit
        self._metrics: dict[str, Metric] = {}

    def counter(self, name: str) -> TaskCounter:
        """Return the counter of that name, at 0 when it is new.

        Raise ValueError if the name is a gauge's, or if the task has too many.
        """
        return self._metric(name, TaskCounter)

    def gauge(self, name: str) -> TaskGauge:
        """Return the gauge of that name, at 0 when it is new; raise ValueError as `counter` does."""
        return self._metric(name, TaskGauge)

    def values(self) -> Mapping[str, float]:
        """Return the values by name."""
        return {name: metric.value for name, metric in self._metrics.items()}

    def is_counter(self, name: str) -> bool:
        """Return True if the name is a counter's."""
        return isinstance(self._metrics.get(name), TaskCounter)

    def _metric(self, name: str, kind: type[M]) -> M:
        metric = self._metrics.get(name)
        if metric is None:
            if not name or len(self._metrics) >= self._limit:
                allowed = f"flakelog.bolt.metrics.max allows {self._limit}"
                raise ValueError(f"{self._component} asks for counter or gauge {name!r}: {allowed}, each with a name")
            metric = self._metrics[name] = kind()
        if not isinstance(metric, kind):
            raise ValueError(f"{self._component} has {name!r} as a counter and as a gauge: give each its own name")
        return metric
