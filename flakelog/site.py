"""The HTTP site: ids, health, metrics, the web console."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from klein import Klein
from twisted.internet.defer import Deferred, succeed
from twisted.internet.threads import deferToThreadPool

from broker.engine.engine import Engine
from flakelog import health as told
from flakelog.config import ServerConfig
from flakelog.figures import registry_of
from flakelog.metrics_page import CONTENT_TYPE, MetricsPage, text_of
from flakelog.page_guard import OpenGuard, PageGuard, Serve
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
    guard = PageGuard(server.settings.server, server.clock.now_ms)
    if siblings is None:
        _add_pages(app, server, guard)
    else:
        _add_joined_pages(app, server, siblings, guard)

    @app.route("/health/live", methods=["GET"])
    def live(request: Any) -> bytes:
        """Answer 200 always, because a process that hangs does not answer."""
        return _answer(request, True, {"live": True})

    if server.service is not None:
        add_id_routes(app, server.service, line, _health_routes(server.settings.server))
    if server.engine is not None and server.settings.server.console_enable:
        if siblings is None:
            _add_console(app, server, server.engine)
        else:
            _add_forwarded_console(app, siblings)
    times = server.settings.server
    return SmallSite(app.resource(), hosts, idle_ms=times.http_idle_ms, request_ms=times.http_request_ms)


def _health_routes(config: ServerConfig) -> tuple[Route, ...]:
    """Return the routes of health, as OpenAPI describes them."""
    if config.http_health_open:
        return HEALTH
    guarded = {401: "it has no right token", 429: "too many wrong tokens came"}
    return HEALTH[0]._replace(refusals=_NOT_WELL | guarded), *HEALTH[1:]


def make_site_for_siblings(server: SiteServer) -> SmallSite:
    """Return the site at which the other brokers of the machine ask for the pages of this process."""
    app = Klein()
    app.url_map.merge_slashes = False
    _add_pages(app, server, OpenGuard())
    if server.engine is not None and server.settings.server.console_enable:
        _add_console(app, server, server.engine)
    times = server.settings.server
    return SmallSite(app.resource(), EVERY_HOST, idle_ms=times.http_idle_ms, request_ms=times.http_request_ms)


def _add_pages(app: Klein, server: SiteServer, guard: PageGuard) -> None:
    """Add the pages of this process."""
    page = _metrics_page(server)

    def health(request: Any) -> bytes:
        return _answer(request, *told.health(server))

    def ready(request: Any) -> bytes:
        is_ready, details = told.ready(server)
        return _answer(request, is_ready, details if guard.shows_details(request) else {"ready": is_ready})

    _route(app, "/health", guard.of_health(health))
    _route(app, "/health/ready", ready)
    _route(app, "/metrics", guard.of_metrics(page.render))


def _route(app: Klein, path: str, serve: Serve) -> None:
    @app.route(path, methods=["GET"], endpoint=path)
    def page(request: Any) -> Any:
        return serve(request)


def _add_joined_pages(app: Klein, server: SiteServer, siblings: "Siblings", guard: PageGuard) -> None:
    """Add pages that join those of all brokers of the machine."""
    from flakelog.siblings.joined_pages import joined_health, joined_metrics, joined_ready
    from flakelog.siblings.siblings import ANSWER_SECONDS, READY_SECONDS

    page = _metrics_page(server)

    def joined(request: Any, path: str, own: Mapping[str, Any], join: Join, seconds: float) -> Any:
        pages = siblings.pages(path, succeed(json.dumps(own).encode()), seconds)
        return pages.addCallback(lambda pages: _answer(request, *join(pages, siblings.without_answer(pages))))

    def health(request: Any) -> Any:
        return joined(request, "/health", told.health(server)[1], joined_health, ANSWER_SECONDS)

    def ready(request: Any) -> Any:
        shown = joined_ready if guard.shows_details(request) else without_details
        return joined(request, "/health/ready", told.ready(server)[1], shown, READY_SECONDS)

    def without_details(pages: Mapping[int, bytes], without_answer: Sequence[int]) -> tuple[bool, Mapping[str, Any]]:
        is_ready, _ = joined_ready(pages, without_answer)
        return is_ready, {"ready": is_ready}

    def metrics(request: Any) -> Any:
        request.setHeader(b"Content-Type", CONTENT_TYPE)
        pages = siblings.pages("/metrics", page.text())
        return pages.addCallback(lambda pages: text_of(joined_metrics(pages, siblings.without_answer(pages))))

    _route(app, "/health", guard.of_health(health))
    _route(app, "/health/ready", ready)
    _route(app, "/metrics", guard.of_metrics(metrics))


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
