"""SHELL (Twisted, klein): ids over HTTP, as routes for a klein app. idgen/http_api.py defines what the routes serve.

    POST /id, POST /ids?count=n, GET /ids/{id}, GET /id-range?from_ms=t&to_ms=t, GET /openapi.json

A request that has to wait for ids, or for the next reactor iteration, joins the same fair queue as Thrift requests.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast
from urllib.parse import unquote_to_bytes

from klein import Klein
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.web import server
from twisted.web.http import HTTPChannel
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from coordination.reactor import DelayedCall
from idgen.errors import IdError, SequenceExhausted
from idgen.fair_queue import UNLIMITED
from idgen.http_api import OPENAPI, ROUTES, USER_AGENT, Route, Texts, arguments_of, describe, refusal, text_of
from idgen.http_hosts import EVERY_HOST, OwnHosts, Refusal
from idgen.http_plain import LATE, REQUEST_MS, closing_answer
from idgen.server import IdQueue
from idgen.service import IdService, Order

VERSION = "0.1.0"
REQUEST_CALLS = 128  # a request of the web site takes as long as this many calls by Thrift


class Request(Protocol):
    """The methods and attributes that we use of a twisted.web request."""

    args: dict[bytes, list[bytes]]

    def setHeader(self, name: bytes, value: bytes) -> None: ...

    def setResponseCode(self, code: int) -> None: ...


_HEAD_END = b"\r\n\r\n"
HEAD_BYTES_MAX = 1 << 20  # of a head that is refused; a longer one is not awaited
URI_TOO_LONG = closing_answer(
    b"414 URI Too Long", "URITooLong", "the request line has more than 16,384 bytes; ask for a shorter path"
)
HEADERS_TOO_LARGE = closing_answer(
    b"431 Request Header Fields Too Large", "HeaderTooLarge", "a header has more than 16,384 bytes; send a shorter one"
)


class SmallChannel(HTTPChannel):
    """A connection of the web site, with a time for each request to arrive whole (RFC 9110, section 15.5.9).

    twisted.web's own time begins anew with each byte, so that a slow peer could keep a request open for days. It also
    goes on reading requests from a peer that reads no answers, if each is answered at once; this channel stops. It
    closes a connection whose request line or header is too long without a word; this channel answers (RFC 9110,
    section 15.5.15; RFC 6585, section 5). The answer follows the end of the head, because a peer that still sends
    would meet a reset connection instead.
    """

    request_ms = REQUEST_MS
    _late_call: DelayedCall | None = None
    _answering = False
    _has_room = True
    """False while the peer has to read answers before it is sent more."""
    _refusal: bytes | None = None
    """The answer to a head that is too long, until its end has come."""
    _refused_bytes = 0
    _refused_end = b""
    """The last bytes of that head so far."""

    def dataReceived(self, data: bytes) -> None:
        if self._refusal is not None:
            self._pass_over(data)
            return
        if self._late_call is None and not self._answering:
            later = cast(Callable[..., DelayedCall], self.callLater)
            self._late_call = later(self.request_ms / 1000, self._refuse_late)
        super().dataReceived(data)  # type: ignore[no-untyped-call]

    def lineLengthExceeded(self, line: bytes) -> None:
        self._refusal = HEADERS_TOO_LARGE if self._receivedHeaderSize else URI_TOO_LONG
        self._pass_over(line)

    def _pass_over(self, data: bytes) -> None:
        """Drop the rest of a head that is too long, then answer it and close the connection."""
        self._refused_bytes += len(data)
        unended = self._refused_end + data
        self._refused_end = unended[1 - len(_HEAD_END) :]
        refusal = self._refusal
        if refusal and (_HEAD_END in unended or self._refused_bytes > HEAD_BYTES_MAX):
            self._refusal = b""  # what follows is dropped
            self.write(refusal)  # type: ignore[no-untyped-call]
            self.loseConnection()

    def allContentReceived(self) -> None:
        self._in_time()
        self._answering = True
        super().allContentReceived()  # type: ignore[no-untyped-call]

    def requestDone(self, request: object) -> None:
        self._answering = False
        super().requestDone(request)  # type: ignore[no-untyped-call]
        if not self._has_room:
            cast(Any, self.transport).pauseProducing()

    def pauseProducing(self) -> None:
        self._has_room = False
        super().pauseProducing()  # type: ignore[no-untyped-call]

    def resumeProducing(self) -> None:
        self._has_room = True
        super().resumeProducing()  # type: ignore[no-untyped-call]

    def loseConnection(self) -> None:
        self._in_time()
        super().loseConnection()  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: object = None) -> None:
        self._in_time()
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def _refuse_late(self) -> None:
        self._late_call = None
        self.write(LATE)  # type: ignore[no-untyped-call]
        self.loseConnection()

    def _in_time(self) -> None:
        if self._late_call is not None:
            self._late_call.cancel()
            self._late_call = None


_TEXT = b"The form is too long: at most 65,536 bytes are taken, encoded. Go back to shorten what you typed.\n"
TOO_LARGE = (
    b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_TEXT), _TEXT)
)


class SmallRequest(server.Request):
    """A request of the web site, with a limit on its body, refused if it is another site's (idgen/http_hosts.py).

    Only the console's forms have bodies, and a body that is longer than theirs is refused while it arrives;
    twisted.web would first write all of it to a file. RFC 9110, section 15.5.14.
    """

    BODY_BYTES_MAX = 1 << 16  # not a setting, because the console's forms are the only bodies
    _body_bytes = 0

    def handleContentChunk(self, data: bytes) -> None:
        before, self._body_bytes = self._body_bytes, self._body_bytes + len(data)
        if self._body_bytes <= self.BODY_BYTES_MAX:
            super().handleContentChunk(data)  # type: ignore[no-untyped-call]
        elif before <= self.BODY_BYTES_MAX:
            channel = cast(Any, self.channel)
            channel.write(TOO_LARGE)
            channel.loseConnection()

    def process(self) -> None:
        if self._body_bytes > self.BODY_BYTES_MAX:
            return
        try:
            host = cast(bytes, self.getRequestHostname())  # type: ignore[no-untyped-call]
            (unquote_to_bytes(self.path) + host).decode()
        except UnicodeDecodeError:  # klein would answer with HTML, and log an error
            self._refuse(Refusal(400, "BadRequest", "the path and the host are to be UTF-8"))
            return
        refused = self._hosts.refusal(_text(self.method), self._values_of(b"host"), self._values_of(b"origin"))
        if refused is not None:
            self._refuse(refused)
            return
        super().process()  # type: ignore[no-untyped-call]

    @property
    def _hosts(self) -> OwnHosts:
        return cast(OwnHosts, getattr(cast(Any, self.channel).site, "hosts", EVERY_HOST))

    def _values_of(self, header: bytes) -> list[str]:
        return [_text(value) for value in self.requestHeaders.getRawHeaders(header, [])]

    def _refuse(self, refused: Refusal) -> None:
        body = {"error": refused.error, "message": refused.message}
        self.write(_answer(self, text_of(body), refused.status))  # type: ignore[no-untyped-call]
        self.finish()  # type: ignore[no-untyped-call]


class SmallSite(server.Site):
    """A web site of `SmallRequest`s for the given hosts, which closes silent connections and refuses late requests."""

    def __init__(
        self, resource: Any, hosts: OwnHosts, *, idle_ms: int, request_ms: int, reactor: Any = None
    ) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            resource, requestFactory=SmallRequest, timeout=idle_ms / 1000, reactor=reactor
        )
        self.hosts = hosts
        self._request_ms = request_ms
        self.noisy = False
        self.protocol = self._channel  # type: ignore[assignment]  # Twisted says: what makes its own proxy

    def _channel(self) -> SmallChannel:
        channel = SmallChannel()  # type: ignore[no-untyped-call]
        channel.request_ms = self._request_ms
        return channel


def add_id_routes(app: Klein, service: IdService, line: IdQueue, others: Iterable[Route] = ()) -> Klein:
    """Add the id routes to a klein app and return it. OpenAPI also describes `others`, which the app serves too."""
    for route in ROUTES:
        _Served(route, service, line).add_to(app)
    described = [*ROUTES, *others, OPENAPI]

    @app.route(OPENAPI.path, methods=[OPENAPI.method])
    def openapi(request: Request) -> bytes:
        return _answer(request, text_of(describe(described, service, VERSION)))

    @app.handle_errors(HTTPException)
    def refused(request: Request, failure: Any) -> bytes:
        error = failure.value
        if isinstance(error, MethodNotAllowed):
            request.setHeader(b"allow", ", ".join(sorted(error.valid_methods or ())).encode())
        name = type(error).__name__
        routes = "; ".join(f"{route.method} {route.path}" for route in described)
        body = {"error": name, "message": f"{error.description} There are: {routes}"}
        return _answer(request, text_of(body), error.code or 500)

    return app


class _Served:
    """A row of the route table, served under klein."""

    def __init__(self, route: Route, service: IdService, line: IdQueue) -> None:
        self._route = route
        self._service = service
        self._line = line

    def add_to(self, app: Klein) -> None:
        path = self._route.path.replace("{", "<").replace("}", ">")
        app.route(path, methods=[self._route.method], endpoint=self._route.name)(self._serve)

    def _serve(self, request: Request, **path: str) -> "bytes | Deferred[bytes]":
        try:
            arguments = arguments_of(self._route, _given(request, path), self._service)
            count = self._route.takes(arguments)
            order = self._service.order(USER_AGENT, count) if count else None
        except IdError as error:
            return self._refused(request, error)
        turns: Deferred[Any] = _Turns(self._service, order, self._line).ended
        turns.addCallback(lambda ids: self._answered(request, arguments, ids))
        return turns.addErrback(self._failed, request)

    def _answered(self, request: Request, arguments: Mapping[str, int], ids: Texts) -> bytes:
        assert self._route.handle is not None
        return _answer(request, self._route.handle(self._service, arguments, ids))

    def _failed(self, failure: Failure, request: Request) -> bytes:
        failure.trap(IdError)  # type: ignore[no-untyped-call]
        return self._refused(request, cast(IdError, failure.value))

    def _refused(self, request: Request, error: IdError) -> bytes:
        self._service.counters.refused(error)
        status, body = refusal(error)
        if status == 503:
            request.setHeader(b"retry-after", b"1")
        return _answer(request, text_of(body), status)


class _Turns:
    """The ids and the call budget of one request, taken at once or in the queue.

    `ended` fires with the texts of the ids, or fails with an IdError.
    """

    def __init__(self, service: IdService, order: Order | None, line: IdQueue) -> None:
        self.ended: Deferred[Texts] = Deferred(lambda _: line.leave(self))
        self._service = service
        self._order = order
        self._budget = line.budget
        self._texts = Texts()
        now_ms = at_ms = line.clock.now_ms()
        at_once = line.may_answer() and (order is None or line.most_now > 0)
        line.budget.calls -= REQUEST_CALLS
        try:
            if at_once and self.take_turn(UNLIMITED, now_ms, line.clock.skew_ms):
                return
        except SequenceExhausted as error:
            at_ms = error.retry_at_ms
        line.join(self, at_ms)

    def take_turn(self, most: int, now_ms: int, skew_ms: int) -> bool:
        """Take a turn in the queue (idgen.fair_queue.Waiting)."""
        try:
            if self._order is not None and not self._fill(self._order, min(most, self._budget.ids), now_ms, skew_ms):
                return False
        except SequenceExhausted:
            raise
        except IdError as error:
            self.ended.errback(error)
            return True
        self.ended.callback(self._texts)
        return True

    def _fill(self, order: Order, most: int, now_ms: int, skew_ms: int) -> bool:
        """Take ids and write their texts; return True if the order is complete."""
        taken = self._service.fill(order, most, now_ms, skew_ms)
        self._budget.pay(taken)
        self._texts.add(order.runs)
        order.runs.clear()
        return not order.due


def _given(request: Request, path: Mapping[str, str]) -> dict[str, list[str]]:
    given = {_text(name): list(map(_text, values)) for name, values in request.args.items()}
    return given | {name: [value] for name, value in path.items()}


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _answer(request: Request, body: bytes, status: int = 200) -> bytes:
    request.setResponseCode(status)
    request.setHeader(b"content-type", b"application/json")
    request.setHeader(b"content-length", b"%d" % len(body))  # without it, twisted.web would send chunks
    return body
