"""The figures of a topology as metrics of flakelog/metric_table.py, collected on each scrape.

Counters count from the start of the process. A figure that is not known yet has no sample.
"""

from collections.abc import Callable, Iterator

from prometheus_client import GC_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric

from broker.version import VERSION
from flakelog.metric_table import histogram, sample, samples
from spout.figures.model import Snapshot, SpoutPartitionFigures

_COUNTERS = ("emitted", "executed", "acked", "failed", "timed_out", "errors")
# Metric, field of SpoutPartitionFigures, and what to divide it by.
_PARTITION_FIGURES = (
    ("lag_messages", "lag", 1),
    ("lag_bytes", "lag_bytes", 1),
    ("lag_seconds", "lag_ms", 1_000),
    ("pending_messages", "pending", 1),
    ("settled_offset", "watermark", 1),
    ("fetched_offset", "position", 1),
    ("end_offset", "high_watermark", 1),
)


class TopologyFigures:
    """A Prometheus collector over one topology."""

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        self._take = take

    def collect(self) -> Iterator[Metric]:
        snapshot = self._take()
        yield samples("flakelog_build_info", [((VERSION,), 1)])
        yield from _components(snapshot)
        yield from _partitions(snapshot)
        yield sample("flakelog_topology_in_flight", snapshot.in_flight)
        yield sample("flakelog_topology_running", snapshot.state == "running")


def registry_of(take: Callable[[], Snapshot]) -> CollectorRegistry:
    """Return the figures of `/metrics`: the topology's, and the process's memory, descriptors and collections."""
    registry = CollectorRegistry()
    registry.register(TopologyFigures(take))
    registry.register(PROCESS_COLLECTOR)
    registry.register(GC_COLLECTOR)
    return registry


def _components(snapshot: Snapshot) -> Iterator[Metric]:
    all_of_them = snapshot.components
    for name in _COUNTERS:
        yield samples(
            f"flakelog_topology_{name}_total", (((component.name,), component.total(name)) for component in all_of_them)
        )
    busy = (((component.name,), component.total("busy_ns") / 1e9) for component in all_of_them)
    yield samples("flakelog_topology_busy_seconds_total", busy)
    own = (((component.name, name), value) for component in all_of_them for name, value in component.metrics.items())
    yield samples("flakelog_topology_metric", own)
    outcomes = (
        ((component.name, outcome), number)
        for component in all_of_them
        for outcome, number in component.messages.items()
    )
    yield samples("flakelog_topology_messages_total", outcomes)
    took = histogram("flakelog_topology_latency_seconds")
    for spout_figures in snapshot.spouts:
        _add_latencies(took, spout_figures.name, spout_figures.latencies())
    yield took
    outages = (
        ((spout_figures.name,), max((outage.lasted_ms for outage in spout_figures.outages), default=0) / 1000)
        for spout_figures in snapshot.spouts
    )
    yield samples("flakelog_topology_outage_seconds", outages)
    waits = (((spout.name,), spout.group_wait_ms / 1000) for spout in snapshot.spouts)
    yield samples("flakelog_topology_group_wait_seconds", waits)


def _add_latencies(family: HistogramMetricFamily, spout: str, latencies: list[int]) -> None:
    buckets, below, sum_ms = [], 0, 0.0
    for bits, number in enumerate(latencies[:-1]):
        below += number
        sum_ms += number * (1 << bits) * 0.75  # a bucket's times lie between half its bound and its bound
        buckets.append((repr((1 << bits) / 1000), float(below)))
    buckets.append(("+Inf", float(below + latencies[-1])))
    family.add_metric([spout], buckets, sum_ms / 1000)


def _partitions(snapshot: Snapshot) -> Iterator[Metric]:
    for name, field, unit in _PARTITION_FIGURES:
        figures = ((partition, getattr(partition, field)) for partition in snapshot.partitions)
        values = ((_labels(partition), value / unit) for partition, value in figures if value is not None)
        yield samples(f"flakelog_topology_{name}", values)
    stands = ((_labels(partition), partition.no_progress_ms / 1000) for partition in snapshot.partitions)
    yield samples("flakelog_topology_no_progress_seconds", stands)
    counted: dict[tuple[str, str], int] = {}
    for partition in snapshot.partitions:
        key = partition.component, partition.phase
        counted[key] = counted.get(key, 0) + 1
    yield samples("flakelog_topology_partitions", sorted(counted.items()))


def _labels(partition: SpoutPartitionFigures) -> tuple[str, str, int]:
    return partition.component, partition.topic, partition.partition
