"""The HTTP site of a topology: health and metrics, for the names of this machine only (idgen/http_hosts.py)."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from klein import Klein

from flakelog.config import ServerConfig
from flakelog.metrics_page import MetricsPage
from flakelog.topology_figures import registry_of
from idgen.http import SmallSite
from idgen.http_hosts import OwnHosts
from spout.figures.model import Snapshot

PHASES_READ = ("running", "closing")


def health(snapshot: Snapshot) -> tuple[bool, Mapping[str, Any]]:
    """Return whether all is well, and the details.

    It is not while a partition has an error, stands still or is not read, or in an outage.
    """
    problems = snapshot.problems
    return not problems, {
        "healthy": not problems,
        "topology": snapshot.topology,
        "state": snapshot.state,
        "problems": problems,
        "lag_messages": snapshot.lag("lag"),
        "lag_bytes": snapshot.lag("lag_bytes"),
        "lag_ms": snapshot.lag("lag_ms"),
    }


def ready(snapshot: Snapshot) -> tuple[bool, Mapping[str, Any]]:
    """Return whether the topology runs and reads all its partitions, and which ones it does not read yet."""
    not_read = [
        f"{partition.topic}-{partition.partition}"
        for partition in snapshot.partitions
        if partition.phase not in PHASES_READ
    ]
    fine = snapshot.state == "running" and not not_read
    return fine, {"ready": fine, "state": snapshot.state, "partitions_not_read": not_read}


def make_site(take: Callable[[], Snapshot], hosts: OwnHosts) -> SmallSite:
    """Return the HTTP site of a topology; `take` returns its figures."""
    app = Klein()
    page = MetricsPage(registry_of(take))

    @app.route("/health", methods=["GET"])
    def is_healthy(request: Any) -> bytes:
        return _answer(request, *health(take()))

    @app.route("/health/live", methods=["GET"])
    def is_live(request: Any) -> bytes:
        return _answer(request, True, {"live": True})

    @app.route("/health/ready", methods=["GET"])
    def is_ready(request: Any) -> bytes:
        return _answer(request, *ready(take()))

    @app.route("/metrics", methods=["GET"])
    def metrics(request: Any) -> Any:
        return page.render(request)

    times = ServerConfig()
    return SmallSite(app.resource(), hosts, idle_ms=times.http_idle_ms, request_ms=times.http_request_ms)


def _answer(request: Any, good: bool, body: Mapping[str, Any]) -> bytes:
    request.setResponseCode(200 if good else 503)
    request.setHeader(b"Content-Type", b"application/json")
    return json.dumps(body).encode()
