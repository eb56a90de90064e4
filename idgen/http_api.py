"""The id service over HTTP, without I/O: one table of routes, with their answers and their descriptions.

A route's `handle` makes the JSON answer from the arguments and from the texts of as many new ids as the route `takes`.
An IdError becomes a refusal, {"error": name, "message": text}, with status 400 if the client can cure it and 503 if
time does. `describe` makes the OpenAPI description from the same table, so that it is true. Answers have each id as a
string too, because JavaScript's numbers hold 53 bits.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from idgen.errors import IdError, InvalidCount, InvalidId, InvalidTimeRange, InvalidUserAgent
from idgen.layout import IdParts, utc_text
from idgen.service import ID_MAX, IdService

USER_AGENT = "http"  # counts all HTTP clients together, because browsers' user agents do not match Twitter's rule
TIME_MS_MAX = (1 << 53) - 1  # JavaScript's largest whole number; a layout's times are far below it
CALLERS_ERRORS = (InvalidCount, InvalidId, InvalidTimeRange, InvalidUserAgent)
DIGITS_MAX = 19
_LAST_DIGITS = [b"%03d" % number for number in range(1_000)]

Json = Mapping[str, Any]
Handle = Callable[[IdService, Mapping[str, int], "Texts"], bytes]  # (service, arguments, texts of new ids) -> JSON


class Texts:
    """Ids as JSON text, written run by run as they arrive, because writing 100,000 at once would block the reactor.

    The ids of one thousand differ only in their last three digits, so one join writes all of them.
    """

    def __init__(self) -> None:
        self._numbers: list[bytes] = []
        self._strings: list[bytes] = []

    def add(self, runs: Iterable[tuple[int, int]]) -> None:
        """Write each id of the runs (first, count)."""
        for first, count in runs:
            end = first + count
            while first < end:
                thousand = first // 1_000
                stop = min(end, (thousand + 1) * 1_000)
                self._add(b"%d" % thousand if thousand else b"", first, stop)
                first = stop

    def _add(self, head: bytes, first: int, stop: int) -> None:
        """Write the ids of first <= id < stop, which all begin with `head`."""
        if head:
            last = _LAST_DIGITS[first % 1_000 : (stop - 1) % 1_000 + 1]
            self._numbers.append(head + (b", " + head).join(last))
            self._strings.append(head + (b'", "' + head).join(last))
        else:  # ids below 1,000, as in the first millisecond of a layout
            texts = [b"%d" % id for id in range(first, stop)]
            self._numbers += texts
            self._strings += texts

    @property
    def numbers(self) -> bytes:
        return b", ".join(self._numbers)

    @property
    def strings(self) -> bytes:
        return b'", "'.join(self._strings)


class Argument(NamedTuple):
    """A whole number in the path or the query; it is required if `default` is None."""

    name: str
    location: str
    """Where it is given, in OpenAPI's words: path, query."""
    about: str
    error: type[IdError]
    least: int
    most: Callable[[IdService], int]
    default: int | None = None

    def parse(self, given: Sequence[str], service: IdService) -> int:
        """Return the argument's value; raise the argument's `error`, with the reason, if the value is invalid."""
        if not given and self.default is not None:
            return self.default
        if len(given) != 1:
            raise self.error(f"{self.name} is given {len(given)} times; once is due")
        text, most = given[0], self.most(service)
        good = text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
        if not good or not self.least <= int(text) <= most:
            raise self.error(f"{self.name}={text[:40]}: a whole number in {self.least}..{most} is due")
        return int(text)


class Route(NamedTuple):
    """A row of the table: `answer` names its schema, `refusals` maps the statuses of errors to their descriptions, and
    `takes` returns how many new ids it needs. Other code serves a route without `handle`."""

    method: str
    path: str
    name: str
    about: str
    answer: str
    arguments: tuple[Argument, ...] = ()
    refusals: Mapping[int, str] = {}
    handle: Handle | None = None
    takes: Callable[[Mapping[str, int]], int] = lambda given: 0


def _new_id(service: IdService, given: Mapping[str, int], ids: Texts) -> bytes:
    return b'{"id": %b, "id_str": "%b"}\n' % (ids.numbers, ids.strings)


def _new_ids(service: IdService, given: Mapping[str, int], ids: Texts) -> bytes:
    return b'{"ids": [%b], "id_strs": ["%b"]}\n' % (ids.numbers, ids.strings)


def _decoded(service: IdService, given: Mapping[str, int], ids: Texts) -> bytes:
    id = given["id"]
    parts = service.decode(id)
    return text_of({"id": id, "id_str": str(id), "time": utc_text(parts.time_ms), **parts._asdict()})


def _id_range(service: IdService, given: Mapping[str, int], ids: Texts) -> bytes:
    first, end = service.id_range(given["from_ms"], given["to_ms"])
    return text_of({"first": first, "first_str": str(first), "end": end, "end_str": str(end)})


def text_of(answer: Json) -> bytes:
    """Return an answer's JSON as bytes."""
    return json.dumps(answer).encode() + b"\n"


_COUNT = Argument(
    "count", "query", "how many ids", InvalidCount, 1, lambda service: service.max_batch, default=1
)
_ID = Argument("id", "path", "an id", InvalidId, 0, lambda service: ID_MAX)
_FROM = Argument("from_ms", "query", "start of the span, Unix ms", InvalidTimeRange, 0, lambda service: TIME_MS_MAX)
_TO = _FROM._replace(name="to_ms", about="end of the span, Unix ms: the first millisecond after it")
_FOREIGN, _NOT_OURS = "a page of another site sent the request", "Host is no name of this server"
_REFUSED, _LATER = "what is wrong with the request", "no ids now; ask again after Retry-After seconds"

ROUTES = (
    Route("POST", "/id", "newId", "One id.", "NewId", (), {403: _FOREIGN, 503: _LATER}, _new_id, lambda given: 1),
    Route(
        "POST",
        "/ids",
        "newIds",
        "Rising ids.",
        "NewIds",
        (_COUNT,),
        {400: _REFUSED, 403: _FOREIGN, 503: _LATER},
        _new_ids,
        lambda given: given["count"],
    ),
    Route("GET", "/ids/{id}", "decodeId", "What is in an id.", "IdParts", (_ID,), {400: _REFUSED}, _decoded),
    Route(
        "GET",
        "/id-range",
        "idRange",
        "The ids of from_ms <= time < to_ms: those with first <= id < end.",
        "IdRange",
        (_FROM, _TO),
        {400: _REFUSED},
        _id_range,
    ),
)  # fmt: skip
OPENAPI = Route("GET", "/openapi.json", "description", "This description.", "Description")

_INTEGER = {"type": "integer", "format": "int64"}
_NUMBER = {**_INTEGER, "minimum": 0, "maximum": ID_MAX}
_TEXT = {"type": "string", "pattern": "^[0-9]{1,19}$"}
_SCHEMAS: Mapping[str, Mapping[str, Json]] = {
    "NewId": {"id": _NUMBER, "id_str": _TEXT},
    "NewIds": {"ids": {"type": "array", "items": _NUMBER}, "id_strs": {"type": "array", "items": _TEXT}},
    "IdParts": {
        "id": _NUMBER,
        "id_str": _TEXT,
        "time": {"type": ["string", "null"], "description": "ISO 8601, UTC; null past the year 9999"},
        **{name: _INTEGER for name in IdParts._fields},
    },
    "IdRange": {"first": _NUMBER, "first_str": _TEXT, "end": _NUMBER, "end_str": _TEXT},
    "Error": {"error": {"type": "string"}, "message": {"type": "string"}},
    "Description": {"openapi": {"type": "string"}, "paths": {"type": "object"}},
    "Health": {"healthy": {"type": "boolean"}, "ids_unique_in": {"type": "string"}},
    "Live": {"live": {"const": True}},
    "Ready": {"ready": {"type": "boolean"}, "stopping": {"type": "boolean"}},
}


def arguments_of(route: Route, given: Mapping[str, Sequence[str]], service: IdService) -> dict[str, int]:
    """Parse a route's arguments from the values given under their names. Raises the argument's own IdError."""
    return {argument.name: argument.parse(given.get(argument.name, ()), service) for argument in route.arguments}


def refusal(error: IdError) -> tuple[int, Json]:
    """Return (status, body) for an error."""
    return 400 if isinstance(error, CALLERS_ERRORS) else 503, {"error": type(error).__name__, "message": str(error)}


def describe(routes: Iterable[Route], service: IdService, version: str) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of `routes`."""
    routes = list(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, service)
    named = {route.answer for route in routes} | {"Error"}
    schemas = {name: _object(fields) for name, fields in _SCHEMAS.items() if name in named}
    info = {"title": "Flakelog ids", "version": version, "description": "Snowflake ids. All answers are JSON."}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def _operation(route: Route, service: IdService) -> dict[str, Any]:
    answers = {"200": _response(route.about, route.answer)}
    for status, about in route.refusals.items():
        answers[str(status)] = _response(about, "Error" if route.handle else route.answer)
    answers["421"] = _response(_NOT_OURS, "Error")
    parameters = [_parameter(argument, service) for argument in route.arguments]
    return {"operationId": route.name, "summary": route.about, "parameters": parameters, "responses": answers}


def _parameter(argument: Argument, service: IdService) -> dict[str, Any]:
    schema = {**_INTEGER, "minimum": argument.least, "maximum": argument.most(service)}
    if argument.default is not None:
        schema["default"] = argument.default
    return {
        "name": argument.name,
        "in": argument.location,
        "required": argument.default is None,
        "description": argument.about,
        "schema": schema,
    }


def _response(about: str, schema: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"description": about, "content": content}


def _object(fields: Mapping[str, Json]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(fields), "required": list(fields)}
