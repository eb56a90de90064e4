"""The figures of producers and consumers as Prometheus metrics."""

import re

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from broker.client.consumer_figures import ConsumerFigures, FetchFigures, PartitionFigures
from broker.client.producer_figures import ProducerCounts
from broker.client.prometheus import ClientMetrics
from flakelog.metric_table import CLIENTS


class Consumer:
    def figures(self):
        fetches = FetchFigures(requests=4, request_ms=200.0, request_ms_max=90.0, records=10, bytes=1_000)
        mine = PartitionFigures(position=10, end=14, records=10, bytes=1_000)
        return ConsumerFigures(2.0, fetches, {("orders", 0): mine})


class Message:
    def __len__(self):
        return 7

    def latency(self):
        return 0.25


class Producer:
    def figures(self):
        counts = ProducerCounts(10.0)
        counts.sent = 3
        counts.failed = 1
        counts.acknowledge([Message()])
        counts.statistics('{"brokers": {"a": {"tx": 5, "rtt": {"cnt": 2, "avg": 2000, "max": 3000}}, "b": {"tx": 0}}}')
        return counts.figures(now_s=15.0)


def text_of(**clients):
    registry = CollectorRegistry()
    registry.register(ClientMetrics(**clients))
    return generate_latest(registry).decode()


def samples(**clients):
    families = text_string_to_metric_families(text_of(**clients))
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def test_a_consumer_tells_requests_records_and_the_lag_of_each_partition():
    metrics = samples(orders=Consumer())
    assert metrics["flakelog_consumer_fetch_requests_total", "orders"] == 4
    assert metrics["flakelog_consumer_fetch_seconds_total", "orders"] == 0.2
    assert metrics["flakelog_consumer_lag_messages", "orders", "0", "orders"] == 4
    assert metrics["flakelog_consumer_lag_bytes", "orders", "0", "orders"] == 400
    assert ("flakelog_consumer_committed_offset", "orders", "0", "orders") not in metrics


def test_a_producer_tells_what_it_sent_and_dropped():
    metrics = samples(out=Producer())
    assert metrics["flakelog_producer_messages_total", "out"] == 3
    assert metrics["flakelog_producer_dropped_messages_total", "out"] == 1
    assert metrics["flakelog_producer_acknowledged_bytes_total", "out"] == 7
    assert metrics["flakelog_producer_acknowledgement_max_seconds", "out"] == 0.25
    assert metrics["flakelog_producer_requests_total", "out"] == 5
    assert metrics["flakelog_producer_request_max_seconds", "out"] == 0.003


def test_figures_have_rates_and_means():
    consumer, producer = Consumer().figures(), Producer().figures()
    assert (consumer.requests_per_second, consumer.request_ms_avg) == (2.0, 50.0)
    assert (consumer.lag, consumer.lag_bytes) == (4, 400)
    assert (producer.requests_per_second, producer.seconds, producer.queued) == (1.0, 5.0, 1)
    assert (producer.request_ms_avg, producer.ack_ms_avg) == (2.0, 250.0)


def test_the_table_of_metrics_has_exactly_these():
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text_of(orders=Consumer(), out=Producer()), re.MULTILINE))
    assert types == {row.name: row.kind for rows in CLIENTS.values() for row in rows}
