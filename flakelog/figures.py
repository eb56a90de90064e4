"""The figures of a server under the names Prometheus reads, collected on each scrape.

Durations are in seconds and sizes in bytes, by Prometheus's conventions, unless the name ends in _ms. Counters count
from the start of the process.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from prometheus_client import GC_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from broker.engine.api_table import APIS
from broker.engine.engine import Engine
from broker.log.disk_watch import DiskWatch
from broker.log.log_manager import LogManager
from broker.log.partition_log import PartitionLog
from broker.services.context import BrokerServices
from broker.services.metrics import BOUNDS_NS, NS_PER_SECOND, Latency, Metrics
from idgen.claim import WorkerClaim
from idgen.clock import IdClock
from idgen.peers import Peers
from idgen.service import IdService


class MeasuredServer(Protocol):
    """The parts of a server process that have figures."""

    engine: Engine | None
    service: IdService | None
    peers: Peers | None
    clock: IdClock

    @property
    def scope(self) -> str: ...

    @property
    def claims(self) -> Sequence[WorkerClaim]: ...


class Figures:
    """A Prometheus collector over one server process."""

    def __init__(self, server: MeasuredServer) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        if self._server.engine is not None:
            yield from _broker(self._server.engine, self._server.clock.now_ms())
        yield from _ids(self._server)


def registry_of(server: MeasuredServer) -> CollectorRegistry:
    """Return the figures of `/metrics`: the server's, and the process's memory, descriptors and garbage collections."""
    registry = CollectorRegistry()
    registry.register(Figures(server))
    registry.register(PROCESS_COLLECTOR)
    registry.register(GC_COLLECTOR)
    return registry


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _broker(engine: Engine, now_ms: int) -> Iterator[Metric]:
    services, metrics = engine.services, engine.metrics
    yield from _requests(metrics)
    yield _counter("flakelog_network_received_bytes", "Bytes read from clients", metrics.bytes_received)
    yield _counter("flakelog_network_sent_bytes", "Bytes written to clients", metrics.bytes_sent)
    yield _gauge("flakelog_connections", "Connections that are open", engine.connections)
    yield _counter("flakelog_connections_opened", "Connections that were opened", metrics.connections_opened)
    yield from _throttled(metrics)
    yield _gauge("flakelog_delayed_requests", "Requests that wait for data, members or disks", len(services.purgatory))
    sessions = services.fetch_sessions
    yield _gauge("flakelog_fetch_sessions", "Fetch sessions that are kept", len(sessions))
    yield _gauge("flakelog_fetch_session_partitions", "Partitions they remember", sessions.partitions)
    yield _counter("flakelog_fetch_sessions_evicted", "Fetch sessions that made room for others", sessions.evicted)
    yield from _coordinators(services)
    yield from _topics(metrics, services.logs.all())
    yield from _logs(services.logs.all())
    yield _gauge("flakelog_partitions_offline", "Partitions that are offline", len(services.logs.offline))
    yield from _clock_waits(services, now_ms)
    text = "Files of partitions that are open; flakelog.max.open.files limits them"
    yield _gauge("flakelog_open_files", text, services.logs.storage.open_count)
    yield from _disk(services.logs.disk)
    yield from _cleaner(services.logs)
    yield from _scrub(services.logs)
    flushes = HistogramMetricFamily("flakelog_log_flush_seconds", "Syncs of logs and of the checkpoint")
    _add(flushes, [], metrics.flushes)
    yield flushes
    yield _gauge("flakelog_log_flush_max_seconds", "The longest of them", metrics.flushes.max_ns / NS_PER_SECOND)


def _throttled(metrics: Metrics) -> Iterator[Metric]:
    """Yield the figures of client quotas; a quota without a throttled client yet has no sample."""
    throttled = CounterMetricFamily(
        "flakelog_throttled", "Requests, or connections, over a client quota", labels=["quota"]
    )
    seconds = CounterMetricFamily(
        "flakelog_throttled_seconds", "For how long their connections were not read from", labels=["quota"]
    )
    for quota, number in sorted(metrics.throttled.items()):
        throttled.add_metric([quota], number)
        seconds.add_metric([quota], metrics.throttled_ms[quota] / 1_000)
    yield throttled
    yield seconds


def _requests(metrics: Metrics) -> Iterator[Metric]:
    taken = HistogramMetricFamily(
        "flakelog_request_seconds", "From a request to its answer, by API; waiting for data included", labels=["api"]
    )
    longest = GaugeMetricFamily("flakelog_request_max_seconds", "The longest of them", labels=["api"])
    for key, latency in sorted(metrics.requests.items()):
        _add(taken, [APIS[key].name], latency)
        longest.add_metric([APIS[key].name], latency.max_ns / NS_PER_SECOND)
    yield taken
    yield longest


def _add(family: HistogramMetricFamily, labels: list[str], latency: Latency) -> None:
    buckets, below = [], 0
    for bound_ns, count in zip(BOUNDS_NS, latency.counts, strict=False):
        below += count
        buckets.append((repr(bound_ns / NS_PER_SECOND), float(below)))
    buckets.append(("+Inf", float(latency.number)))
    family.add_metric(labels, buckets, latency.sum_ns / NS_PER_SECOND)


def _coordinators(services: BrokerServices) -> Iterator[Metric]:
    groups = GaugeMetricFamily("flakelog_groups", "Consumer groups, by state", labels=["state"])
    for state, number in sorted(services.group_states().items()):
        groups.add_metric([state], number)
    yield groups
    ids = GaugeMetricFamily("flakelog_transactional_ids", "Transactional ids, by state", labels=["state"])
    for state, number in sorted(services.transaction_states().items()):
        ids.add_metric([state], number)
    yield ids
    text = "Transactions that are open in partitions: read_committed consumers wait for each"
    is_open = sum(len(log.producers.open_transactions()) for log in services.logs.all())
    yield _gauge("flakelog_open_transactions", text, is_open)


_TOPIC_COUNTERS = {
    "messages_in": ("messages_in", "Messages appended"),
    "bytes_in": ("in_bytes", "Bytes appended"),
    "bytes_out": ("out_bytes", "Bytes fetched"),
    "failed_produce": ("failed_produce_requests", "Produces of a partition that were refused"),
    "failed_fetch": ("failed_fetch_requests", "Fetches of a partition that were refused"),
}


def _topics(metrics: Metrics, logs: Iterable[PartitionLog]) -> Iterator[Metric]:
    logs = list(logs)
    topics = metrics.by_topic(logs)
    total = metrics.total(logs)
    for name, (told, text) in _TOPIC_COUNTERS.items():
        yield _counter(f"flakelog_{told}", f"{text}, over all topics", getattr(total, name))
        counter = CounterMetricFamily(f"flakelog_topic_{told}", f"{text}, by topic", labels=["topic"])
        for topic, figures in topics.items():
            counter.add_metric([topic], getattr(figures, name))
        yield counter


def _logs(logs: Iterable[PartitionLog]) -> Iterator[Metric]:
    labels = ["topic", "partition"]
    start = GaugeMetricFamily("flakelog_log_start_offset", "The first offset that is there", labels=labels)
    end = GaugeMetricFamily("flakelog_log_end_offset", "The offset the next message gets", labels=labels)
    size = GaugeMetricFamily("flakelog_log_size_bytes", "Bytes of a partition's segments", labels=labels)
    segments = GaugeMetricFamily("flakelog_log_segments", "Segments of a partition", labels=labels)
    appended = CounterMetricFamily("flakelog_log_appended", "Messages appended to a partition", labels=labels)
    for log in logs:
        key = [log.topic, str(log.partition)]
        start.add_metric(key, log.log_start_offset)
        end.add_metric(key, log.log_end_offset)
        size.add_metric(key, log.segments.size)
        segments.add_metric(key, len(log.segments.all))
        appended.add_metric(key, log.log_end_offset - log.opened_at)
    yield from (start, end, size, segments, appended)


def _disk(disk: DiskWatch) -> Iterator[Metric]:
    yield _gauge("flakelog_disk_full", "1 while the disk of the data directory is full, else 0", disk.is_full)
    text = "Bytes that can still be written there, at the last check"
    yield _gauge("flakelog_disk_usable_bytes", text, disk.usable_bytes or 0)
    text = "Since when it is full, in seconds since 1970; 0 while it has space"
    yield _gauge("flakelog_disk_full_since_seconds", text, (disk.full_since_ms or 0) / 1000)


def _clock_waits(services: BrokerServices, now_ms: int) -> Iterator[Metric]:
    waits = services.clock_waits.waiting(now_ms).values()
    text = "Partitions that refuse messages, because their last ids are ahead of the clock"
    yield _gauge("flakelog_partitions_waiting_for_clock", text, len(waits))
    longest_ms = max((each.waiting_ms for each in waits), default=0)
    yield _gauge("flakelog_clock_wait_max_seconds", "For how long the first of them has done so", longest_ms / 1000)
    text = "Partitions whose last ids are ahead of the clock, whether clients have met them or not"
    yield _gauge("flakelog_partitions_ahead_of_clock", text, len(services.clock_waits.ahead(now_ms)))


def _scrub(logs: LogManager) -> Iterator[Metric]:
    figures = logs.scrub
    yield _counter("flakelog_scrub_passes", "Passes of the scrub over all closed segments", figures.passes)
    yield _counter("flakelog_scrub_bytes", "Bytes that the scrub has read", figures.bytes_read)
    yield _counter("flakelog_scrub_errors", "Segments that the scrub found damaged or could not read", figures.errors)


def _cleaner(logs: LogManager) -> Iterator[Metric]:
    figures = logs.cleaner
    told = (
        ("passes", "Passes of the cleaner over a log", figures.passes),
        ("read_bytes", "Bytes they read", figures.bytes_read),
        ("written_bytes", "Bytes they kept, and wrote again", figures.bytes_written),
        ("records_read", "Records they read", figures.records_read),
        ("records_written", "Records they kept", figures.records_written),
        ("poison_batches", "Batches they kept whole, because their records cannot be decoded", figures.poison_batches),
    )
    for name, text, value in told:
        yield _counter(f"flakelog_cleaner_{name}", text, value)
    yield _gauge("flakelog_cleaner_last_pass_seconds", "How long the last pass took", figures.last_pass_ms / 1000)
    text = "When the last pass ended, in seconds since 1970; 0 before the first"
    yield _gauge("flakelog_cleaner_last_pass_ended_seconds", text, figures.last_ended_ms / 1000)
    text = "Share of the dirtiest log that is still to be cleaned"
    yield _gauge("flakelog_cleaner_max_dirty_ratio", text, figures.max_dirty_ratio)
    uncleanable = sum(log.uncleanable is not None for log in logs.all())
    text = "Partitions that are not cleaned any more; the log says why"
    yield _gauge("flakelog_partitions_uncleanable", text, uncleanable)


def _ids(server: MeasuredServer) -> Iterator[Metric]:
    yield from _claims(server)
    yield _gauge("flakelog_ids_clock_skew_ms", "How far the id clock is ahead of the wall clock", server.clock.skew_ms)
    scope = GaugeMetricFamily("flakelog_ids_scope", "Where ids are unique, as a label", labels=["unique_in"])
    scope.add_metric([server.scope], 1)
    yield scope
    peers = server.peers
    if peers is not None:
        yield _gauge("flakelog_ids_peers", "Other id services whose clocks were asked", peers.answering)
        if peers.offset_ms is not None:
            text = "This machine's clock less the mean of its peers'"
            yield _gauge("flakelog_ids_clock_offset_ms", text, peers.offset_ms)
    if server.service is None:
        return
    issued = CounterMetricFamily("flakelog_ids_issued", "Ids given by the id service", labels=["user_agent"])
    for user_agent, number in server.service.counters.by_user_agent.items():
        issued.add_metric([user_agent], number)
    yield issued
    counters = server.service.counters
    refused = CounterMetricFamily("flakelog_ids_refused", "Requests the id service refused", labels=["error"])
    for error, number in counters.exceptions.items():
        refused.add_metric([error], number)
    yield refused
    yield _counter("flakelog_ids_waits", "Times a request waited for ids that ran ahead of the clock", counters.waits)
    yield _counter("flakelog_ids_waited_seconds", "How long they waited", counters.waited_ms / 1000)


def _claims(server: MeasuredServer) -> Iterator[Metric]:
    now_ms = server.clock.now_ms()
    labels = ["worker"]
    lead = GaugeMetricFamily(
        "flakelog_ids_lead_seconds", "How far a worker number's high-water mark is ahead of the clock", labels=labels
    )
    left = GaugeMetricFamily(
        "flakelog_ids_lease_left_seconds", "How long its ids go on if the registry stays silent", labels=labels
    )
    for claim in server.claims:
        if claim.number is not None and claim.worker is not None:
            limit_ms = claim.worker.limit_ms
            lead.add_metric([str(claim.number)], (limit_ms - now_ms) / 1000)
            left.add_metric([str(claim.number)], max(limit_ms - max(now_ms, claim.worker.last_ms), 0) / 1000)
    yield from (lead, left)
