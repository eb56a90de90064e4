"""All metrics of `/metrics`: name, type, meaning and labels of each, as the collectors and docs/metrics.md use them.

Names follow Prometheus: base units (seconds, bytes), the unit at the end, `_total` for counters, `_timestamp_seconds`
for times, `_info` for a constant 1 with facts as labels. The figures follow early Kafka's MBeans (SocketServerStats,
BrokerTopicStat, LogFlushStats, ConsumerTopicStat).
"""

from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from broker.client import prometheus

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


class MetricRow(NamedTuple):
    """A metric. `name` is as Prometheus shows it, so a counter's ends in `_total`."""

    name: str
    kind: str
    meaning: str
    labels: tuple[str, ...] = ()


def _rows(*rows: tuple[str, ...]) -> tuple[MetricRow, ...]:
    """Return rows of (name without `flakelog_`, type, meaning, labels...)."""
    return tuple(MetricRow(f"flakelog_{name}", kind, text, tuple(labels)) for name, kind, text, *labels in rows)


SERVER = {
    "Server": _rows(
        ("build_info", GAUGE, "1; the label is the version of Flakelog", "version"),
    ),
    "Requests and connections": _rows(
        ("request_seconds", HISTOGRAM, "From a request to its answer, by API; waiting for data included", "api"),
        ("request_max_seconds", GAUGE, "The longest of them since the start", "api"),
        ("network_received_bytes_total", COUNTER, "Bytes read from clients"),
        ("network_sent_bytes_total", COUNTER, "Bytes written to clients"),
        ("connections", GAUGE, "Connections that are open"),
        ("connections_opened_total", COUNTER, "Connections that were opened"),
        ("tls_handshakes", GAUGE, "TLS handshakes that are under way or wait for others"),
        ("tls_handshakes_total", COUNTER, "TLS handshakes that ended, by outcome: succeeded or failed", "outcome"),
        ("tls_certificate_expiry_seconds", GAUGE, "When a listener's certificate expires, in Unix seconds", "listener"),
        ("tls_refused", GAUGE, "1 while a listener keeps old keys or trust, as its new ones were refused", "listener"),
        ("sasl_authentications", GAUGE, "Clients that authenticate by SASL, or wait for others that do"),
        ("sasl_authentications_total", COUNTER, "Logins by SASL that ended: succeeded or failed", "outcome"),
        ("sasl_expired_connections_total", COUNTER, "Connections closed because their session had expired"),
        ("denied_operations_total", COUNTER, "Operations that access rules denied"),
        ("throttled_total", COUNTER, "Requests, or connections, over a client quota", "quota"),
        ("throttled_seconds_total", COUNTER, "For how long their connections were not read", "quota"),
        ("delayed_requests", GAUGE, "Requests that wait for data, members or disks"),
        ("fetch_sessions", GAUGE, "Fetch sessions that are kept"),
        ("fetch_session_partitions", GAUGE, "Partitions that fetch sessions remember"),
        ("fetch_sessions_evicted_total", COUNTER, "Fetch sessions that made room for others"),
    ),
    "Topics": _rows(
        ("messages_in_total", COUNTER, "Messages appended, over all topics"),
        ("in_bytes_total", COUNTER, "Bytes appended, over all topics"),
        ("out_bytes_total", COUNTER, "Bytes fetched, over all topics"),
        ("failed_produce_requests_total", COUNTER, "Produces of a partition that were refused, over all topics"),
        ("failed_fetch_requests_total", COUNTER, "Fetches of a partition that were refused, over all topics"),
        ("topic_messages_in_total", COUNTER, "Messages appended, by topic", "topic"),
        ("topic_in_bytes_total", COUNTER, "Bytes appended, by topic", "topic"),
        ("topic_out_bytes_total", COUNTER, "Bytes fetched, by topic", "topic"),
        ("topic_failed_produce_requests_total", COUNTER, "Produces of a partition that were refused", "topic"),
        ("topic_failed_fetch_requests_total", COUNTER, "Fetches of a partition that were refused", "topic"),
    ),
    "Partitions": _rows(
        ("log_start_offset", GAUGE, "The first offset that exists", "topic", "partition"),
        ("log_end_offset", GAUGE, "The offset that the next message gets", "topic", "partition"),
        ("log_size_bytes", GAUGE, "Bytes of a partition's segments", "topic", "partition"),
        ("log_segments", GAUGE, "Segments of a partition", "topic", "partition"),
        ("log_appended_total", COUNTER, "Messages appended to a partition", "topic", "partition"),
        (
            "partitions_left_out",
            GAUGE,
            "Partitions without these five samples, because of flakelog.metrics.partitions.max",
        ),
        ("partitions_offline", GAUGE, "Partitions that are offline; /health says why"),
        ("open_files", GAUGE, "Files of partitions that are open; flakelog.max.open.files limits them"),
    ),
    "Consumer groups and transactions": _rows(
        ("groups", GAUGE, "Consumer groups, by state", "state"),
        ("group_committed_offset", GAUGE, "The offset a group has committed", "group", "topic", "partition"),
        (
            "group_lag_messages",
            GAUGE,
            "Messages from the committed offset to the end that consumers see",
            "group",
            "topic",
            "partition",
        ),
        (
            "group_lag_bytes",
            GAUGE,
            "Their size in the log, from the mean size of a message there",
            "group",
            "topic",
            "partition",
        ),
        (
            "group_partitions_left_out",
            GAUGE,
            "Committed offsets without these three samples, because of flakelog.metrics.group.partitions.max",
        ),
        ("transactional_ids", GAUGE, "Transactional ids, by state", "state"),
        (
            "open_transactions",
            GAUGE,
            "Transactions that are open in partitions; read_committed consumers wait for each",
        ),
    ),
    "Disks": _rows(
        ("log_flush_seconds", HISTOGRAM, "Syncs of logs and of the checkpoint"),
        ("log_flush_max_seconds", GAUGE, "The longest of them since the start"),
        ("disk_full", GAUGE, "1 while the disk of the data directory is full, else 0"),
        ("disk_usable_bytes", GAUGE, "Bytes that can still be written there, at the last check"),
        ("disk_full_since_timestamp_seconds", GAUGE, "When it became full, in seconds since 1970; 0 if it has space"),
        ("scrub_passes_total", COUNTER, "Passes of the scrub over all closed segments"),
        ("scrub_bytes_total", COUNTER, "Bytes that the scrub has read"),
        ("scrub_errors_total", COUNTER, "Segments that the scrub found damaged or could not read"),
    ),
    "Compaction": _rows(
        ("cleaner_passes_total", COUNTER, "Passes of the cleaner over a log"),
        ("cleaner_read_bytes_total", COUNTER, "Bytes that the cleaner has read"),
        ("cleaner_written_bytes_total", COUNTER, "Bytes that the cleaner kept, and wrote again"),
        ("cleaner_records_read_total", COUNTER, "Records that the cleaner has read"),
        ("cleaner_records_written_total", COUNTER, "Records that the cleaner kept"),
        ("cleaner_poison_batches_total", COUNTER, "Batches kept whole, because their records cannot be decoded"),
        ("cleaner_last_pass_seconds", GAUGE, "How long the last pass took"),
        (
            "cleaner_last_pass_ended_timestamp_seconds",
            GAUGE,
            "When the last pass ended, in seconds since 1970; 0 before the first",
        ),
        ("cleaner_max_dirty_ratio", GAUGE, "Share of the dirtiest log that is still to be cleaned"),
        ("partitions_uncleanable", GAUGE, "Partitions that the cleaner has given up; the log says why"),
    ),
    "Ids": _rows(
        ("ids_issued_total", COUNTER, "Ids given by the id service", "user_agent"),
        ("ids_refused_total", COUNTER, "Requests that the id service refused", "error"),
        ("ids_waits_total", COUNTER, "Times a request waited for ids that ran ahead of the clock"),
        ("ids_waited_seconds_total", COUNTER, "How long they waited"),
        ("ids_lead_seconds", GAUGE, "How far a worker number's high-water mark is ahead of the clock", "worker"),
        ("ids_lease_left_seconds", GAUGE, "How long its ids last if the registry stays silent", "worker"),
        ("ids_clock_skew_seconds", GAUGE, "How far the id clock is ahead of the wall clock"),
        ("ids_clock_offset_seconds", GAUGE, "This machine's clock less the mean of its peers'"),
        ("ids_peers", GAUGE, "Other id services whose clocks were asked"),
        ("ids_scope_info", GAUGE, "1; the label is where ids are unique", "unique_in"),
        ("partitions_ahead_of_clock", GAUGE, "Partitions whose last ids are ahead of the clock"),
        (
            "partitions_waiting_for_clock",
            GAUGE,
            "Partitions that refuse messages, because their last ids are ahead of the clock",
        ),
        ("clock_wait_max_seconds", GAUGE, "For how long the first of them has refused messages"),
        (
            "partition_clock_wait_seconds",
            GAUGE,
            "For how long each has refused messages; 50 of them at most",
            "topic",
            "partition",
        ),
    ),
}
"""The metrics of `flakelog server` and `flakelog idgen`, by subject."""

REPLICATION = {
    "Partitions with several copies": _rows(
        ("partitions_led", GAUGE, "Partitions that this broker leads"),
        ("under_replicated_partitions", GAUGE, "Partitions led here of which a copy is not in sync"),
        ("under_min_isr_partitions", GAUGE, "Partitions led here with fewer in sync than min.insync.replicas"),
        ("at_min_isr_partitions", GAUGE, "Partitions led here with exactly min.insync.replicas in sync"),
        ("failed_partitions", GAUGE, "Partitions that this broker has stopped to copy; /health says why"),
        (
            "partition_problem",
            GAUGE,
            "1 for a partition counted above, or below as without a leader; 50 of each problem at most",
            "topic",
            "partition",
            "problem",
        ),
        ("isr_shrinks_total", COUNTER, "Times the ISR of a partition led here lost a member that was late"),
        ("isr_expands_total", COUNTER, "Times it got a member that has caught up"),
        ("failed_isr_updates_total", COUNTER, "ISRs that the controller refused, or gave no answer to"),
        (
            "fetcher_lag_messages",
            GAUGE,
            "Committed messages of its leader that a copy here lacks",
            "topic",
            "partition",
        ),
        (
            "follower_lag_messages",
            GAUGE,
            "Messages of a partition led here that a follower has not fetched",
            "topic",
            "partition",
            "follower",
        ),
        ("replication_in_bytes_total", COUNTER, "Bytes copied from leaders"),
        ("replication_out_bytes_total", COUNTER, "Bytes fetched by followers"),
    ),
    "ZooKeeper": _rows(
        ("zookeeper_connected", GAUGE, "1 while ZooKeeper answers this broker, else 0"),
        ("zookeeper_disconnects_total", COUNTER, "Times this broker lost its connection to ZooKeeper"),
        ("zookeeper_expirations_total", COUNTER, "Sessions of this broker with ZooKeeper that have expired"),
    ),
    "Controller": _rows(
        ("controller_live_brokers", GAUGE, "Brokers that are live, as the controller sees them; 0 elsewhere"),
        ("controller_topics", GAUGE, "Topics of the cluster; 0 elsewhere"),
        ("controller_partitions", GAUGE, "Partitions of the cluster; 0 elsewhere"),
        ("active_controller", GAUGE, "1 at the broker that is the controller, else 0"),
        ("controller_offline_partitions", GAUGE, "Partitions of the cluster without a live leader; 0 elsewhere"),
        (
            "controller_preferred_replica_imbalance",
            GAUGE,
            "Partitions of the cluster that another broker leads than their preferred one; 0 elsewhere",
        ),
        ("controller_topics_to_delete", GAUGE, "Topics whose deletion has not ended; 0 elsewhere"),
        (
            "controller_topics_ineligible_to_delete",
            GAUGE,
            "Those of them that wait for a broker; /health names both; 0 elsewhere",
        ),
        ("controller_replicas_to_delete", GAUGE, "Copies of these topics that are still to be deleted; 0 elsewhere"),
        (
            "controller_replicas_ineligible_to_delete",
            GAUGE,
            "Those of them on brokers that are away, or whose disk failed; 0 elsewhere",
        ),
        (
            "unclean_leader_elections_total",
            COUNTER,
            "Leaders that this broker has elected which may lack acknowledged messages; the log says why",
        ),
        ("controller_unreached_brokers", GAUGE, "Live brokers that answer no order of this controller; 0 elsewhere"),
        ("image_stale", GAUGE, "1 while the controller does not reach this broker, which shows the past, else 0"),
    ),
}
"""The metrics of a server with `flakelog.replication.enable` in a cluster, besides those of SERVER."""

TOPOLOGY = {
    "Topologies": _rows(
        ("topology_running", GAUGE, "1 while the topology runs, 0 while it stops"),
        ("topology_in_flight", GAUGE, "Tuples that are in flight"),
        ("topology_emitted_total", COUNTER, "Tuples emitted", "component"),
        ("topology_executed_total", COUNTER, "Tuples that bolts executed", "component"),
        (
            "topology_acked_total",
            COUNTER,
            "Tuples acked: a spout's with all tuples that came from them, or a bolt's inputs",
            "component",
        ),
        ("topology_failed_total", COUNTER, "Tuples failed: a spout's, or a bolt's inputs", "component"),
        ("topology_timed_out_total", COUNTER, "Tuples of spouts that failed because they took too long", "component"),
        ("topology_errors_total", COUNTER, "Errors that components reported", "component"),
        ("topology_busy_seconds_total", COUNTER, "Time that bolts spent in the engine's thread", "component"),
        ("topology_latency_seconds", HISTOGRAM, "From a spout's emit to the last ack of its tree", "component"),
        ("topology_metric", GAUGE, "A component's own counters and gauges", "component", "name"),
        (
            "topology_messages_total",
            COUNTER,
            "Messages of a log, by what became of them; emitted and failed count attempts, also of undecodable ones",
            "component",
            "outcome",
        ),
        (
            "topology_outage_seconds",
            GAUGE,
            "How long messages of a spout fail because a service is down, so that one at a time is tried; 0 if none do",
            "component",
        ),
        (
            "topology_group_wait_seconds",
            GAUGE,
            "How long a spout has waited for its consumer group to share out the partitions; 0 if it does not wait",
            "component",
        ),
        ("topology_partitions", GAUGE, "Partitions, by phase", "component", "phase"),
        (
            "topology_lag_messages",
            GAUGE,
            "Messages from the first that is not settled to the end of the log",
            "component",
            "topic",
            "partition",
        ),
        (
            "topology_lag_bytes",
            GAUGE,
            "Their size in the log, from the mean size of a message",
            "component",
            "topic",
            "partition",
        ),
        (
            "topology_lag_seconds",
            GAUGE,
            "The age of the first message that is not settled",
            "component",
            "topic",
            "partition",
        ),
        (
            "topology_no_progress_seconds",
            GAUGE,
            "How long it has had messages and settled none, if that is longer than flakelog.spout.no.progress.ms; or 0",
            "component",
            "topic",
            "partition",
        ),
        ("topology_pending_messages", GAUGE, "Messages fetched and not settled", "component", "topic", "partition"),
        ("topology_settled_offset", GAUGE, "The first offset not settled", "component", "topic", "partition"),
        ("topology_fetched_offset", GAUGE, "The offset to fetch next", "component", "topic", "partition"),
        ("topology_end_offset", GAUGE, "The end of the log at the last fetch", "component", "topic", "partition"),
    ),
}
"""The metrics of `flakelog spout run --http-port`."""

MIRROR = {
    "Mirrors": _rows(
        ("mirror_running", GAUGE, "1 while the mirror copies, 0 while it is paused", "source"),
        ("mirror_records_total", COUNTER, "Records that the target has acknowledged", "source", "topic"),
        ("mirror_bytes_total", COUNTER, "Bytes of their batches", "source", "topic"),
        (
            "mirror_errors_total",
            COUNTER,
            "Batches and transactions that failed at the target; most are sent again",
            "source",
            "topic",
        ),
        ("mirror_topic_stopped", GAUGE, "1 for a topic that is no longer copied; /health says why", "source", "topic"),
        (
            "mirror_lag_messages",
            GAUGE,
            "Messages of the source that the target has not acknowledged",
            "source",
            "topic",
            "partition",
        ),
        (
            "mirror_copied_offset",
            GAUGE,
            "The source's offset before which all is copied",
            "source",
            "topic",
            "partition",
        ),
        ("mirror_end_offset", GAUGE, "The source's end at the last fetch", "source", "topic", "partition"),
    ),
}
"""The metrics of `flakelog mirror --http-port`; `source` has the brokers of the source."""

CLIENTS = {
    "Consumers": _rows(
        *((f"consumer_{name}_total", COUNTER, text, "client") for name, text, _ in prometheus.CONSUMER_COUNTERS),
        *((f"consumer_{name}", GAUGE, text, "client") for name, text, _ in prometheus.CONSUMER_GAUGES),
        *(
            (f"consumer_{name}", GAUGE, text, "client", "topic", "partition")
            for name, text, _ in prometheus.PARTITION_GAUGES
        ),
    ),
    "Producers": _rows(
        *((f"producer_{name}_total", COUNTER, text, "client") for name, text, _ in prometheus.PRODUCER_COUNTERS),
        *((f"producer_{name}", GAUGE, text, "client") for name, text, _ in prometheus.PRODUCER_GAUGES),
    ),
}
"""The metrics of a program's own clients, by `ClientMetrics`."""

PROCESSES = {
    "Processes": _rows(
        ("broker_up", GAUGE, "Whether a broker answers; it is one of the processes of this server", "broker"),
    ),
}

TABLES = SERVER, REPLICATION, PROCESSES, TOPOLOGY, MIRROR, CLIENTS
ALL = {row.name: row for sections in TABLES for rows in sections.values() for row in rows}


def family(name: str) -> Family:
    """Return a metric of the table without samples, to which a collector adds them."""
    row = ALL[name]
    if row.kind == COUNTER:
        return CounterMetricFamily(name, row.meaning, labels=row.labels)
    if row.kind == GAUGE:
        return GaugeMetricFamily(name, row.meaning, labels=row.labels)
    return HistogramMetricFamily(name, row.meaning, labels=row.labels)


def sample(name: str, value: float) -> Family:
    """Return a metric of the table that has no labels and one value."""
    return samples(name, [((), value)])


def samples(name: str, values: Iterable[tuple[Iterable[object], float]]) -> Family:
    """Return a counter or gauge of the table with a sample for each (values of its labels, value)."""
    described = family(name)
    assert not isinstance(described, HistogramMetricFamily), f"{name} has buckets"
    for labels, value in values:
        described.add_metric([str(label) for label in labels], value)
    return described


def histogram(name: str) -> HistogramMetricFamily:
    """Return a histogram of the table without samples."""
    described = family(name)
    assert isinstance(described, HistogramMetricFamily), f"{name} has no buckets"
    return described
