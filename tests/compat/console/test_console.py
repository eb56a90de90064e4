"""The web console of a real server, by HTTP as a browser or a program asks."""

import http.client
import json
import re
import subprocess

import pytest

from broker.client.blocking import Client
from tests.compat.console.console_visitor import Visitor
from tests.compat.server_process import ROOT, ServerProcess
from tests.patience import SECONDS

TOKEN = "correct horse battery staple"
PAGES = ("/", "/console/", "/console/topics", "/console/topics/console", "/console/groups", "/console/transactions",
         "/console/quotas", "/console/ids")  # fmt: skip


@pytest.fixture(scope="module")
def server(broker):
    with Client(broker.address) as client:
        client.create_topic("console", 3)
    return broker


@pytest.fixture
def visitor(server):
    return Visitor(server.http)


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    settings = {"flakelog.console.token": TOKEN, "flakelog.console.max.streams": "1"}
    with ServerProcess(tmp_path_factory.mktemp("locked") / "data", settings) as running:
        yield running


# --- pages -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_served_with_a_strict_policy(visitor, path):
    answer, text = visitor.ask("GET", path)
    assert answer.status == 200 and text.startswith("<!doctype html>") and text.rstrip().endswith("</html>")
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'self'; frame-ancestors 'none'")
    assert answer.headers["X-Content-Type-Options"] == "nosniff" and answer.headers["Cache-Control"] == "no-store"
    assert not re.search(r"<script(?! src=\"/console/static/)|<style| style=| on\w+=", text), "the policy would stop it"
    assert '"allowEval":false' in text and '"allowScriptTags":false' in text


def test_pages_name_only_files_that_are_served(visitor):
    text = visitor.get("/")[1]
    files = set(re.findall(r'(?:src|href)="(/console/static/[^"]+)"', text))
    assert len(files) >= 6
    for file in files:
        answer, _ = visitor.ask("GET", file)
        assert answer.status == 200 and "max-age" in answer.headers["Cache-Control"]
    for licence in ("htmx-LICENSE.txt", "uPlot-LICENSE.txt"):
        assert visitor.get(f"/console/static/{licence}")[0] == 200


@pytest.mark.parametrize(
    "path, status",
    [
        ("/console/nope", 404),
        ("/console/topics/nope", 404),
        ("/console/static/..%2fshell.py", 404),
        ("/console/static/shell.py", 404),
        ("/console/group?group=nope", 404),
        ("/console/topics?page=x", 400),
        ("/console/topics/%2fetc", 404),
        ("/console/events?page=nope", 404),
    ],
)
def test_what_cannot_be_shown_is_explained(visitor, path, status):
    found, text = visitor.get(path)
    assert found == status and "Back to the overview" in text


def test_the_console_is_found_without_its_last_slash(visitor):
    answer, _ = visitor.ask("GET", "/console")
    assert (answer.status, answer.headers["Location"]) == (302, "/")


def test_other_paths_of_the_port_are_as_before(visitor):
    assert visitor.get("/health/live") == (200, '{"live": true}')
    assert visitor.get("/metrics")[0] == 200
    assert json.loads(visitor.get("/nope")[1])["error"] == "NotFound"


def test_the_server_names_the_console_at_its_start(server, locked):
    for running in (server, locked):
        assert running.addresses["console"] == f"http://{running.http}/"


# --- live figures ----------------------------------------------------------------------------------------------------


def events(connection):
    """Yield the (event, data) of a stream, to its end."""
    name = None
    for line in connection:
        text = line.decode().rstrip("\n")
        if text.startswith("event: "):
            name = text.removeprefix("event: ")
        elif text.startswith("data: "):
            yield name, json.loads(text.removeprefix("data: "))


def test_figures_come_as_server_sent_events(server):
    connection = http.client.HTTPConnection(server.http, timeout=SECONDS)
    connection.request("GET", "/console/events?page=overview")
    answer = connection.getresponse()
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    told = events(answer)
    name, first = next(told)
    assert name == "figures" and "Messages in" in first["html"]
    connection.close()


def test_open_pages_do_not_hold_a_server_up_that_stops(tmp_path):
    with ServerProcess(tmp_path / "data") as running:
        with Client(running.address) as client:
            client.create_topic("orders")
        assert Visitor(running.http).get("/console/topics/orders/messages")[0] == 200, "its thread exists now"
        connection = http.client.HTTPConnection(running.http, timeout=SECONDS)
        connection.request("GET", "/console/events?page=overview")
        next(events(connection.getresponse()))
        assert running.stop() == 0
        assert "Traceback" not in running.log
        connection.close()


def test_streams_are_limited(locked):
    visitor = Visitor(locked.http)
    visitor.headers["Authorization"] = f"Bearer {TOKEN}"
    connection = http.client.HTTPConnection(locked.http, timeout=SECONDS)
    connection.request("GET", "/console/events?page=ids", headers=visitor.headers)
    next(events(connection.getresponse()))
    status, text = visitor.get("/console/events?page=ids")
    assert status == 503 and "flakelog.console.max.streams" in text
    connection.close()


# --- security --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*PAGES, "/console/events?page=overview"])
def test_with_a_token_nothing_is_shown_without_it(locked, path):
    answer, text = Visitor(locked.http).ask("GET", path)
    assert answer.status == 303 and answer.headers["Location"].startswith("/console/login") and not text


def test_a_browser_logs_in_with_the_token_and_out_again(locked):
    visitor = Visitor(locked.http)
    status, text = visitor.post("/console/login", {"token": "wrong", "next": "/console/topics"})
    assert status == 403 and "that is not the token" in text
    answer, _ = visitor.ask("POST", "/console/login", {"token": TOKEN, "next": "/console/topics"})
    assert (answer.status, answer.headers["Location"]) == (303, "/console/topics")
    assert {"HttpOnly", "SameSite=Strict"} <= set(answer.headers["Set-Cookie"].split("; "))
    status, text = visitor.get("/console/topics")
    assert status == 200
    csrf = re.search(r'name="csrf" value="(\w+)"', text)[1]
    assert visitor.post("/console/logout", {"csrf": csrf}, Origin="http://evil.example")[0] == 403
    assert visitor.post("/console/logout", {"csrf": "x"})[0] == 403
    kept = dict(visitor.cookies)
    connection = http.client.HTTPConnection(locked.http, timeout=SECONDS)
    connection.request("GET", "/console/events?page=ids", headers={"Cookie": "; ".join(map("=".join, kept.items()))})
    told = events(connection.getresponse())
    assert next(told)[0] == "figures"
    assert visitor.post("/console/logout", {"csrf": csrf})[0] == 303
    assert visitor.get("/console/topics")[0] == 303
    visitor.cookies = kept
    assert visitor.get("/console/topics")[0] == 303, "the session has ended, and not only its cookie"
    assert [name for name, _ in told][-1] == "failed", "so have the live figures of its other pages"
    connection.close()
    locked.wait_for_log("logged in")


def test_a_login_that_is_too_long_is_refused(locked):
    status, text = Visitor(locked.http).post("/console/login", {"token": TOKEN, "next": "/console/" + "x" * 40_000})
    assert status == 400 and "next is longer than" in text and "Traceback" not in locked.log


def test_a_login_through_a_proxy_with_tls_gets_a_cookie_for_tls_only(locked):
    origin = f"https://{locked.http}"
    answer, _ = Visitor(locked.http).ask("POST", "/console/login", {"token": TOKEN}, Origin=origin)
    assert answer.status == 303 and "Secure" in answer.headers["Set-Cookie"].split("; ")


def test_a_page_that_asks_for_a_password_warns_of_a_proxy_without_tls(locked):
    visitor = Visitor(locked.http)
    visitor.post("/console/login", {"token": TOKEN})
    fields = {"csrf": visitor.csrf(), "user": "ada", "mechanism": "SCRAM-SHA-512"}
    here, plain, tls = {}, {"X_Forwarded_For": "10.0.0.7"}, {"X_Forwarded_For": "10.0.0.7"}
    tls["Origin"] = f"https://{locked.http}"
    pages = [visitor.post("/console/do/set-password", fields, **headers) for headers in (here, plain, tls)]
    assert [status for status, _ in pages] == [200, 200, 200]
    assert ["can read the password" in text for _, text in pages] == [False, True, False]


def test_a_search_on_a_page_whose_session_has_ended_leads_to_the_login(locked):
    answer, text = Visitor(locked.http).ask("GET", "/console/topics?search=a", HX_Request="true")
    assert answer.status == 200 and answer.headers["HX-Redirect"].startswith("/console/login?next=") and not text


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example", "/\\evil.example", "/console/\r\nX: y"])
def test_a_login_leads_to_a_page_of_the_console_only(locked, target):
    answer, _ = Visitor(locked.http).ask("POST", "/console/login", {"token": TOKEN, "next": target})
    assert (answer.status, answer.headers["Location"]) == (303, "/")


def test_a_program_sends_the_token(locked):
    assert Visitor(locked.http).get("/console/topics", Authorization=f"Bearer {TOKEN}")[0] == 200
    answer, text = Visitor(locked.http).ask("GET", "/console/topics", Authorization="Bearer wrong")
    assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer") and "not the token" in text
    locked.wait_for_log("sent a wrong token")


def test_a_link_on_another_site_leads_to_the_page_and_begins_no_session(visitor, locked):
    for each in (visitor, Visitor(locked.http)):
        answer, text = each.ask("GET", "/console/topics", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")
        assert answer.status == 200 and 'http-equiv="refresh" content="0"' in text
        assert answer.headers["Set-Cookie"] is None and answer.headers["Content-Security-Policy"]


def test_other_sites_and_names_are_refused(visitor):
    assert visitor.get("/", Host="evil.example")[0] == 421
    assert visitor.get("/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="cors")[0] == 403
    assert visitor.get("/", X_Forwarded_For="10.0.0.1")[0] == 403


def test_where_other_machines_can_connect_the_console_is_closed_without_a_token(tmp_path):
    with ServerProcess(tmp_path / "data", {"flakelog.http.listener": "0.0.0.0:0"}) as running:
        visitor = Visitor(running.http.replace("0.0.0.0", "127.0.0.1"))
        for path in (*PAGES, "/console/login", "/console/static/console.css"):
            status, text = visitor.get(path)
            assert status in (403, 404) and "<table" not in text
        assert "set flakelog.console.token" in visitor.get("/")[1]
        assert visitor.get("/health/live")[0] == 200
        assert "console" not in running.addresses


@pytest.mark.soak
def test_the_console_can_be_turned_off(tmp_path):
    with ServerProcess(tmp_path / "data", {"flakelog.console.enable": "false"}) as running:
        assert Visitor(running.http).get("/")[0] == Visitor(running.http).get("/console/topics")[0] == 404
        assert "console" not in running.addresses


def test_clients_never_read_the_token(locked):
    from flakelog.operations.configs import broker_resource, describe_configs

    with Client(locked.address) as client:
        values = {config.name: config.value for config in describe_configs(client, broker_resource(1))}
    assert values["flakelog.console.token"] is None
    assert TOKEN not in locked.log
    argv = [*locked.argv, "--print-config"]
    printed = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, timeout=SECONDS).stdout
    assert "flakelog.console.token=(hidden)" in printed and TOKEN not in printed
