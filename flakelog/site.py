"""The HTTP site: ids, health, metrics."""

import json
from typing import TYPE_CHECKING, Any

from klein import Klein
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from twisted.web.server import Site

from idgen.http import add_id_routes

if TYPE_CHECKING:
    from flakelog.app import Server


class Figures:
    """What Prometheus reads, collected when it asks."""

    def __init__(self, server: "Server") -> None:
        self._server = server

    def collect(self) -> Any:
        engine, service = self._server.engine, self._server.service
        if engine is not None:
            yield from _log_figures(engine.services.logs.all())
            gauge = GaugeMetricFamily("flakelog_partitions_offline", "Partitions that are offline")
            gauge.add_metric([], len(engine.services.logs.offline))
            yield gauge
        skew = GaugeMetricFamily("flakelog_ids_clock_skew_ms", "How far the id clock is ahead of the wall clock")
        skew.add_metric([], self._server.clock.skew_ms)
        yield skew
        if service is not None:
            issued = CounterMetricFamily("flakelog_ids_issued", "Ids given by the id service", labels=["user_agent"])
            for user_agent, number in service.counters.by_user_agent.items():
                issued.add_metric([user_agent], number)
            yield issued


def _log_figures(logs: Any) -> Any:
    labels = ["topic", "partition"]
    end = GaugeMetricFamily("flakelog_log_end_offset", "The offset the next message gets", labels=labels)
    size = GaugeMetricFamily("flakelog_log_size_bytes", "Bytes of a partition's segments", labels=labels)
    segments = GaugeMetricFamily("flakelog_log_segments", "Segments of a partition", labels=labels)
    for log in logs:
        key = [log.topic, str(log.partition)]
        end.add_metric(key, log.log_end_offset)
        size.add_metric(key, log.size)
        segments.add_metric(key, len(log.segments))
    return (end, size, segments)


def make_site(server: "Server") -> Site:
    """The site of one server process."""
    app = Klein()
    registry = CollectorRegistry()
    registry.register(Figures(server))

    @app.route("/health", methods=["GET"])
    def health(request: Any) -> bytes:
        engine = server.engine
        offline = engine.services.logs.offline if engine is not None else {}
        problem = server.service.claim.problem if server.service is not None else None
        healthy = not offline and problem is None
        request.setResponseCode(200 if healthy else 503)
        request.setHeader(b"Content-Type", b"application/json")
        body = {
            "healthy": healthy,
            "addresses": server.addresses,
            "ids_unique_in": server.scope,
            "ids_problem": problem,
            "clock_skew_ms": server.clock.skew_ms,
            "partitions_offline": offline,
        }
        return json.dumps(body).encode()

    @app.route("/metrics", methods=["GET"])
    def metrics(request: Any) -> bytes:
        request.setHeader(b"Content-Type", b"text/plain; version=0.0.4; charset=utf-8")
        return generate_latest(registry)

    if server.service is not None:
        add_id_routes(app, server.service, server.clock, server.reactor)
    site = Site(app.resource())  # type: ignore[no-untyped-call]
    site.noisy = False
    return site
