"""SHELL (Twisted, klein, a clock, chance): the console's routes. A route asks the gate, and renders a page."""

import secrets
from collections.abc import Callable
from importlib.resources import files
from typing import Any, cast
from urllib.parse import quote

from jinja2 import Environment
from klein import Klein
from twisted.internet.defer import CancelledError, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from werkzeug.exceptions import HTTPException

from broker.client.address import Address
from broker.client.errors import BrokerError, ClientError
from broker.engine.engine import Engine
from broker.record.batch import CorruptBatch
from broker.wire.errors import WireError
from flakelog.console.access import Access, MissingRight
from flakelog.console.action_pages import ActionPages
from flakelog.console.broker_pages import HOME, BrokerPages, ConsoleServer, LivePart
from flakelog.console.kept_pages import KeptPages
from flakelog.console.message_pages import MessagePages, Raw, TailOf
from flakelog.console.messages import Tail, positions_text
from flakelog.console.mirror_pages import PAGES as MIRROR_PAGES
from flakelog.console.mirror_pages import MirrorPages
from flakelog.console.own_client import OwnBroker
from flakelog.console.pages import NotThere, View, error_view, missing_view, render, render_part, render_rows
from flakelog.console.rule_pages import RulePages
from flakelog.console.search_pages import SearchPages
from flakelog.console.security import (
    FORWARDED,
    HEADERS,
    CameByLink,
    NeedsLogin,
    RequestRefused,
    SecurityHeaders,
    Session,
    cookie_name,
    gate_of,
    is_in_plain_text,
)
from flakelog.console.streams import Live, Streams, Tick
from flakelog.console.visit import BadField, Fields, PageTimeout
from flakelog.console.work_pages import WorkPages
from flakelog.operations.errors import NotPossible

STATIC_TYPES = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "txt": "text/plain"}
STATIC_CACHE = "public, max-age=3600"
LOGIN = "/console/login"
KEPT = "/console/kept"
# This page loads its own address again. The browser then sends the session's cookie, because the page is ours.
ASK_AGAIN = b"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Flakelog</title><meta http-equiv="refresh" content="0">
<link rel="icon" href="/console/static/icon.svg">
<p><a href="">Show the page</a></p></html>
"""
EXPECTED = (NotThere, RequestRefused, MissingRight, ClientError, WireError, CorruptBatch)
"""The errors that end a stream without a line in the log."""

log = Logger()


class Visit:
    """A request, and the session it belongs to."""

    def __init__(self, request: Any, fields: Fields, headers: SecurityHeaders, session: Session) -> None:
        self.request = request
        self.fields = fields
        self.headers = headers
        self.session = session

    @property
    def peer(self) -> str:
        return _peer(self.request)


Serve = Callable[[Visit], Any]


class Console:
    """The console of one server process that has a broker."""

    def __init__(self, server: ConsoleServer, engine: Engine, templates: Environment) -> None:
        self.server = server
        access = Access(engine.services)
        self.pages = BrokerPages(server, engine, access)
        config = server.settings.server
        guarded = bool(access.principal)
        self.gate = gate_of(config, server.addresses["http"], secrets.token_bytes(32), has_authorizer=guarded)
        self.templates = templates
        node, page_seconds = engine.services.node, config.console_page_timeout_ms / 1_000
        advertised = None if engine.services.is_alone else Address(node.host, node.port)
        assert server.own_place is not None, "a server with an engine has a place"
        jobs = OwnBroker(server.reactor, server.own_place, page_seconds, advertised, access.explained)
        self.messages = MessagePages(engine.services, access, jobs, config, self.pages.layout)
        self.search = SearchPages(engine.services, access, jobs, config, self._now_ms)
        self.actions = ActionPages(engine.services, access, jobs, self._now_ms)
        self.work = WorkPages(server, engine.services, access, jobs, config)
        self.mirrors = MirrorPages(server, jobs)
        self.rules = RulePages(engine.services, jobs)
        self.streams = Streams(server.reactor, config.console_max_streams, EXPECTED)
        self._is_tls = config.http_ssl_enable
        self._cookie = cookie_name(server.addresses["http"], is_tls=self._is_tls)
        self._static = _static_files()
        self._kept = KeptPages()

    # --- routes --------------------------------------------------------------------------------------------------

    def app(self) -> Klein:
        """Return the routes below /console/; the first one also answers at /."""
        app = Klein()
        app.url_map.merge_slashes = False  # an address with // is not there; werkzeug would answer 308 without a target
        pages: dict[str, Callable[..., Any]] = {
            "/": self.pages.overview_page,
            "/topics": self.pages.topics_page,
            "/topics/<name>": self.pages.topic_page,
            "/topics/<name>/messages": self.messages.messages_page,
            "/topics/<name>/message": self.messages.message_page,
            "/topics/<name>/search": self.search.search_page,
            "/topics/<name>/raw": self.messages.raw,
            "/find": self.messages.find_page,
            "/groups": self.pages.groups_page,
            "/group": self.pages.group_page,
            "/transactions": self.pages.transactions_page,
            "/topologies": self.work.topologies_page,
            "/topology": self.work.topology_page,
            "/letters/<name>": self.work.letters_page,
            "/mirrors": self.mirrors.mirrors_page,
            "/mirror": self.mirrors.mirror_page,
            "/replays": self.work.replays_page,
            "/replay": self.work.replay_page,
            "/quotas": self.pages.quotas_page,
            "/rules": self.rules.rules_page,
            "/users": self.rules.users_page,
            "/ids": self.pages.ids_page,
        }
        for path, page in pages.items():
            self._page(app, path, page)
        self._page(app, "/do/<name>", self.actions.form_page)
        app.route("/do/<name>", methods=["POST"], endpoint="do")(self._do)
        app.route("/kept/<key>", methods=["GET"], endpoint="kept")(self._show_kept)
        app.route("/events", methods=["GET"], endpoint="events")(self._events)
        app.route("/login", methods=["GET", "POST"], endpoint="login")(self._login)
        app.route("/logout", methods=["POST"], endpoint="logout")(self._logout)
        app.route("/static/<name>", methods=["GET"], endpoint="static")(self._file)

        @app.handle_errors(HTTPException)
        def refused(request: Any, failure: Failure) -> Any:
            _set(request, HEADERS)
            error = cast(HTTPException, failure.value)
            return self._error(request, None, error.code or 500, error.description or error.name)

        return app

    def _page(self, app: Klein, path: str, page: Callable[..., Any]) -> None:
        def serve(request: Any, **named: str) -> Any:
            return self._serve(request, lambda visit: page(visit.fields, **named))

        app.route(path, methods=["GET"], endpoint=path)(serve)

    def _serve(self, request: Any, page: Serve) -> Any:
        """Answer a request with the page, or with the reason why it is not shown."""
        _set(request, HEADERS)
        try:
            visit = self._visit(request)
        except CameByLink:
            request.setHeader(b"Content-Type", b"text/html; charset=utf-8")
            return ASK_AGAIN
        except NeedsLogin:
            target = quote(request.uri.decode(errors="replace"), safe="/?=&")
            address = f"{LOGIN}?next={quote(target, safe='')}"
            if request.getHeader(b"hx-request"):  # a search on a page whose session has ended
                request.setHeader(b"HX-Redirect", address.encode())
                return b""
            return _redirect(request, address)
        except (RequestRefused, BadField) as error:
            status = getattr(error, "status", 400)
            if status == 401:
                request.setHeader(b"WWW-Authenticate", b"Bearer")
                log.warn("console: {peer} sent a wrong token", peer=_peer(request))
            return self._error(request, None, status, str(error))
        shown = maybeDeferred(page, visit)
        shown.addCallback(lambda view: self._answer(request, visit.session, view))
        return shown.addErrback(self._failed, request, visit.session)

    def _visit(self, request: Any) -> Visit:
        headers = self._security_headers(request)
        session = self.gate.session(headers, self._now_ms(), secrets.token_hex(16))
        self._give(request, session)
        return Visit(request, Fields(request.args), headers, session)

    def _answer(self, request: Any, session: Session | None, view: Any) -> Any:
        if isinstance(view, Raw):
            return _download(request, view)
        if isinstance(view, str):
            return _redirect(request, view)
        if not isinstance(view, View):
            return view
        request.setResponseCode(view.status)
        request.setHeader(b"Content-Type", b"text/html; charset=utf-8")
        return render(self.templates, view, session, self.gate.is_locked)

    def _failed(self, failure: Failure, request: Any, session: Session) -> Any:
        error = failure.value
        if isinstance(error, CancelledError):  # the peer closed its connection
            return failure
        if isinstance(error, MissingRight):
            title = "Not done" if request.method == b"POST" else "Not shown"
            return self._answer(request, session, missing_view(error, title))
        more = error.more if isinstance(error, NotThere) else None
        return self._error(request, session, *_reason(failure), more)

    def _error(
        self, request: Any, session: Session | None, status: int, reason: str, more: tuple[str, str] | None = None
    ) -> Any:
        """Answer with the reason why something is not shown; `more` is the address and the text of a link."""
        title = "Not done" if request.method == b"POST" else "Not shown"
        return self._answer(request, session, error_view(status, reason, more, title))

    # --- who asks ------------------------------------------------------------------------------------------------

    def _security_headers(self, request: Any) -> SecurityHeaders:
        def first(name: str) -> str:
            return (request.getHeader(name.encode()) or b"").decode(errors="replace")

        def every(name: str) -> list[str]:
            values = request.requestHeaders.getRawHeaders(name.encode(), [])
            return [value.decode(errors="replace") for value in values]

        cookie = (request.getCookie(self._cookie.encode()) or b"").decode(errors="replace")
        is_forwarded = any(request.requestHeaders.hasHeader(header.encode()) for header in FORWARDED)
        fetch = first("sec-fetch-site"), first("sec-fetch-mode")
        return SecurityHeaders(every("host"), every("origin"), cookie, first("authorization"), *fetch, is_forwarded)

    def _give(self, request: Any, session: Session) -> None:
        if session.cookie:
            text = f"{self._cookie}={session.cookie}; Path=/; HttpOnly; SameSite=Strict"
            is_through_proxy = (request.getHeader(b"origin") or b"").startswith(b"https://")  # a login there
            if self._is_tls or is_through_proxy:
                text += "; Secure"
            request.responseHeaders.addRawHeader(b"Set-Cookie", text.encode())

    def _login(self, request: Any) -> Any:
        _set(request, HEADERS)
        fields, target, wrong, status = Fields(request.args), HOME, "", 200
        try:
            target = _own_path(fields.text("next"))
            if request.method == b"POST":
                headers = self._security_headers(request)
                session = self.gate.login(headers, fields.text("token"), self._now_ms(), secrets.token_hex(16))
                self._give(request, session)
                log.info("console: {peer} logged in", peer=_peer(request))
                return _redirect(request, target)
        except (RequestRefused, BadField) as error:
            wrong, status = str(error), getattr(error, "status", 400)
            if status != 429:  # the log has at most FAILED_LOGINS_MAX such lines in a minute
                log.warn("console: a login from {peer} failed: {why}", peer=_peer(request), why=wrong)
        if self.gate.closed is not None:
            return self._error(request, None, 403, self.gate.closed)
        if not self.gate.is_locked:
            return _redirect(request, target)
        model = {"next": target, "wrong": wrong}
        return self._answer(request, None, View("login.html", "Log in", "", model, status=status))

    def _logout(self, request: Any) -> Any:
        def end(visit: Visit) -> Any:
            self._check(visit)
            self.gate.logout(visit.session, self._now_ms())
            expired = f"{self._cookie}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"
            expired += "; Secure" if self._is_tls else ""  # a browser demands it of __Host- names
            request.responseHeaders.addRawHeader(b"Set-Cookie", expired.encode())
            return _redirect(request, LOGIN)

        return self._serve(request, end)

    def _do(self, request: Any, name: str) -> Any:
        def act(visit: Visit) -> Any:
            self._check(visit)
            is_plain = is_in_plain_text(visit.headers, visit.peer.rpartition(":")[0], is_tls=self._is_tls)
            done = maybeDeferred(self.actions.act, visit.fields, name, visit.peer, is_in_plain_text=is_plain)
            return done.addErrback(refused, visit).addCallback(lambda view: self._keep(visit, view))

        def refused(failure: Failure, visit: Visit) -> Any:
            """Show the form again, with the visitor's fields and the reason."""
            if isinstance(failure.value, (CancelledError, NotThere)):
                return failure
            return self.actions.refused(visit.fields, name, *_reason(failure))

        return self._serve(request, act)

    def _keep(self, visit: Visit, view: View) -> str:
        """Keep the answer to a form, and return its address, so that Back and Reload never send the form again."""
        key, now_ms = secrets.token_urlsafe(16), self._now_ms()
        html = render(self.templates, view, visit.session, self.gate.is_locked)
        self._kept.keep(key, visit.session.id, view.status, html, now_ms)
        return f"{KEPT}/{key}"

    def _show_kept(self, request: Any, key: str) -> Any:
        def show(visit: Visit) -> bytes:
            page = self._kept.page(key, visit.session.id, self._now_ms())
            request.setResponseCode(page.status)
            request.setHeader(b"Content-Type", b"text/html; charset=utf-8")
            return page.html

        return self._serve(request, show)

    def _check(self, visit: Visit) -> None:
        """Raise RequestRefused unless the request is an action of the visitor's own page."""
        self.gate.check_action(visit.headers, visit.session, visit.fields.text("csrf"))

    # --- files and streams ---------------------------------------------------------------------------------------

    def _file(self, request: Any, name: str) -> Any:
        _set(request, HEADERS)
        file = self._static.get(name)
        if file is None or self.gate.closed is not None:
            return self._error(request, None, 404, f"there is no file {name!r}")
        request.setHeader(b"Cache-Control", STATIC_CACHE.encode())
        request.setHeader(b"Content-Type", f"{STATIC_TYPES[name.rpartition('.')[2]]}; charset=utf-8".encode())
        return file

    def _events(self, request: Any) -> Any:
        return self._serve(request, lambda visit: self._stream(visit))

    def _stream(self, visit: Visit) -> Any:
        live = self._live(visit)
        if not self.streams.has_room:
            raise RequestRefused(503, "too many pages get live figures; flakelog.console.max.streams limits them")
        if visit.request.method == b"HEAD":
            return b""

        def of_session(since_ms: int) -> Any:
            if not self.gate.is_live(visit.session, self._now_ms()):
                raise RequestRefused(403, "the session has ended")
            self.pages.sample()
            return live(since_ms)

        return self.streams.serve(visit.request, of_session)

    def _live(self, visit: Visit) -> Live:
        """Return what the stream of a page sends. Raise NotThere."""
        fields = visit.fields
        if fields.text("page") == "tail":
            last = (visit.request.getHeader(b"last-event-id") or b"").decode(errors="replace")
            return self._tail(self.messages.tail(fields, last or fields.text("last")))
        if fields.text("page") not in ("topologies", "topology", *MIRROR_PAGES):
            self.pages.live(fields, 0)

        def tick(part: LivePart) -> Tick:
            return Tick(render_part(self.templates, part.template, part.model), part.points)

        def live(since_ms: int) -> Any:
            of_mirrors = fields.text("page") in MIRROR_PAGES
            read = self.mirrors.live(fields, since_ms) if of_mirrors else self.work.live(fields, since_ms)
            return maybeDeferred(lambda: self.pages.live(fields, since_ms) if read is None else read).addCallback(tick)

        return live

    def _tail(self, tail: TailOf) -> Live:
        def tick(read: Tail) -> Tick:
            rows = render_rows(self.templates, tail.topic, read.rows)
            return Tick(rows=rows, at=positions_text(read.positions), left_out=read.left_out)

        def live(since_ms: int) -> Any:
            read = tail.read()
            return Tick() if read is None else read.addCallback(tick)

        return live

    def _now_ms(self) -> int:
        return self.server.clock.now_ms()


def _set(request: Any, headers: Any) -> None:
    for name, value in headers.items():
        request.setHeader(name.encode(), value.encode())


def _peer(request: Any) -> str:
    address = request.getClientAddress()
    return f"{getattr(address, 'host', '?')}:{getattr(address, 'port', '?')}"


def _reason(failure: Failure) -> tuple[int, str]:
    """Return the HTTP status of an error, and the reason for the visitor."""
    error = failure.value
    match error:
        case RequestRefused():
            return error.status, error.reason
        case MissingRight():
            return 403, str(error)
        case NotThere():
            return 404, str(error)
        case BadField() | NotPossible():
            return 400, str(error)
        case BrokerError():
            return 400, f"the broker refused it: {error}"
        case PageTimeout():
            return 503, str(error)
        case ClientError() | WireError() | CorruptBatch():
            return 502, f"the broker answered: {error}"
    log.failure("console: a page failed", failure)
    return 500, "the page failed; the server's log says why"


def _redirect(request: Any, target: str) -> bytes:
    request.setResponseCode(303)
    request.setHeader(b"Location", target.encode())
    return b""


def _download(request: Any, raw: Raw) -> bytes:
    request.setHeader(b"Content-Type", b"application/octet-stream")
    request.setHeader(b"Content-Disposition", f'attachment; filename="{raw.name}"'.encode())
    return raw.data


def _own_path(target: str) -> str:
    """Return a path of this console, whatever a link asked for."""
    good = target.startswith(("/console/", "/?")) and target.isascii() and target.isprintable() and "\\" not in target
    return target if good else HOME


def _static_files() -> dict[str, bytes]:
    directory = files("flakelog.console").joinpath("static")
    return {
        path.name: path.read_bytes() for path in directory.iterdir() if path.name.rpartition(".")[2] in STATIC_TYPES
    }
