"""The HTTP site of a program that works on logs: health and metrics, for the names of this machine only.

Which names these are, idgen/http_hosts.py says.
"""

import json
from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import Any

from klein import Klein
from prometheus_client import CollectorRegistry

from flakelog.config import ServerConfig
from flakelog.metrics_page import MetricsPage
from flakelog.page_guard import PageGuard
from idgen.http import SmallSite
from idgen.http_hosts import OwnHosts

Verdict = tuple[bool, Mapping[str, Any]]
"""Whether all is well, and the details."""


def make_site(
    health: Callable[[], Verdict],
    ready: Callable[[], Verdict],
    registry: CollectorRegistry,
    hosts: OwnHosts,
    config: ServerConfig,
) -> SmallSite:
    """Return the site: /health and /health/ready answer 503 if not all is well.

    `config` says which pages need a token, and the times of a connection.
    """
    app = Klein()
    page = MetricsPage(registry)
    guard = PageGuard(config, lambda: monotonic_ns() // 1_000_000)

    def all_health(request: Any) -> bytes:
        return _answer(request, *health())

    shown_health, shown_metrics = guard.of_health(all_health), guard.of_metrics(page.render)

    @app.route("/health", methods=["GET"])
    def is_healthy(request: Any) -> Any:
        return shown_health(request)

    @app.route("/health/live", methods=["GET"])
    def is_live(request: Any) -> bytes:
        return _answer(request, True, {"live": True})

    @app.route("/health/ready", methods=["GET"])
    def is_ready(request: Any) -> bytes:
        is_ready, details = ready()
        return _answer(request, is_ready, details if guard.shows_details(request) else {"ready": is_ready})

    @app.route("/metrics", methods=["GET"])
    def metrics(request: Any) -> Any:
        return shown_metrics(request)

    return SmallSite(app.resource(), hosts, idle_ms=config.http_idle_ms, request_ms=config.http_request_ms)


def _answer(request: Any, good: bool, body: Mapping[str, Any]) -> bytes:
    request.setResponseCode(200 if good else 503)
    request.setHeader(b"Content-Type", b"application/json")
    return json.dumps(body).encode()
