"""The HTTP site: ids, health, metrics, the web console."""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from klein import Klein
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool

from broker.engine.engine import Engine
from flakelog import health as told
from flakelog.figures import registry_of
from flakelog.metrics_page import MetricsPage
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


class SiteServer(told.WatchedServer, Protocol):
    """The parts of a server process that the site shows."""

    settings: Settings
    reactor: Any


def make_site(server: SiteServer, line: IdQueue, hosts: OwnHosts) -> SmallSite:
    """Return the HTTP site of one server process."""
    app = Klein()
    app.url_map.merge_slashes = False  # as the console, which shares it
    page = MetricsPage(registry_of(server, server.settings.server.metrics_partitions_max))

    @app.route("/health", methods=["GET"])
    def health(request: Any) -> bytes:
        return _answer(request, *told.health(server))

    @app.route("/health/live", methods=["GET"])
    def live(request: Any) -> bytes:
        """Answer 200 always, because a process that hangs does not answer."""
        return _answer(request, True, {"live": True})

    @app.route("/health/ready", methods=["GET"])
    def ready(request: Any) -> bytes:
        return _answer(request, *told.ready(server))

    @app.route("/metrics", methods=["GET"])
    def metrics(request: Any) -> Any:
        return page.render(request)

    if server.service is not None:
        add_id_routes(app, server.service, line, HEALTH)
    if server.engine is not None and server.settings.server.console_enable:
        _add_console(app, server, server.engine)
    times = server.settings.server
    return SmallSite(app.resource(), hosts, idle_ms=times.http_idle_ms, request_ms=times.http_request_ms)


def _add_console(app: Klein, server: SiteServer, engine: Engine) -> None:
    """Serve the console at / and below /console/. Its first request loads it, because most servers never get one.

    A thread imports it and compiles its templates, because the broker's clients would wait for that, half a second.
    """
    made: list[Any] = []

    def load() -> tuple[Any, Any]:
        from flakelog.console.pages import environment
        from flakelog.console.shell import Console

        return Console, environment()

    def make(loaded: tuple[Any, Any]) -> Any:
        console, templates = loaded
        if not made:
            made.append(console(server, engine, templates).app().resource())
        return made[0]

    @app.route("/console", methods=["GET", "HEAD"], endpoint="console_without_slash")
    def home(request: Any) -> bytes:
        request.redirect(b"/")
        return b""

    @app.route("/", methods=["GET", "HEAD"], endpoint="console_home")
    @app.route("/console/", methods=["GET", "HEAD", "POST"], branch=True, endpoint="console")
    def console(request: Any) -> Any:
        if made:
            return made[0]
        loaded: Deferred[tuple[Any, Any]] = deferToThreadPool(server.reactor, server.reactor.getThreadPool(), load)
        return loaded.addCallback(make)


def _answer(request: Any, good: bool, body: Mapping[str, Any]) -> bytes:
    request.setResponseCode(200 if good else 503)
    request.setHeader(b"Content-Type", b"application/json")
    return json.dumps(body).encode()
