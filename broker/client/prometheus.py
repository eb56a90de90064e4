"""The figures of producers and consumers as Prometheus metrics."""

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from broker.client.consumer_figures import ConsumerFigures, PartitionFigures
from broker.client.producer_figures import ProducerFigures

Figures = ConsumerFigures | ProducerFigures
F = TypeVar("F")
Row = tuple[str, str, Callable[[F], float]]
"""Name and help of a metric, and its value of some figures. flakelog/metric_table.py lists them with all others."""


CONSUMER_COUNTERS: tuple[Row[ConsumerFigures], ...] = (
    ("fetch_requests", "Fetch requests that were answered", lambda f: f.fetches.requests),
    ("fetch_failures", "Fetches of a partition that were tried again", lambda f: f.fetches.failed_requests),
    ("fetch_seconds", "Time of all fetch requests, waits included", lambda f: f.fetches.request_ms / 1e3),
    ("records", "Records fetched", lambda f: f.fetches.records),
    ("fetched_bytes", "Bytes of the batches fetched", lambda f: f.fetches.bytes),
    ("commits", "Commits of offsets", lambda f: f.fetches.commits),
    ("rebalances", "Changes of the assignment", lambda f: f.fetches.rebalances),
    ("poison_batches", "Batches that cannot be decoded", lambda f: f.fetches.poison_batches),
    ("resets", "Positions that the log no longer had", lambda f: f.fetches.resets),
)
CONSUMER_GAUGES: tuple[Row[ConsumerFigures], ...] = (
    ("fetch_max_seconds", "Longest fetch", lambda f: f.fetches.request_ms_max / 1e3),
)
PARTITION_GAUGES: tuple[tuple[str, str, Callable[[PartitionFigures], int | None]], ...] = (
    ("position_offset", "Offset after the last record handed to the program", lambda p: p.position),
    ("committed_offset", "Offset that the group has committed", lambda p: p.committed),
    ("end_offset", "End of the log as the last fetch told", lambda p: p.end),
    ("lag_messages", "Messages from the position to the end of the log", lambda p: p.lag),
    ("lag_bytes", "Their size, from the mean size of records", lambda p: p.lag_bytes),
)
PRODUCER_COUNTERS: tuple[Row[ProducerFigures], ...] = (
    ("messages", "Messages that were queued", lambda f: f.sent),
    ("acknowledged_messages", "Messages that were acknowledged", lambda f: f.acknowledged),
    ("dropped_messages", "Messages dropped without an acknowledgement", lambda f: f.failed),
    ("acknowledged_bytes", "Bytes of values and keys that were acknowledged", lambda f: f.bytes),
    ("requests", "Requests to all brokers", lambda f: f.requests),
)
PRODUCER_GAUGES: tuple[Row[ProducerFigures], ...] = (
    ("queued_messages", "Messages that wait for their acknowledgement", lambda f: f.queued),
    ("acknowledgement_avg_seconds", "Mean time from send to acknowledgement", lambda f: f.ack_ms_avg / 1e3),
    ("acknowledgement_max_seconds", "Longest time from send to acknowledgement", lambda f: f.ack_ms_max / 1e3),
    ("request_avg_seconds", "Mean time of a request", lambda f: f.request_ms_avg / 1e3),
    ("request_max_seconds", "Longest request", lambda f: f.request_ms_max / 1e3),
)


class HasFigures(Protocol):
    """A Producer, a Consumer, or the asyncio version of one."""

    def figures(self) -> Figures:
        """Return the figures until now."""


class ClientMetrics(Collector):
    """A Prometheus collector of the figures of producers and consumers. Each name becomes the label `client`.

        from prometheus_client import REGISTRY, start_http_server

        REGISTRY.register(ClientMetrics(orders=consumer, invoices=producer))
        start_http_server(8000)
    """

    def __init__(self, **clients: HasFigures) -> None:
        self._clients = clients

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all clients as they are now."""
        figures = {name: client.figures() for name, client in self._clients.items()}
        consumers = {
            name: client_figures
            for name, client_figures in figures.items()
            if isinstance(client_figures, ConsumerFigures)
        }
        producers = {
            name: client_figures
            for name, client_figures in figures.items()
            if isinstance(client_figures, ProducerFigures)
        }
        if consumers:
            yield from _by_client(CounterMetricFamily, "flakelog_consumer_", CONSUMER_COUNTERS, consumers)
            yield from _by_client(GaugeMetricFamily, "flakelog_consumer_", CONSUMER_GAUGES, consumers)
            yield from _of_partitions(consumers)
        if producers:
            yield from _by_client(CounterMetricFamily, "flakelog_producer_", PRODUCER_COUNTERS, producers)
            yield from _by_client(GaugeMetricFamily, "flakelog_producer_", PRODUCER_GAUGES, producers)


def _by_client(
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
    prefix: str,
    rows: tuple[Row[F], ...],
    figures_of: dict[str, F],
) -> Iterator[Metric]:
    """Yield the metric of each row, with a sample of each client."""
    for name, help, value in rows:
        family = kind(prefix + name, help, labels=("client",))
        for client, figures in figures_of.items():
            family.add_metric((client,), value(figures))
        yield family


def _of_partitions(figures_of: dict[str, ConsumerFigures]) -> Iterator[Metric]:
    for name, help, value in PARTITION_GAUGES:
        family = GaugeMetricFamily(f"flakelog_consumer_{name}", help, labels=("client", "topic", "partition"))
        for client, figures in figures_of.items():
            for (topic, partition), of_partition in figures.partitions.items():
                number = value(of_partition)
                if number is not None:
                    family.add_metric((client, topic, str(partition)), number)
        yield family
