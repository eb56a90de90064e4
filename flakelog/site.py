"""The HTTP site: ids, health, metrics, the web console."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from klein import Klein
from twisted.internet.defer import Deferred, succeed
from twisted.internet.threads import deferToThreadPool

from broker.engine.engine import Engine
from flakelog import health as told
from flakelog.figures import registry_of
from flakelog.metrics_page import CONTENT_TYPE, MetricsPage, text_of
from flakelog.settings import Settings
from idgen.http import SmallSite, add_id_routes
from idgen.http_api import Route
from idgen.http_hosts import EVERY_HOST, OwnHosts
from idgen.server import IdQueue

if TYPE_CHECKING:
    from flakelog.siblings.siblings import Siblings

Join = Callable[[Mapping[int, bytes], Sequence[int]], tuple[bool, Mapping[str, Any]]]
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


def make_site(
    server: SiteServer, line: IdQueue, hosts: OwnHosts, siblings: "Siblings | None" = None
) -> SmallSite:
    """Return the HTTP site of one server process; with `siblings`, it answers for all brokers of the machine."""
    app = Klein()
    app.url_map.merge_slashes = False  # as the console, which shares it
    if siblings is None:
        _add_pages(app, server)
    else:
        _add_joined_pages(app, server, siblings)

    @app.route("/health/live", methods=["GET"])
    def live(request: Any) -> bytes:
        """Answer 200 always, because a process that hangs does not answer."""
        return _answer(request, True, {"live": True})

    if server.service is not None:
        add_id_routes(app, server.service, line, HEALTH)
    if server.engine is not None and server.settings.server.console_enable:
        if siblings is None:
            _add_console(app, server, server.engine)
        else:
            _add_forwarded_console(app, siblings)
    times = server.settings.server
    return SmallSite(app.resource(), hosts, idle_ms=times.http_idle_ms, request_ms=times.http_request_ms)


def make_site_for_siblings(server: SiteServer) -> SmallSite:
    """Return the site at which the other brokers of the machine ask for the pages of this process."""
    app = Klein()
    app.url_map.merge_slashes = False
    _add_pages(app, server)
    if server.engine is not None and server.settings.server.console_enable:
        _add_console(app, server, server.engine)
    times = server.settings.server
    return SmallSite(app.resource(), EVERY_HOST, idle_ms=times.http_idle_ms, request_ms=times.http_request_ms)


def _add_pages(app: Klein, server: SiteServer) -> None:
    """Add the pages of this process."""
    page = _metrics_page(server)

    @app.route("/health", methods=["GET"])
    def health(request: Any) -> bytes:
        return _answer(request, *told.health(server))

    @app.route("/health/ready", methods=["GET"])
    def ready(request: Any) -> bytes:
        return _answer(request, *told.ready(server))

    @app.route("/metrics", methods=["GET"])
    def metrics(request: Any) -> Any:
        return page.render(request)


def _add_joined_pages(app: Klein, server: SiteServer, siblings: "Siblings") -> None:
    """Add pages that join those of all brokers of the machine."""
    from flakelog.siblings.joined_pages import joined_health, joined_metrics, joined_ready
    from flakelog.siblings.siblings import ANSWER_SECONDS, READY_SECONDS

    page = _metrics_page(server)

    def joined(request: Any, path: str, own: Mapping[str, Any], join: Join, seconds: float) -> Any:
        pages = siblings.pages(path, succeed(json.dumps(own).encode()), seconds)
        return pages.addCallback(lambda pages: _answer(request, *join(pages, siblings.without_answer(pages))))

    @app.route("/health", methods=["GET"])
    def health(request: Any) -> Any:
        return joined(request, "/health", told.health(server)[1], joined_health, ANSWER_SECONDS)

    @app.route("/health/ready", methods=["GET"])
    def ready(request: Any) -> Any:
        return joined(request, "/health/ready", told.ready(server)[1], joined_ready, READY_SECONDS)

    @app.route("/metrics", methods=["GET"])
    def metrics(request: Any) -> Any:
        request.setHeader(b"Content-Type", CONTENT_TYPE)
        pages = siblings.pages("/metrics", page.text())
        return pages.addCallback(lambda pages: text_of(joined_metrics(pages, siblings.without_answer(pages))))


def _metrics_page(server: SiteServer) -> MetricsPage:
    return MetricsPage(registry_of(server, server.settings.server.metrics_partitions_max))


def _add_console(app: Klein, server: SiteServer, engine: Engine) -> None:
    """Serve the console at / and below /console/. Its first request loads it, because most servers never get one.

    A thread imports it and compiles its templates, because the broker's clients would wait for that, half a second.
    """
    made: list[Any] = []

    def load() -> tuple[Any, Any]:
        from flakelog.console.access import Access
        from flakelog.console.pages import environment
        from flakelog.console.shell import Console

        return Console, environment(Access(engine.services).principal)

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


def _add_forwarded_console(app: Klein, siblings: "Siblings") -> None:
    """Serve the console of the first broker of the machine."""
    from flakelog.siblings.forwarded_pages import ForwardedPages

    pages = ForwardedPages(siblings)

    @app.route("/", methods=["GET", "HEAD"], endpoint="console_home")
    @app.route("/console", methods=["GET", "HEAD"], endpoint="console_without_slash")
    @app.route("/console/", methods=["GET", "HEAD", "POST"], branch=True, endpoint="console")
    def console(request: Any) -> Any:
        return pages


def _answer(request: Any, good: bool, body: Mapping[str, Any]) -> bytes:
    request.setResponseCode(200 if good else 503)
    request.setHeader(b"Content-Type", b"application/json")
    return json.dumps(body).encode()
