"""The text of `/metrics`, made in short slices, so that a server with thousands of partitions answers clients between.

Prometheus' text format: https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

import time
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from twisted.internet.defer import Deferred
from twisted.internet.task import Cooperator

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
SAMPLES_AT_ONCE = 500  # take 2 to 3 ms
SLICE_SECONDS = 0.002  # after which no other part is begun
_HEADER_LINES = 2  # HELP and TYPE


def parts_of(registry: CollectorRegistry) -> Iterator[bytes]:
    """Yield the text of all metrics in parts of at most SAMPLES_AT_ONCE samples."""
    for metric in registry.collect():
        for begin in range(0, max(len(metric.samples), 1), SAMPLES_AT_ONCE):
            part = copy(metric)
            part.samples = metric.samples[begin : begin + SAMPLES_AT_ONCE]
            text = generate_latest(_Only(part))
            yield text if not begin else text.split(b"\n", _HEADER_LINES)[_HEADER_LINES]


class _Only:
    """A collector of one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _slice() -> Callable[[], bool]:
    """Return a function that says whether this turn of the reactor has worked long enough at pages."""
    end = time.perf_counter() + SLICE_SECONDS
    return lambda: time.perf_counter() >= end


def text_of(parts: Iterator[bytes], cooperator: Cooperator | None = None) -> "Deferred[bytes]":
    """Fire with the whole text of parts that are made between the other work of the reactor."""
    gathered: list[bytes] = []

    def gather() -> Iterator[None]:
        for part in parts:
            gathered.append(part)
            yield None

    task = (cooperator or Cooperator(terminationPredicateFactory=_slice)).cooperate(gather())
    done: Deferred[Any] = task.whenDone()
    return done.addCallback(lambda _: b"".join(gathered))


class MetricsPage:
    """Makes the page between the other work of the reactor. Requests that come meanwhile get the same page."""

    def __init__(self, registry: CollectorRegistry, cooperator: Cooperator | None = None) -> None:
        self._registry = registry
        self._cooperator = cooperator or Cooperator(terminationPredicateFactory=_slice)
        self._waiting: list[Deferred[bytes]] = []

    def render(self, request: Any) -> Deferred[bytes]:
        """Return the page, and set its content type."""
        request.setHeader(b"Content-Type", CONTENT_TYPE)
        return self.text()

    def text(self) -> Deferred[bytes]:
        """Return the page."""
        page: Deferred[bytes] = Deferred()
        self._waiting.append(page)
        if len(self._waiting) == 1:
            text_of(parts_of(self._registry), self._cooperator).addCallbacks(self._answer, self._fail)
        return page

    def _answer(self, text: bytes) -> None:
        for request in self._taken():
            request.callback(text)

    def _fail(self, failure: Any) -> None:
        for request in self._taken():
            request.errback(failure)

    def _taken(self) -> list[Deferred[bytes]]:
        taken, self._waiting = self._waiting, []
        return taken
