"""The overview: version, throughput, latency, disk and health of the server."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from broker.engine.api_table import name_of
from broker.engine.engine import Engine
from broker.metadata.coordinator_topics import one_copy_warning
from broker.metrics import BOUNDS_NS, Latency
from broker.version import VERSION
from flakelog.console.history import RateSeries
from flakelog.console.topics import totals_of
from flakelog.health import WatchedServer, health

THROUGHPUT = ("messages in", "bytes in", "bytes out")
BUSIEST = 12  # APIs in the table of latencies


class LatencyRow(NamedTuple):
    """An API since the start: how many requests, and upper bounds of their times, in ms."""

    api: str
    requests: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class Overview(NamedTuple):
    """The server now. `rates` are those of THROUGHPUT in a second, None before the second sample."""

    version: str
    cluster_id: str
    addresses: Mapping[str, str]
    problems: Sequence[str]
    topics: int
    partitions: int
    messages: int
    log_bytes: int
    connections: int
    groups: int
    open_transactions: int
    usable_bytes: int | None
    rates: Sequence[float | None]
    latencies: Sequence[LatencyRow]


def overview(server: WatchedServer, engine: Engine, rates: RateSeries) -> Overview:
    """Return the overview of a server with a broker."""
    services = engine.services
    logs = list(services.logs.all())
    messages, log_bytes = totals_of(logs)
    last = rates.last
    topics = services.metadata.topics()
    return Overview(
        version=VERSION,
        cluster_id=services.metadata.cluster_id,
        addresses=dict(server.addresses),
        problems=problems(health(server)[1]),
        topics=len(topics),
        partitions=sum(len(topic.partitions) for topic in topics),  # a new topic's logs are made one by one
        messages=messages,
        log_bytes=log_bytes,
        connections=engine.connections,
        groups=sum(services.coordinators.group_states().values()),
        open_transactions=sum(len(log.producers.open_transactions()) for log in logs),
        usable_bytes=services.logs.disk.usable_bytes,
        rates=(None,) * len(THROUGHPUT) if last is None else last.values,
        latencies=latencies(engine.metrics.requests),
    )


def counters(engine: Engine) -> tuple[float, ...]:
    """Return the counters whose rates are THROUGHPUT."""
    appended = sum(log.messages_in for log in engine.services.logs.all())
    return appended, engine.metrics.bytes_received, engine.metrics.bytes_sent


def problems(details: Mapping[str, Any]) -> list[str]:
    """Return the problems in the answer of /health, a sentence for each."""
    sentences = []
    if details["ids_problem"]:
        sentences.append(f"ids: {details['ids_problem']}")
    sentences += [f"{name} is offline: {why}" for name, why in details["partitions_offline"].items()]
    for name, wait in details["partitions_waiting_for_clock"].items():
        sentences.append(f"{name} refuses messages: its last id is {wait.get('ahead_ms', 0):,} ms ahead of the clock")
    if details["disk_full"]:
        sentences.append(f"the disk is full: {details['disk_full']['usable_bytes']:,} bytes are usable")
    if details["cluster"]:
        sentences += details["cluster"]["problems"]
        if details["cluster"]["danger"]:
            sentences.append(details["cluster"]["danger"])
        sentences += _replication(details["cluster"].get("replication", {}))
    return sentences


def _replication(states: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each partition with several copies that fails, and one for all that lack a copy."""
    sentences = [f"{name} has too few copies in sync for acks=all" for name in states.get("under_min_isr", ())]
    sentences += [f"{name} has no leader" for name in states.get("offline", ())]
    sentences += [f"{name} is copied no more: {reason}" for name, reason in states.get("failed", {}).items()]
    sentences += [f"{name} is not copied now: {reason}" for name, reason in states.get("stalled", {}).items()]
    if states.get("under_replicated"):
        sentences.append(f"partitions with a copy that is not in sync: {len(states['under_replicated']):,}")
    return sentences + [one_copy_warning(topic) for topic in states.get("coordinators_with_one_copy", ())]


def latencies(requests: Mapping[int, Latency]) -> list[LatencyRow]:
    """Return the APIs with the most requests."""
    busiest = sorted(requests.items(), key=lambda key_and_latency: -key_and_latency[1].number)[:BUSIEST]
    return [
        LatencyRow(
            name_of(key), latency.number, share_ms(latency, 0.5), share_ms(latency, 0.99), latency.max_ns / 1e6
        )
        for key, latency in busiest
        if latency.number
    ]


def share_ms(latency: Latency, share: float) -> float:
    """Return the time within which a share of the requests was answered, rounded up to a bucket's bound."""
    wanted, below, longest_ms = latency.number * share, 0, float(latency.max_ns) / 1e6
    for bound_ns, count in zip(BOUNDS_NS, latency.counts, strict=False):
        below += count
        if below >= wanted:
            return min(float(bound_ns) / 1e6, longest_ms)
    return longest_ms
