"""idgen.http_api: requests over HTTP, their answers, and the OpenAPI description of both."""

import json

import pytest

from coordination.memory import Ensemble, MemoryCoordinator
from idgen.config import IdgenConfig
from idgen.errors import Fenced, IdError, InvalidCount, InvalidId, InvalidTimeRange
from idgen.http_api import OPENAPI, ROUTES, USER_AGENT, Texts, arguments_of, describe, refusal
from idgen.service import IdService
from tests.idgen.driving import NOW, claim, settle

BY_NAME = {route.name: route for route in ROUTES}


@pytest.fixture
def service():
    return IdService(settle(claim(number=103), MemoryCoordinator(Ensemble()), NOW), IdgenConfig(ids_max_batch=50))


def ask(service, name, **given):
    route = BY_NAME[name]
    arguments = arguments_of(route, {name: [str(value)] for name, value in given.items()}, service)
    count = route.takes(arguments)
    ids = Texts()
    if count:
        ids.add(service.next_ids(USER_AGENT, count, NOW, 0))
    return json.loads(route.handle(service, arguments, ids))


def test_ids_come_as_numbers_and_as_strings(service):
    first, many, last = ask(service, "newId"), ask(service, "newIds", count=50), ask(service, "newIds")
    assert first["id_str"] == str(first["id"])
    assert many["id_strs"] == [str(id) for id in many["ids"]]
    ids = [first["id"], *many["ids"], *last["ids"]]
    assert len(ids) == 52 and ids == sorted(set(ids))
    assert service.counters.by_user_agent == {"http": 52}


def test_an_id_and_a_span_are_what_the_layout_says(service):
    id = ask(service, "newId")["id"]
    parts = ask(service, "decodeId", id=id)
    assert (parts["time_ms"], parts["worker_number"], parts["time"]) == (NOW, 103, "2023-11-14T22:13:20.000Z")
    span = ask(service, "idRange", from_ms=NOW, to_ms=NOW + 1)
    assert span["first"] <= id < span["end"] == int(span["end_str"])
    assert ask(service, "decodeId", id=(1 << 63) - 1)["time"] is not None


@pytest.mark.parametrize(
    "name, given, error, reason",
    [
        ("newIds", {"count": ["0"]}, InvalidCount, "count=0: a whole number in 1..50 is due"),
        ("newIds", {"count": ["51"]}, InvalidCount, "1..50"),
        ("newIds", {"count": ["-1"]}, InvalidCount, "count=-1"),
        ("newIds", {"count": ["1.5"]}, InvalidCount, "count=1.5"),
        ("newIds", {"count": ["٣"]}, InvalidCount, "count=٣"),
        ("newIds", {"count": [""]}, InvalidCount, "count=: "),
        ("newIds", {"count": ["1", "2"]}, InvalidCount, "count is given 2 times; once is due"),
        ("decodeId", {"id": [str(1 << 63)]}, InvalidId, "a whole number in 0..9223372036854775807"),
        ("decodeId", {"id": ["9" * 5000]}, InvalidId, "id=9999"),
        ("idRange", {"from_ms": ["1"]}, InvalidTimeRange, "to_ms is given 0 times; once is due"),
    ],
)
def test_an_argument_that_is_wrong_is_named_with_what_is_due(service, name, given, error, reason):
    with pytest.raises(error, match=reason) as refused:
        arguments_of(BY_NAME[name], given, service)
    assert len(str(refused.value)) < 200
    assert refusal(refused.value)[0] == 400


def test_a_span_that_ends_before_its_start_is_refused(service):
    with pytest.raises(InvalidTimeRange, match="the range ends at 1, before its start 2"):
        ask(service, "idRange", from_ms=2, to_ms=1)


def test_what_time_cures_is_503(service):
    service.claim.close(NOW)
    with pytest.raises(Fenced) as refused:
        ask(service, "newId")
    status, body = refusal(refused.value)
    assert (status, body["error"]) == (503, "Fenced")


def test_the_description_has_every_row_with_the_bounds_that_hold(service):
    description = describe([*ROUTES, OPENAPI], service, "1.2.3")
    served = {(path, method) for path, methods in description["paths"].items() for method in methods}
    assert served == {(route.path, route.method.lower()) for route in (*ROUTES, OPENAPI)}
    [count] = description["paths"]["/ids"]["post"]["parameters"]
    assert count["schema"] == {"type": "integer", "format": "int64", "minimum": 1, "maximum": 50, "default": 1}
    assert description["info"]["version"] == "1.2.3"


@pytest.mark.parametrize("name, given", [("newId", {}), ("newIds", {}), ("decodeId", {"id": 7}), ("idRange", None)])
def test_an_answer_has_the_fields_its_schema_names(service, name, given):
    answer = ask(service, name, **({"from_ms": 1, "to_ms": 2} if given is None else given))
    schema = describe(ROUTES, service, "1")["components"]["schemas"][BY_NAME[name].answer]
    assert list(answer) == schema["required"] == list(schema["properties"])


def test_every_error_is_the_callers_or_times():
    for error in IdError.__subclasses__():
        if error.__init__ is IdError.__init__:
            assert refusal(error("why"))[0] in (400, 503)
