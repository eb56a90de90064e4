"""The OpenAPI description of a real server is true: schemathesis sends good and bad requests and judges the answers."""

import json
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from hypothesis import HealthCheck, given, settings

from tests.compat.server_process import ServerProcess
from tests.patience import SECONDS

schemathesis = pytest.importorskip("schemathesis", reason="no schemathesis: /openapi.json is not judged")

# All checks except positive_data_acceptance, because a span that ends before its start fits the schema and is refused.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("openapi") / "data", command="idgen") as running:
        yield running


@pytest.mark.parametrize("mode", schemathesis.GenerationMode, ids=lambda mode: mode.value)
def test_what_is_served_is_what_is_described(server, mode):
    """Good requests are answered as described, bad ones are refused as described, and other methods are not allowed."""
    described = schemathesis.openapi.from_url(f"http://{server.http}/openapi.json")
    checks = [schemathesis.checks.CHECKS.get_one(name) for name in CHECKS]
    judged = set()
    for operation in (found.ok() for found in described.get_all_operations()):
        takes_arguments = len(operation.query) or len(operation.path_parameters)
        if mode is schemathesis.GenerationMode.NEGATIVE and not takes_arguments:
            continue

        @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def judge(case):
            judged.add(case.path)
            case.call_and_validate(checks=checks, timeout=SECONDS)

        judge()
    assert {"/ids", "/ids/{id}", "/id-range"} <= judged


def ask(server, method, path):
    try:
        with urlopen(Request(f"http://{server.http}{path}", method=method), timeout=SECONDS) as answer:
            return answer.status, answer.headers, json.load(answer)
    except HTTPError as error:
        return error.code, error.headers, json.load(error)


def test_what_is_not_there_is_answered_with_what_is(server):
    status, _, body = ask(server, "GET", "/idz")
    assert (status, body["error"]) == (404, "NotFound") and "POST /ids" in body["message"]
    status, headers, body = ask(server, "DELETE", "/ids")
    assert (status, body["error"], headers["Allow"]) == (405, "MethodNotAllowed", "POST")


def test_the_description_names_health_too(server):
    assert {"/id", "/ids", "/ids/{id}", "/id-range", "/health", "/openapi.json"} <= set(
        ask(server, "GET", "/openapi.json")[2]["paths"]
    )
