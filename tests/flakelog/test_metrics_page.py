"""The page of `/metrics` is made in slices, and is the page that Prometheus' client makes at once."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from twisted.internet.task import Cooperator

from flakelog.metric_table import histogram, sample, samples
from flakelog.metrics_page import CONTENT_TYPE, SAMPLES_AT_ONCE, MetricsPage, parts_of


class Partitions:
    """A collector of metrics with few samples, none, and more than a slice has."""

    def __init__(self):
        self.scrapes = 0

    def collect(self):
        self.scrapes += 1
        yield sample("flakelog_connections", self.scrapes)
        yield samples("flakelog_groups", [])
        for name in ("flakelog_log_end_offset", "flakelog_log_appended_total"):
            yield samples(name, (((f'a "topic"\n{n}', n), n) for n in range(2 * SAMPLES_AT_ONCE + 1)))
        flushes = histogram("flakelog_log_flush_seconds")
        flushes.add_metric([], [("1.0", 2.0), ("+Inf", 3.0)], 5.0)
        yield flushes


class Request:
    def __init__(self):
        self.headers = {}

    def setHeader(self, name, value):
        self.headers[name] = value


class Turns:
    """The turns of a reactor, one at a time."""

    def __init__(self):
        self._calls = []

    def schedule(self, call):
        self._calls.append(call)
        return self

    def cancel(self):
        self._calls.clear()

    def take(self):
        """Run the next turn; return False without one."""
        if not self._calls:
            return False
        self._calls.pop(0)()
        return True


@pytest.fixture
def registry():
    made = CollectorRegistry()
    made.figures = Partitions()
    made.register(made.figures)
    return made


@pytest.fixture
def turns():
    return Turns()


@pytest.fixture
def page(registry, turns):
    return MetricsPage(registry, Cooperator(lambda: lambda: True, turns.schedule))


def test_the_parts_are_the_page(registry):
    parts = list(parts_of(registry))
    assert len(parts) == 3 + 2 * 3
    assert max(part.count(b"\n") for part in parts) <= SAMPLES_AT_ONCE + 2
    registry.figures.scrapes = 0
    whole = generate_latest(registry)
    registry.figures.scrapes = 0
    assert b"".join(parts_of(registry)) == whole


def test_other_work_is_done_between_the_parts(page, turns):
    request, pages = Request(), []
    page.render(request).addCallback(pages.append)
    taken = 0
    while not pages and turns.take():
        taken += 1
    assert taken >= 9 and pages[0].endswith(b"flakelog_log_flush_seconds_sum 5.0\n")
    assert request.headers == {b"Content-Type": CONTENT_TYPE}


def test_requests_that_come_meanwhile_get_the_same_page(page, turns):
    pages = []
    page.render(Request()).addCallback(pages.append)
    turns.take()
    page.render(Request()).addCallback(pages.append)
    while turns.take():
        pass
    assert len(pages) == 2 and pages[0] is pages[1]
    page.render(Request()).addCallback(pages.append)
    while turns.take():
        pass
    assert pages[2] != pages[0], "a later request gets new figures"


def test_a_client_that_has_gone_is_no_trouble(page, turns):
    pages = []
    page.render(Request()).addErrback(lambda _: None).cancel()
    page.render(Request()).addCallback(pages.append)
    while turns.take():
        pass
    assert len(pages) == 1


def test_a_figure_that_fails_fails_the_request_and_not_the_next_one(turns):
    class Failing:
        def __init__(self):
            self.good = False

        def collect(self):
            if not self.good:
                raise OSError("no figures")
            yield sample("flakelog_connections", 1)

    collector, registry, results = Failing(), CollectorRegistry(), []
    registry.register(collector)
    page = MetricsPage(registry, Cooperator(lambda: lambda: True, turns.schedule))
    page.render(Request()).addErrback(lambda failure: results.append(str(failure.value)))
    while turns.take():
        pass
    collector.good = True
    page.render(Request()).addCallback(results.append)
    while turns.take():
        pass
    assert results[0] == "no figures" and b"flakelog_connections" in results[1]
