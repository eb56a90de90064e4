"""SHELL (Twisted, klein): ids over HTTP, as routes for whoever has the site. What is served: idgen/http_api.py.

    POST /id, POST /ids?count=n, GET /ids/{id}, GET /id-range?from_ms=t&to_ms=t, GET /openapi.json

Who has to wait for ids waits in the same line, with whoever asks by Thrift.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, cast

from klein import Klein
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from idgen.errors import IdError, SequenceExhausted
from idgen.http_api import OPENAPI, ROUTES, USER_AGENT, Json, Route, arguments_of, describe, refusal
from idgen.server import IdLine
from idgen.service import IdService, Order, flat

VERSION = "0.1.0"


class Request(Protocol):
    """What is used of a twisted.web request."""

    args: dict[bytes, list[bytes]]

    def setHeader(self, name: bytes, value: bytes) -> None: ...

    def setResponseCode(self, code: int) -> None: ...


def add_id_routes(app: Klein, service: IdService, line: IdLine, others: Iterable[Route] = ()) -> Klein:
    """Add the id routes to a klein app, described together with `others` that are served beside them; returns it."""
    for route in ROUTES:
        _Served(route, service, line).add_to(app)
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

    def __init__(self, route: Route, service: IdService, line: IdLine) -> None:
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
            if not count:
                return self._answer(request, arguments, [])
            order = self._service.order(USER_AGENT, count)
        except IdError as error:
            return self._refused(request, error)
        filled: Deferred[Any] = _Filling(self._service, order, self._line).filled
        filled.addCallback(lambda ids: self._answer(request, arguments, ids))
        return filled.addErrback(self._failed, request)

    def _answer(self, request: Request, arguments: Mapping[str, int], ids: list[int]) -> bytes:
        assert self._route.handle is not None
        return _json(request, self._route.handle(self._service, arguments, ids))

    def _failed(self, failure: Failure, request: Request) -> bytes:
        failure.trap(IdError)  # type: ignore[no-untyped-call]
        return self._refused(request, cast(IdError, failure.value))

    def _refused(self, request: Request, error: IdError) -> bytes:
        self._service.counters.refused(error)
        status, body = refusal(error)
        if status == 503:
            request.setHeader(b"retry-after", b"1")
        return _json(request, body, status)


class _Filling:
    """An order filled at once, or by turns in the line; `filled` fires with its ids, or fails with an IdError."""

    def __init__(self, service: IdService, order: Order, line: IdLine) -> None:
        self.filled: Deferred[list[int]] = Deferred(lambda _: line.leave(self))
        self._service = service
        self._order = order
        most, now_ms = line.most_now, line.clock.now_ms()
        at_ms = now_ms
        try:
            if most and self.take_turn(most, now_ms, line.clock.skew_ms):
                return
        except SequenceExhausted as error:
            at_ms = error.retry_at_ms
        line.join(self, at_ms)

    def take_turn(self, most: int, now_ms: int, skew_ms: int) -> bool:
        """Its turn in the line (idgen.turns.Waiting)."""
        try:
            self._service.fill(self._order, most, now_ms, skew_ms)
        except SequenceExhausted:
            raise
        except IdError:
            self.filled.errback()
            return True
        if self._order.due:
            return False
        self.filled.callback(flat(self._order.runs))
        return True


def _given(request: Request, path: Mapping[str, str]) -> dict[str, list[str]]:
    given = {_text(name): list(map(_text, values)) for name, values in request.args.items()}
    return given | {name: [value] for name, value in path.items()}


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _json(request: Request, answer: Json, status: int = 200) -> bytes:
    request.setResponseCode(status)
    request.setHeader(b"content-type", b"application/json")
    return json.dumps(answer).encode() + b"\n"
