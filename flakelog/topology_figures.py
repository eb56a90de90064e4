"""The figures of a topology under the names Prometheus reads, collected on each scrape.

Counters count from the start of the process. Durations are in seconds and sizes in bytes. A figure that is not known
yet has no sample.
"""

from collections.abc import Callable, Iterator

from prometheus_client import GC_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from spout.figures import Snapshot

_COUNTERS = {
    "emitted": "Tuples emitted",
    "executed": "Tuples that bolts executed",
    "acked": "Tuples acked: a spout's with all that came of them, or a bolt's inputs",
    "failed": "Tuples failed: a spout's, or a bolt's inputs",
    "timed_out": "Tuples of spouts that failed because they took too long",
    "errors": "Errors that components reported",
}
_LAGS = {
    "lag": ("lag_messages", "Messages from the first that is not settled to the end of the log", 1),
    "lag_bytes": ("lag_bytes", "Their size in the log, from the mean size of a message", 1),
    "lag_ms": ("lag_seconds", "The age of the first message that is not settled", 1_000),
    "pending": ("pending_messages", "Messages fetched and not settled", 1),
}


class TopologyFigures:
    """A Prometheus collector over one topology."""

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        self._take = take

    def collect(self) -> Iterator[Metric]:
        taken = self._take()
        yield from _components(taken)
        yield from _partitions(taken)
        yield GaugeMetricFamily("flakelog_topology_in_flight", "Tuples that are in flight", value=taken.in_flight)
        text = "1 while the topology runs, 0 while it stops"
        yield GaugeMetricFamily("flakelog_topology_running", text, value=taken.state == "running")


def registry_of(take: Callable[[], Snapshot]) -> CollectorRegistry:
    """Return the figures of `/metrics`: the topology's, and the process's memory, descriptors and collections."""
    registry = CollectorRegistry()
    registry.register(TopologyFigures(take))
    registry.register(PROCESS_COLLECTOR)
    registry.register(GC_COLLECTOR)
    return registry


def _components(taken: Snapshot) -> Iterator[Metric]:
    for name, text in _COUNTERS.items():
        counter = CounterMetricFamily(f"flakelog_topology_{name}", text, labels=["component"])
        for each in taken.components:
            counter.add_metric([each.name], each.total(name))
        yield counter
    busy = CounterMetricFamily(
        "flakelog_topology_busy_seconds", "Time that bolts spent in the engine's thread", labels=["component"]
    )
    own = GaugeMetricFamily(
        "flakelog_topology_metric", "A component's own counters and gauges", labels=["component", "name"]
    )
    outcomes = CounterMetricFamily(
        "flakelog_topology_messages", "Messages of a log, by what became of them", labels=["component", "outcome"]
    )
    took = HistogramMetricFamily(
        "flakelog_topology_latency_seconds", "From a spout's emit to the last ack of its tree", labels=["component"]
    )
    outage = GaugeMetricFamily(
        "flakelog_topology_outage_seconds",
        "How long all messages of a spout fail for one reason, so that one at a time is tried; 0 if they do not",
        labels=["component"],
    )
    for each in taken.spouts:
        outage.add_metric([each.name], max((one.lasted_ms for one in each.outages), default=0) / 1000)
    for each in taken.components:
        busy.add_metric([each.name], each.total("busy_ns") / 1e9)
        for name, value in each.metrics.items():
            own.add_metric([each.name, name], value)
        for outcome, number in each.messages.items():
            outcomes.add_metric([each.name, outcome], number)
        if each.kind == "spout":
            _add_latencies(took, each.name, each.latencies())
    yield from (busy, own, outcomes, took, outage)


def _add_latencies(family: HistogramMetricFamily, spout: str, latencies: list[int]) -> None:
    buckets, below, sum_ms = [], 0, 0.0
    for bits, number in enumerate(latencies[:-1]):
        below += number
        sum_ms += number * (1 << bits) * 0.75  # a bucket's times lie between half its bound and its bound
        buckets.append((repr((1 << bits) / 1000), float(below)))
    buckets.append(("+Inf", float(below + latencies[-1])))
    family.add_metric([spout], buckets, sum_ms / 1000)


def _partitions(taken: Snapshot) -> Iterator[Metric]:
    labels = ["component", "topic", "partition"]
    for field, (name, text, unit) in _LAGS.items():
        gauge = GaugeMetricFamily(f"flakelog_topology_{name}", text, labels=labels)
        for each in taken.partitions:
            value = getattr(each, field)
            if value is not None:
                gauge.add_metric([each.component, each.topic, str(each.partition)], value / unit)
        yield gauge
    phases = GaugeMetricFamily("flakelog_topology_partitions", "Partitions, by phase", labels=["component", "phase"])
    counted: dict[tuple[str, str], int] = {}
    for each in taken.partitions:
        key = each.component, each.phase
        counted[key] = counted.get(key, 0) + 1
    for (component, phase), number in sorted(counted.items()):
        phases.add_metric([component, phase], number)
    yield phases
