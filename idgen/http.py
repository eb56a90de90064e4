"""SHELL (Twisted, klein): ids over HTTP, as routes for whoever has the site.

    POST /ids?count=n     {"ids": [...], "id_strs": ["...", ...]}
    GET  /ids/{id}        {"id": ..., "id_str": "...", "time": "2013-01-01T00:00:00.000Z", "time_ms": ...,
                           "datacenter": ..., "worker": ..., "sequence": ..., "worker_number": ...}

Ids come as strings too: JavaScript's numbers hold 53 bits. Errors are {"error": name, "message": text}: 400 for what
the client can cure, 503 with Retry-After for what time does.
"""

import json
from datetime import UTC, datetime
from typing import Protocol

from klein import Klein
from twisted.internet.defer import Deferred

from coordination.reactor import Reactor
from idgen.clock import IdClock
from idgen.errors import IdError, InvalidCount, InvalidId, InvalidUserAgent, SequenceExhausted
from idgen.layout import IdParts
from idgen.service import IdService, flat

USER_AGENT = "http"  # counted together: browsers' user agents do not match Twitter's rule
WAIT_MS_MAX = 2_000  # a request waits so long for ids that run ahead of the clock, then it is told to come again
CALLER_ERRORS = (InvalidCount, InvalidUserAgent)


class Request(Protocol):
    """What is used of a twisted.web request."""

    args: dict[bytes, list[bytes]]

    def setHeader(self, name: bytes, value: bytes) -> None: ...

    def setResponseCode(self, code: int) -> None: ...


def add_id_routes(app: Klein, service: IdService, clock: IdClock, reactor: Reactor) -> Klein:
    """Add the id routes to a klein app; returns it."""

    @app.route("/ids", methods=["POST"])
    def new_ids(request: Request) -> "bytes | Deferred[bytes]":
        return _new_ids(service, clock, reactor, request, WAIT_MS_MAX)

    @app.route("/ids/<id>", methods=["GET"])
    def decoded(request: Request, id: str) -> bytes:
        return _decoded(service, request, id)

    return app


def _new_ids(
    service: IdService, clock: IdClock, reactor: Reactor, request: Request, wait_ms: int
) -> "bytes | Deferred[bytes]":
    now_ms = clock.now_ms()
    try:
        ids = flat(service.next_ids(USER_AGENT, _count_of(request), now_ms, clock.skew_ms))
    except SequenceExhausted as error:
        pause_ms = max(error.retry_at_ms - now_ms, 1)
        if pause_ms > wait_ms:
            return _refused(request, error)
        later: Deferred[bytes] = Deferred()
        later.addCallback(lambda _: _new_ids(service, clock, reactor, request, wait_ms - pause_ms))
        reactor.callLater(pause_ms / 1000, later.callback, b"")
        return later
    except IdError as error:
        service.counters.refused(error)
        return _refused(request, error)
    return _json(request, {"ids": ids, "id_strs": list(map(str, ids))})


def _count_of(request: Request) -> int:
    given = request.args.get(b"count", [b"1"])[-1]
    if not given.isdigit() or len(given) > 9:
        raise InvalidCount(f"count={given.decode(errors='replace')}: a whole number is due")
    return int(given)


def _decoded(service: IdService, request: Request, text: str) -> bytes:
    try:
        if not (text.isascii() and text.isdigit() and len(text) <= 19):
            raise ValueError(f"{text[:40]!r} is no id: ids are decimal numbers in 0..2**63-1")
        id = int(text)
        parts = service.decode(id)
    except (ValueError, InvalidId) as error:
        return _json(request, {"error": "InvalidId", "message": str(error)}, 400)
    return _json(request, {"id": id, "id_str": str(id), "time": iso_time(parts), **parts._asdict()})


def iso_time(parts: IdParts) -> str | None:
    """The time of an id for people, UTC; None past the year 9999, which a layout may reach."""
    try:
        text = datetime.fromtimestamp(parts.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
        return text.replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return None


def _refused(request: Request, error: IdError) -> bytes:
    if isinstance(error, CALLER_ERRORS):
        status = 400
    else:
        status = 503
        request.setHeader(b"retry-after", b"1")
    return _json(request, {"error": type(error).__name__, "message": str(error)}, status)


def _json(request: Request, answer: dict[str, object], status: int = 200) -> bytes:
    request.setResponseCode(status)
    request.setHeader(b"content-type", b"application/json")
    return json.dumps(answer).encode() + b"\n"
