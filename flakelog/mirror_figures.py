"""The figures of mirrors as metrics of flakelog/metric_table.py, collected on each scrape.

Counters count from the start of the process. A figure that is not known yet has no sample. The label `source` has the
brokers of the source, as they were given.
"""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import GC_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry
from prometheus_client.core import Metric

from broker.client.mirror.figures import RUNNING, MirrorFigures
from broker.version import VERSION
from flakelog.metric_table import samples

Take = Callable[[], Mapping[str, MirrorFigures]]
"""Returns the figures of each mirror of the process, by its source."""

_COUNTS = ("records", "bytes", "errors")
# Metric, and field of PartitionLag.
_PARTITION_FIGURES = (("lag_messages", "lag"), ("copied_offset", "copied"), ("end_offset", "end"))


class MirrorMetrics:
    """A Prometheus collector over the mirrors of one process."""

    def __init__(self, take: Take) -> None:
        self._take = take

    def collect(self) -> Iterator[Metric]:
        mirrors = self._take()
        yield samples("flakelog_build_info", [((VERSION,), 1)])
        running = (((source,), figures.state == RUNNING) for source, figures in mirrors.items())
        yield samples("flakelog_mirror_running", running)
        for name in _COUNTS:
            counts = (
                ((source, topic), getattr(counts, name))
                for source, figures in mirrors.items()
                for topic, counts in figures.topics.items()
            )
            yield samples(f"flakelog_mirror_{name}_total", counts)
        for name, field in _PARTITION_FIGURES:
            values = (
                ((source, *key), getattr(lag, field))
                for source, figures in mirrors.items()
                for key, lag in figures.partitions.items()
            )
            yield samples(f"flakelog_mirror_{name}", ((labels, v) for labels, v in values if v is not None))
        stopped = (((source, topic), 1) for source, figures in mirrors.items() for topic in figures.stopped)
        yield samples("flakelog_mirror_topic_stopped", stopped)


def registry_of(take: Take) -> CollectorRegistry:
    """Return the figures of `/metrics`: the mirrors', and the process's memory, descriptors and collections."""
    registry = CollectorRegistry()
    registry.register(MirrorMetrics(take))
    registry.register(PROCESS_COLLECTOR)
    registry.register(GC_COLLECTOR)
    return registry
