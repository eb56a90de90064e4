"""The HTTP site of a program that works on logs: health and metrics, for the names of this machine only.

Which names these are, idgen/http_hosts.py says.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from klein import Klein
from prometheus_client import CollectorRegistry

from flakelog.config import ServerConfig
from flakelog.metrics_page import MetricsPage
from idgen.http import SmallSite
from idgen.http_hosts import OwnHosts

Verdict = tuple[bool, Mapping[str, Any]]
"""Whether all is well, and the details."""


def make_site(
    health: Callable[[], Verdict], ready: Callable[[], Verdict], registry: CollectorRegistry, hosts: OwnHosts
) -> SmallSite:
    """Return the site: /health and /health/ready answer 503 if not all is well."""
    app = Klein()
    page = MetricsPage(registry)

    @app.route("/health", methods=["GET"])
    def is_healthy(request: Any) -> bytes:
        return _answer(request, *health())

    @app.route("/health/live", methods=["GET"])
    def is_live(request: Any) -> bytes:
        return _answer(request, True, {"live": True})

    @app.route("/health/ready", methods=["GET"])
    def is_ready(request: Any) -> bytes:
        return _answer(request, *ready())

    @app.route("/metrics", methods=["GET"])
    def metrics(request: Any) -> Any:
        return page.render(request)

    times = ServerConfig()
    return SmallSite(app.resource(), hosts, idle_ms=times.http_idle_ms, request_ms=times.http_request_ms)


def _answer(request: Any, good: bool, body: Mapping[str, Any]) -> bytes:
    request.setResponseCode(200 if good else 503)
    request.setHeader(b"Content-Type", b"application/json")
    return json.dumps(body).encode()
