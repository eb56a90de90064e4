"""The console shows nothing, and does nothing, unless the request's headers say that it may."""

import pytest

from flakelog.console.security import (
    BEARER,
    CONTENT_SECURITY_POLICY,
    FAILED_LOGINS_MAX,
    SESSION_MS,
    Asked,
    Gate,
    NeedsLogin,
    Refused,
)

TOKEN = "correct horse battery"
HERE = "127.0.0.1:8609"


def gate(is_loopback=True, any_host=False, token=None, secret=b"s" * 32):
    return Gate(is_loopback=is_loopback, any_host=any_host, token=token, secret=secret)


def asked(**more):
    return Asked(**({"hosts": [HERE], "origins": [f"http://{HERE}"]} | more))


def refused(call, status=403):
    with pytest.raises(Refused) as told:
        call()
    assert told.value.status == status
    return told.value.reason


# --- who may look ----------------------------------------------------------------------------------------------------


def test_on_loopback_a_visitor_gets_a_session_at_once():
    session = gate().session(asked(), 0, "a")
    assert session.id == "a" and session.cookie and session.csrf


@pytest.mark.parametrize("closed", [gate(is_loopback=False), gate(any_host=True)])
def test_without_a_token_a_port_that_others_reach_shows_nothing(closed):
    assert "set flakelog.console.token" in refused(lambda: closed.session(asked(), 0, "a"))
    assert "set flakelog.console.token" in refused(lambda: closed.login(asked(), "", 0, "a"))


@pytest.mark.parametrize("more", [{}, {"cookie": "a.99.b"}, {"authorization": "Bearer wrong"}, {"cookie": "."}])
def test_with_a_token_browsing_needs_it(more):
    with pytest.raises(NeedsLogin):
        gate(token=TOKEN).session(asked(**more), 0, "a")


def test_a_program_sends_the_token_with_each_request():
    session = gate(token=TOKEN).session(asked(authorization=f"Bearer {TOKEN}"), 0, "a")
    assert session.id == BEARER and not session.cookie


def test_a_login_begins_a_session_that_lasts_a_day_of_work():
    locked = gate(is_loopback=False, token=TOKEN)
    session = locked.login(asked(), TOKEN, 0, "a")
    assert locked.session(asked(cookie=session.cookie), SESSION_MS - 1, "b").id == "a"
    with pytest.raises(NeedsLogin):
        locked.session(asked(cookie=session.cookie), SESSION_MS, "b")


def test_a_session_of_another_process_does_not_count():
    cookie = gate(token=TOKEN, secret=b"o" * 32).login(asked(), TOKEN, 0, "a").cookie
    with pytest.raises(NeedsLogin):
        gate(token=TOKEN).session(asked(cookie=cookie), 0, "b")


def test_a_session_cannot_be_made_longer():
    locked = gate(token=TOKEN)
    id, _, signature = locked.login(asked(), TOKEN, 0, "a").cookie.split(".")
    with pytest.raises(NeedsLogin):
        locked.session(asked(cookie=f"{id}.9999999999999.{signature}"), 0, "b")


def test_wrong_tokens_are_slowed_down_and_then_the_right_one_too():
    locked = gate(token=TOKEN)
    for _ in range(FAILED_LOGINS_MAX):
        assert refused(lambda: locked.login(asked(), "wrong", 0, "a")) == "that is not the token"
    assert "wait a minute" in refused(lambda: locked.login(asked(), TOKEN, 59_999, "a"), 429)
    assert locked.login(asked(), TOKEN, 60_000, "a").id == "a"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_or_port_cannot_load_parts_of_the_console(site):
    assert "another site" in refused(lambda: gate().session(asked(fetch_site=site, fetch_mode="cors"), 0, "a"))
    assert gate().session(asked(fetch_site="cross-site", fetch_mode="navigate"), 0, "a").id == "a"


def test_without_a_token_a_proxy_is_refused():
    """The proxy connects from loopback, and its clients may be anywhere."""
    assert "proxy" in refused(lambda: gate().session(asked(is_forwarded=True), 0, "a"))
    assert gate(token=TOKEN).session(asked(is_forwarded=True, authorization=f"Bearer {TOKEN}"), 0, "a")


# --- actions ---------------------------------------------------------------------------------------------------------


def test_an_action_has_its_sessions_token_and_the_exact_origin():
    open_gate = gate()
    session = open_gate.session(asked(), 0, "a")
    open_gate.check_action(asked(), session, session.csrf)
    open_gate.check_action(asked(origins=[f"https://{HERE}"]), session, session.csrf)


@pytest.mark.parametrize(
    "more",
    [
        {"origins": []},
        {"origins": ["null"]},
        {"origins": ["http://evil.example"]},
        {"origins": [f"http://{HERE}.evil.example"]},
        {"origins": [f"http://{HERE}", f"http://{HERE}"]},
        {"origins": ["http://127.0.0.1"]},
        {"origins": [f"ftp://{HERE}"]},
        {"hosts": []},
        {"hosts": [HERE, HERE]},
        {"hosts": ["localhost:8609"]},
        {"fetch_site": "same-site"},
        {"fetch_site": "cross-site"},
    ],
)
def test_an_action_of_another_page_is_refused(more):
    open_gate = gate()
    session = open_gate.session(asked(), 0, "a")
    refused(lambda: open_gate.check_action(asked(**more), session, session.csrf))


@pytest.mark.parametrize("csrf", ["", "x", "é"])
def test_an_action_without_its_sessions_token_is_refused(csrf):
    open_gate = gate()
    first, other = open_gate.session(asked(), 0, "a"), open_gate.session(asked(), 0, "b")
    refused(lambda: open_gate.check_action(asked(), first, csrf))
    refused(lambda: open_gate.check_action(asked(), first, other.csrf))


def test_a_login_from_another_site_is_refused():
    refused(lambda: gate(token=TOKEN).login(asked(origins=["http://evil.example"]), TOKEN, 0, "a"))


def test_pages_run_only_what_this_server_serves():
    assert CONTENT_SECURITY_POLICY.startswith("default-src 'self'; frame-ancestors 'none'")
    assert "unsafe" not in CONTENT_SECURITY_POLICY
