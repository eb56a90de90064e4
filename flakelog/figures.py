"""The figures of a server as metrics of flakelog/metric_table.py, collected on each scrape.

Counters count from the start of the process.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from prometheus_client import GC_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric

from broker.engine.api_table import name_of
from broker.engine.engine import Engine
from broker.log.disk_watch import DiskWatch
from broker.log.log_manager import LogManager
from broker.log.partition_log import PartitionLog
from broker.metrics import BOUNDS_NS, NS_PER_SECOND, Latency, Metrics, TopicFigures
from broker.security.altered_tls import AlteredTls
from broker.security.sasl.listeners import AuthenticationFigures
from broker.services.context import BrokerServices
from broker.services.group_lag import group_positions
from broker.services.replica_states import offline_partitions
from broker.version import VERSION
from flakelog.metric_table import histogram, sample, samples
from flakelog.replication_figures import NAMED_MAX, replication_figures, split_name
from idgen.claim import WorkerClaim
from idgen.clock import IdClock
from idgen.peers import Peers
from idgen.service import IdService


class MeasuredServer(Protocol):
    """The parts of a server process that have figures."""

    engine: Engine | None
    service: IdService | None
    peers: Peers | None
    tls: AlteredTls
    clock: IdClock

    @property
    def scope(self) -> str: ...

    @property
    def claims(self) -> Sequence[WorkerClaim]: ...


class Figures:
    """A Prometheus collector over one server process, with the figures of `partitions_max` partitions and topics."""

    def __init__(self, server: MeasuredServer, partitions_max: int) -> None:
        self._server = server
        self._partitions_max = partitions_max

    def collect(self) -> Iterator[Metric]:
        yield samples("flakelog_build_info", [((VERSION,), 1)])
        yield from _tls(self._server.tls)
        if self._server.engine is not None:
            yield from _broker(self._server.engine, self._server.clock.now_ms(), self._partitions_max)
        yield from _ids(self._server)


def registry_of(server: MeasuredServer, partitions_max: int) -> CollectorRegistry:
    """Return the figures of `/metrics`: the server's, and the process's memory, descriptors and garbage collections."""
    registry = CollectorRegistry()
    registry.register(Figures(server, partitions_max))
    registry.register(PROCESS_COLLECTOR)
    registry.register(GC_COLLECTOR)
    return registry


def _broker(engine: Engine, now_ms: int, partitions_max: int) -> Iterator[Metric]:
    services, metrics = engine.services, engine.metrics
    yield from _requests(metrics)
    yield sample("flakelog_network_received_bytes_total", metrics.bytes_received)
    yield sample("flakelog_network_sent_bytes_total", metrics.bytes_sent)
    yield sample("flakelog_connections", engine.connections)
    yield sample("flakelog_connections_opened_total", metrics.connections_opened)
    yield from _sasl(services.sasl.figures)
    yield sample("flakelog_denied_operations_total", services.audit.denied_total)
    yield from _throttled(metrics)
    yield sample("flakelog_delayed_requests", len(services.purgatory))
    sessions = services.fetch_sessions
    yield sample("flakelog_fetch_sessions", len(sessions))
    yield sample("flakelog_fetch_session_partitions", sessions.partitions)
    yield sample("flakelog_fetch_sessions_evicted_total", sessions.evicted)
    yield from _coordinators(services)
    yield from _group_lag(services)
    logs = services.logs.all()
    total = metrics.total(logs)
    yield from _topics(metrics, total, logs, partitions_max)
    yield from replication_figures(services, total, partitions_max)
    yield from _logs(logs[:partitions_max])
    yield sample("flakelog_partitions_left_out", max(len(logs) - partitions_max, 0))
    yield sample("flakelog_partitions_offline", len(offline_partitions(services)))
    yield from _clock_waits(services, now_ms)
    yield sample("flakelog_open_files", services.logs.storage.open_count)
    yield from _disk(services.logs.disk)
    yield from _cleaner(services.logs)
    yield from _scrub(services.logs)
    flushes = histogram("flakelog_log_flush_seconds")
    _add(flushes, [], metrics.flushes)
    yield flushes
    yield sample("flakelog_log_flush_max_seconds", metrics.flushes.max_ns / NS_PER_SECOND)


def _tls(tls: AlteredTls) -> Iterator[Metric]:
    """Yield the figures of TLS; a server without it has no samples of listeners."""
    handshakes = tls.handshakes
    outcomes = [("succeeded", handshakes.succeeded), ("failed", handshakes.failed)]
    yield sample("flakelog_tls_handshakes", handshakes.open)
    yield samples("flakelog_tls_handshakes_total", (((outcome,), number) for outcome, number in outcomes))
    expiries = (((name,), listener.expires_ms / 1_000) for name, listener in sorted(tls.listeners.items()))
    yield samples("flakelog_tls_certificate_expiry_seconds", expiries)
    refusals = tls.refusals()
    yield samples("flakelog_tls_refused", (((name,), name in refusals) for name in sorted(tls.listeners)))


def _sasl(figures: AuthenticationFigures) -> Iterator[Metric]:
    """Yield the figures of SASL."""
    outcomes = [("succeeded", figures.succeeded), ("failed", figures.failed)]
    yield sample("flakelog_sasl_authentications", figures.open)
    yield samples("flakelog_sasl_authentications_total", (((outcome,), number) for outcome, number in outcomes))
    yield sample("flakelog_sasl_expired_connections_total", figures.expired)


def _throttled(metrics: Metrics) -> Iterator[Metric]:
    """Yield the figures of client quotas; a quota without a throttled client yet has no sample."""
    throttled = sorted(metrics.throttled.items())
    yield samples("flakelog_throttled_total", (((quota,), number) for quota, number in throttled))
    seconds = (((quota,), metrics.throttled_ms[quota] / 1_000) for quota, _ in throttled)
    yield samples("flakelog_throttled_seconds_total", seconds)


def _requests(metrics: Metrics) -> Iterator[Metric]:
    durations = histogram("flakelog_request_seconds")
    latencies = [(name_of(key), latency) for key, latency in sorted(metrics.requests.items())]
    for name, latency in latencies:
        _add(durations, [name], latency)
    yield durations
    longest = (((name,), latency.max_ns / NS_PER_SECOND) for name, latency in latencies)
    yield samples("flakelog_request_max_seconds", longest)


def _add(family: HistogramMetricFamily, labels: list[str], latency: Latency) -> None:
    buckets, below = [], 0
    for bound_ns, count in zip(BOUNDS_NS, latency.counts, strict=False):
        below += count
        buckets.append((repr(bound_ns / NS_PER_SECOND), float(below)))
    buckets.append(("+Inf", float(latency.number)))
    family.add_metric(labels, buckets, latency.sum_ns / NS_PER_SECOND)


def _coordinators(services: BrokerServices) -> Iterator[Metric]:
    groups = sorted(services.coordinators.group_states().items())
    yield samples("flakelog_groups", (((state,), number) for state, number in groups))
    ids = sorted(services.coordinators.transaction_states().items())
    yield samples("flakelog_transactional_ids", (((state,), number) for state, number in ids))
    is_open = sum(len(log.producers.open_transactions()) for log in services.logs.all())
    yield sample("flakelog_open_transactions", is_open)


def _group_lag(services: BrokerServices) -> Iterator[Metric]:
    """Yield committed offsets and lag; an offset in a partition that has no log here now has no sample."""
    positions, left_out = group_positions(services)
    for name, field in _GROUP_FIGURES.items():
        yield samples(name, ((lag.labels, getattr(lag, field)) for lag in positions))
    yield sample("flakelog_group_partitions_left_out", left_out)


_GROUP_FIGURES = {
    "flakelog_group_committed_offset": "committed",
    "flakelog_group_lag_messages": "lag_messages",
    "flakelog_group_lag_bytes": "lag_bytes",
}
_TOPIC_COUNTERS = {
    "messages_in": "messages_in_total",
    "bytes_in": "in_bytes_total",
    "bytes_out": "out_bytes_total",
    "failed_produce": "failed_produce_requests_total",
    "failed_fetch": "failed_fetch_requests_total",
}


def _topics(
    metrics: Metrics, total: TopicFigures, logs: list[PartitionLog], topics_max: int
) -> Iterator[Metric]:
    topics = list(islice(metrics.by_topic(logs).items(), topics_max))
    for field, name in _TOPIC_COUNTERS.items():
        yield sample(f"flakelog_{name}", getattr(total, field))
        yield samples(f"flakelog_topic_{name}", (((topic,), getattr(figures, field)) for topic, figures in topics))


def _logs(logs: Iterable[PartitionLog]) -> Iterator[Metric]:
    keyed = [((log.topic, log.partition), log) for log in logs]
    yield samples("flakelog_log_start_offset", ((key, log.log_start_offset) for key, log in keyed))
    yield samples("flakelog_log_end_offset", ((key, log.log_end_offset) for key, log in keyed))
    yield samples("flakelog_log_size_bytes", ((key, log.segments.size) for key, log in keyed))
    yield samples("flakelog_log_segments", ((key, len(log.segments.all)) for key, log in keyed))
    yield samples("flakelog_log_appended_total", ((key, log.log_end_offset - log.opened_at) for key, log in keyed))


def _disk(disk: DiskWatch) -> Iterator[Metric]:
    yield sample("flakelog_disk_full", disk.is_full)
    yield sample("flakelog_disk_usable_bytes", disk.usable_bytes or 0)
    yield sample("flakelog_disk_full_since_timestamp_seconds", (disk.full_since_ms or 0) / 1000)


def _clock_waits(services: BrokerServices, now_ms: int) -> Iterator[Metric]:
    waits = services.clock_waits.waiting(now_ms)
    yield sample("flakelog_partitions_waiting_for_clock", len(waits))
    longest_ms = max((wait.waiting_ms for wait in waits.values()), default=0)
    yield sample("flakelog_clock_wait_max_seconds", longest_ms / 1000)
    named = islice(waits.items(), NAMED_MAX)
    seconds = ((split_name(name), wait.waiting_ms / 1000) for name, wait in named)
    yield samples("flakelog_partition_clock_wait_seconds", seconds)
    yield sample("flakelog_partitions_ahead_of_clock", len(services.clock_waits.ahead(now_ms)))


def _scrub(logs: LogManager) -> Iterator[Metric]:
    figures = logs.scrub
    yield sample("flakelog_scrub_passes_total", figures.passes)
    yield sample("flakelog_scrub_bytes_total", figures.bytes_read)
    yield sample("flakelog_scrub_errors_total", figures.errors)


def _cleaner(logs: LogManager) -> Iterator[Metric]:
    figures = logs.cleaner
    yield sample("flakelog_cleaner_passes_total", figures.passes)
    yield sample("flakelog_cleaner_read_bytes_total", figures.bytes_read)
    yield sample("flakelog_cleaner_written_bytes_total", figures.bytes_written)
    yield sample("flakelog_cleaner_records_read_total", figures.records_read)
    yield sample("flakelog_cleaner_records_written_total", figures.records_written)
    yield sample("flakelog_cleaner_poison_batches_total", figures.poison_batches)
    yield sample("flakelog_cleaner_last_pass_seconds", figures.last_pass_ms / 1000)
    yield sample("flakelog_cleaner_last_pass_ended_timestamp_seconds", figures.last_ended_ms / 1000)
    yield sample("flakelog_cleaner_max_dirty_ratio", figures.max_dirty_ratio)
    yield sample("flakelog_partitions_uncleanable", sum(log.uncleanable is not None for log in logs.all()))


def _ids(server: MeasuredServer) -> Iterator[Metric]:
    yield from _claims(server)
    yield sample("flakelog_ids_clock_skew_seconds", server.clock.skew_ms / 1000)
    yield samples("flakelog_ids_scope_info", [((server.scope,), 1)])
    peers = server.peers
    if peers is not None:
        yield sample("flakelog_ids_peers", peers.answering)
        if peers.offset_ms is not None:
            yield sample("flakelog_ids_clock_offset_seconds", peers.offset_ms / 1000)
    if server.service is None:
        return
    counters = server.service.counters
    issued = (((agent,), number) for agent, number in counters.by_user_agent.items())
    yield samples("flakelog_ids_issued_total", issued)
    refused = (((error,), number) for error, number in counters.exceptions.items())
    yield samples("flakelog_ids_refused_total", refused)
    yield sample("flakelog_ids_waits_total", counters.waits)
    yield sample("flakelog_ids_waited_seconds_total", counters.waited_ms / 1000)


def _claims(server: MeasuredServer) -> Iterator[Metric]:
    now_ms = server.clock.now_ms()
    held = [
        (claim.number, claim.worker) for claim in server.claims if claim.number is not None and claim.worker is not None
    ]
    lead = (((number,), (worker.limit_ms - now_ms) / 1000) for number, worker in held)
    yield samples("flakelog_ids_lead_seconds", lead)
    leases = (
        ((number,), max(worker.limit_ms - max(now_ms, worker.last_ms), 0) / 1000) for number, worker in held
    )
    yield samples("flakelog_ids_lease_left_seconds", leases)
