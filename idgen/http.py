"""SHELL (Twisted, klein): ids over HTTP, as routes for whoever has the site. What is served: idgen/http_api.py.

    POST /id, POST /ids?count=n, GET /ids/{id}, GET /id-range?from_ms=t&to_ms=t, GET /openapi.json
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from klein import Klein
from twisted.internet.defer import Deferred
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from coordination.reactor import Reactor
from idgen.clock import IdClock
from idgen.errors import IdError, SequenceExhausted
from idgen.http_api import OPENAPI, ROUTES, Json, Route, arguments_of, describe, refusal
from idgen.service import IdService

WAIT_MS_MAX = 2_000  # a request waits so long for ids that run ahead of the clock, then it is told to come again
VERSION = "0.1.0"


class Request(Protocol):
    """What is used of a twisted.web request."""

    args: dict[bytes, list[bytes]]

    def setHeader(self, name: bytes, value: bytes) -> None: ...

    def setResponseCode(self, code: int) -> None: ...


def add_id_routes(
    app: Klein, service: IdService, clock: IdClock, reactor: Reactor, others: Iterable[Route] = ()
) -> Klein:
    """Add the id routes to a klein app, described together with `others` that are served beside them; returns it."""
    for route in ROUTES:
        _Served(route, service, clock, reactor).add_to(app)
    described = [*ROUTES, *others, OPENAPI]

    @app.route(OPENAPI.path, methods=[OPENAPI.method])
    def openapi(request: Request) -> bytes:
        return _json(request, describe(described, service, VERSION))

    @app.handle_errors(HTTPException)
    def refused(request: Request, failure: Any) -> bytes:
        error = failure.value
        if isinstance(error, MethodNotAllowed):
            request.setHeader(b"allow", ", ".join(sorted(error.valid_methods or ())).encode())
        name = type(error).__name__
        there = "; ".join(f"{each.method} {each.path}" for each in described)
        return _json(request, {"error": name, "message": f"{error.description} There are: {there}"}, error.code or 500)

    return app


class _Served:
    """One row of the table under klein."""

    def __init__(self, route: Route, service: IdService, clock: IdClock, reactor: Reactor) -> None:
        self._route = route
        self._service = service
        self._clock = clock
        self._reactor = reactor

    def add_to(self, app: Klein) -> None:
        path = self._route.path.replace("{", "<").replace("}", ">")
        app.route(path, methods=[self._route.method], endpoint=self._route.name)(self._serve)

    def _serve(self, request: Request, **path: str) -> "bytes | Deferred[bytes]":
        try:
            arguments = arguments_of(self._route, _given(request, path), self._service)
        except IdError as error:
            return self._refused(request, error)
        return self._answer(request, arguments, WAIT_MS_MAX)

    def _answer(self, request: Request, arguments: Mapping[str, int], wait_ms: int) -> "bytes | Deferred[bytes]":
        now_ms = self._clock.now_ms()
        assert self._route.handle is not None
        try:
            return _json(request, self._route.handle(self._service, arguments, now_ms, self._clock.skew_ms))
        except SequenceExhausted as error:
            pause_ms = max(error.retry_at_ms - now_ms, 1)
            if pause_ms > wait_ms:
                return self._refused(request, error)
            self._service.counters.waited(pause_ms)
            later: Deferred[bytes] = Deferred()
            later.addCallback(lambda _: self._answer(request, arguments, wait_ms - pause_ms))
            self._reactor.callLater(pause_ms / 1000, later.callback, b"")
            return later
        except IdError as error:
            return self._refused(request, error)

    def _refused(self, request: Request, error: IdError) -> bytes:
        self._service.counters.refused(error)
        status, body = refusal(error)
        if status == 503:
            request.setHeader(b"retry-after", b"1")
        return _json(request, body, status)


def _given(request: Request, path: Mapping[str, str]) -> dict[str, list[str]]:
    given = {_text(name): list(map(_text, values)) for name, values in request.args.items()}
    return given | {name: [value] for name, value in path.items()}


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _json(request: Request, answer: Json, status: int = 200) -> bytes:
    request.setResponseCode(status)
    request.setHeader(b"content-type", b"application/json")
    return json.dumps(answer).encode() + b"\n"
