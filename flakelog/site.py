"""The HTTP site: ids, health, metrics."""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from klein import Klein
from prometheus_client import generate_latest

from flakelog.figures import MeasuredServer, registry_of
from flakelog.settings import Settings
from idgen.http import SmallSite, add_id_routes
from idgen.http_api import Route
from idgen.http_hosts import OwnHosts
from idgen.server import IdQueue

_NOT_WELL = {503: "it is not"}
HEALTH = (
    Route("GET", "/health", "health", "Whether all is well, for people.", "Health", refusals=_NOT_WELL),
    Route("GET", "/health/live", "live", "Whether the process answers.", "Live"),
    Route("GET", "/health/ready", "ready", "Whether to send it work.", "Ready", refusals=_NOT_WELL),
)


class SiteServer(MeasuredServer, Protocol):
    """The parts of a server process that the site shows."""

    settings: Settings
    addresses: dict[str, str]

    @property
    def serving(self) -> bool: ...

    @property
    def stopped(self) -> bool: ...


def make_site(server: SiteServer, line: IdQueue, hosts: OwnHosts) -> SmallSite:
    """Return the HTTP site of one server process."""
    app = Klein()
    registry = registry_of(server)

    @app.route("/health", methods=["GET"])
    def health(request: Any) -> bytes:
        engine = server.engine
        offline = engine.services.logs.offline if engine is not None else {}
        problem = next((each.problem for each in server.claims if each.problem is not None), None)
        healthy = not offline and problem is None
        body = {
            "healthy": healthy,
            "addresses": server.addresses,
            "ids_unique_in": server.scope,
            "ids_problem": problem,
            "clock_skew_ms": server.clock.skew_ms,
            "clock_offset_ms": server.peers.offset_ms if server.peers is not None else None,
            "partitions_offline": offline,
        }
        return _answer(request, healthy, body)

    @app.route("/health/live", methods=["GET"])
    def live(request: Any) -> bytes:
        """Answer 200 always, because a process that hangs does not answer."""
        return _answer(request, True, {"live": True})

    @app.route("/health/ready", methods=["GET"])
    def ready(request: Any) -> bytes:
        """Answer 200 if this server should receive work, else 503.

        It should not once it was asked to stop, or while it can issue no ids. An offline partition is listed but does
        not count, because the server serves the others and no other server could serve it. An unreachable registry does
        not count while ids can be issued without it, because otherwise all servers would stop being ready together.
        """
        now_ms = server.clock.now_ms()
        problem = next((why for each in server.claims if (why := each.why_no_ids(now_ms)) is not None), None)
        fine = server.serving and problem is None
        offline = server.engine.services.logs.offline if server.engine is not None else {}
        body = {"ready": fine, "stopping": server.stopped, "ids_problem": problem, "partitions_offline": offline}
        return _answer(request, fine, body)

    @app.route("/metrics", methods=["GET"])
    def metrics(request: Any) -> bytes:
        request.setHeader(b"Content-Type", b"text/plain; version=0.0.4; charset=utf-8")
        return generate_latest(registry)

    if server.service is not None:
        add_id_routes(app, server.service, line, HEALTH)
    times = server.settings.server
    return SmallSite(app.resource(), hosts, idle_ms=times.http_idle_ms, request_ms=times.http_request_ms)


def _answer(request: Any, good: bool, body: Mapping[str, Any]) -> bytes:
    request.setResponseCode(200 if good else 503)
    request.setHeader(b"Content-Type", b"application/json")
    return json.dumps(body).encode()
