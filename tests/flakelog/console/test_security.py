"""The console shows nothing, and does nothing, unless the request's headers say that it may."""

import pytest

from flakelog.config import ServerConfig
from flakelog.console.security import (
    BEARER,
    CONTENT_SECURITY_POLICY,
    FAILED_LOGINS_MAX,
    SESSION_MS,
    SESSIONS_ENDED_MAX,
    CameByLink,
    Gate,
    NeedsLogin,
    RequestRefused,
    SecurityHeaders,
    console_address,
    cookie_name,
    is_in_plain_text,
)
from idgen.settings import InvalidSetting

TOKEN = "correct horse battery"
HERE = "127.0.0.1:8609"


def gate(is_loopback=True, any_host=False, token=None, secret=b"s" * 32):
    return Gate(is_loopback=is_loopback, any_host=any_host, token=token, secret=secret)


def headers(**more):
    return SecurityHeaders(**({"hosts": [HERE], "origins": [f"http://{HERE}"]} | more))


def refused(call, status=403):
    with pytest.raises(RequestRefused) as refusal:
        call()
    assert refusal.value.status == status
    return refusal.value.reason


# --- who may look ----------------------------------------------------------------------------------------------------


def test_on_loopback_a_visitor_gets_a_session_at_once():
    session = gate().session(headers(), 0, "a")
    assert session.id == "a" and session.cookie and session.csrf


@pytest.mark.parametrize("closed", [gate(is_loopback=False), gate(any_host=True)])
def test_without_a_token_a_port_that_others_reach_shows_nothing(closed):
    assert "set flakelog.console.token" in refused(lambda: closed.session(headers(), 0, "a"))
    assert "set flakelog.console.token" in refused(lambda: closed.login(headers(), "", 0, "a"))


@pytest.mark.parametrize("more", [{}, {"cookie": "a.99.b"}, {"authorization": "Basic dXNlcjp4"}, {"cookie": "."}])
def test_with_a_token_browsing_needs_it(more):
    with pytest.raises(NeedsLogin):
        gate(token=TOKEN).session(headers(**more), 0, "a")


def test_a_program_sends_the_token_with_each_request():
    for scheme in ("Bearer", "bearer"):
        locked = gate(token=TOKEN)
        session = locked.session(headers(authorization=f"{scheme} {TOKEN}"), 0, "a")
        assert session.id == BEARER and not session.cookie and locked.is_live(session, 1 << 60)


def test_a_program_cannot_guess_the_token_at_another_pace_than_a_browser():
    locked = gate(token=TOKEN)
    for number in range(FAILED_LOGINS_MAX):
        wrong = headers(authorization=f"Bearer wrong {number}")
        assert refused(lambda sent=wrong: locked.session(sent, 0, "a"), 401) == "that is not the token"
    right = headers(authorization=f"Bearer {TOKEN}")
    assert "wait a minute" in refused(lambda: locked.session(right, 59_999, "a"), 429)
    assert "wait a minute" in refused(lambda: locked.login(headers(), TOKEN, 59_999, "a"), 429)
    assert locked.session(right, 60_000, "a").id == BEARER


def test_wrong_tokens_of_others_end_no_session():
    locked = gate(token=TOKEN)
    cookie = locked.login(headers(), TOKEN, 0, "a").cookie
    for _ in range(FAILED_LOGINS_MAX):
        refused(lambda: locked.login(headers(), "wrong", 0, "b"))
    assert locked.session(headers(cookie=cookie), 1, "c").id == "a"


def test_the_authorization_of_a_proxy_in_front_is_no_wrong_token():
    locked = gate(token=TOKEN)
    cookie = locked.login(headers(), TOKEN, 0, "a").cookie
    for _ in range(2 * FAILED_LOGINS_MAX):
        assert locked.session(headers(cookie=cookie, authorization="Basic dXNlcjp4"), 0, "b").id == "a"


def test_a_logout_ends_the_session_and_not_only_its_cookie():
    locked = gate(token=TOKEN)
    cookies = [locked.login(headers(), TOKEN, 0, address).cookie for address in "ab"]
    first, other = (locked.session(headers(cookie=cookie), 1, "c") for cookie in cookies)
    locked.logout(first, 2)
    assert not locked.is_live(first, 3) and locked.is_live(other, 3)
    with pytest.raises(NeedsLogin):
        locked.session(headers(cookie=cookies[0]), 3, "c")
    assert locked.session(headers(cookie=cookies[1]), 3, "c").id == "b"


def test_sessions_that_ended_are_remembered_and_not_without_end():
    locked = gate(token=TOKEN)
    cookies = []
    for number in range(SESSIONS_ENDED_MAX + 1):
        cookies.append(locked.login(headers(), TOKEN, 0, str(number)).cookie)
        locked.logout(locked.session(headers(cookie=cookies[-1]), 0, "x"), 0)
    for cookie in (cookies[0], cookies[-1]):
        with pytest.raises(NeedsLogin):
            locked.session(headers(cookie=cookie), 1, "x")
    assert locked.login(headers(), TOKEN, 1, "new").id == "new"


def test_a_login_begins_a_session_that_lasts_a_day_of_work():
    locked = gate(is_loopback=False, token=TOKEN)
    session = locked.login(headers(), TOKEN, 0, "a")
    assert locked.session(headers(cookie=session.cookie), SESSION_MS - 1, "b").id == "a"
    with pytest.raises(NeedsLogin):
        locked.session(headers(cookie=session.cookie), SESSION_MS, "b")


def test_a_session_of_another_process_does_not_count():
    cookie = gate(token=TOKEN, secret=b"o" * 32).login(headers(), TOKEN, 0, "a").cookie
    with pytest.raises(NeedsLogin):
        gate(token=TOKEN).session(headers(cookie=cookie), 0, "b")


def test_a_session_cannot_be_made_longer():
    locked = gate(token=TOKEN)
    id, _, signature = locked.login(headers(), TOKEN, 0, "a").cookie.split(".")
    with pytest.raises(NeedsLogin):
        locked.session(headers(cookie=f"{id}.9999999999999.{signature}"), 0, "b")


def test_wrong_tokens_are_slowed_down_and_then_the_right_one_too():
    locked = gate(token=TOKEN)
    for _ in range(FAILED_LOGINS_MAX):
        assert refused(lambda: locked.login(headers(), "wrong", 0, "a")) == "that is not the token"
    assert "wait a minute" in refused(lambda: locked.login(headers(), TOKEN, 59_999, "a"), 429)
    assert locked.login(headers(), TOKEN, 60_000, "a").id == "a"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_or_port_cannot_load_parts_of_the_console(site):
    assert "another site" in refused(lambda: gate().session(headers(fetch_site=site, fetch_mode="cors"), 0, "a"))


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_link_on_another_site_neither_asks_for_a_login_nor_begins_a_session(site, token):
    """A browser sends no session with it, even if it has one; a new one would take the place of that one."""
    by_link = headers(fetch_site=site, fetch_mode="navigate")
    with pytest.raises(CameByLink):
        gate(token=token).session(by_link, 0, "a")


def test_without_a_token_a_proxy_is_refused():
    """The proxy connects from loopback, and its clients may be anywhere."""
    assert "proxy" in refused(lambda: gate().session(headers(is_forwarded=True), 0, "a"))
    assert gate(token=TOKEN).session(headers(is_forwarded=True, authorization=f"Bearer {TOKEN}"), 0, "a")


# --- actions ---------------------------------------------------------------------------------------------------------


def test_an_action_has_its_sessions_token_and_the_exact_origin():
    open_gate = gate()
    session = open_gate.session(headers(), 0, "a")
    open_gate.check_action(headers(), session, session.csrf)
    open_gate.check_action(headers(origins=[f"https://{HERE}"]), session, session.csrf)


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
    session = open_gate.session(headers(), 0, "a")
    refused(lambda: open_gate.check_action(headers(**more), session, session.csrf))


@pytest.mark.parametrize("csrf", ["", "x", "é"])
def test_an_action_without_its_sessions_token_is_refused(csrf):
    open_gate = gate()
    first, other = open_gate.session(headers(), 0, "a"), open_gate.session(headers(), 0, "b")
    refused(lambda: open_gate.check_action(headers(), first, csrf))
    refused(lambda: open_gate.check_action(headers(), first, other.csrf))


def test_a_login_from_another_site_is_refused():
    refused(lambda: gate(token=TOKEN).login(headers(origins=["http://evil.example"]), TOKEN, 0, "a"))


@pytest.mark.parametrize("token", ["short", "long enough, but ünprintable"])
def test_a_weak_token_is_refused_and_not_repeated(token):
    with pytest.raises(InvalidSetting, match="at least 16 characters") as refusal:
        ServerConfig(console_token=token)
    assert token not in str(refusal.value)


def test_pages_run_only_what_this_server_serves():
    assert CONTENT_SECURITY_POLICY.startswith("default-src 'self'; frame-ancestors 'none'")
    assert "unsafe" not in CONTENT_SECURITY_POLICY


# --- over TLS --------------------------------------------------------------------------------------------------------


def test_over_tls_a_page_of_plain_http_is_another_site():
    """Someone in between can make such a page."""
    locked = Gate(is_loopback=True, any_host=False, token=TOKEN, secret=b"s" * 32, is_tls=True)
    assert "the Origin is not the host" in refused(lambda: locked.login(headers(), TOKEN, 0, "a"))
    assert locked.login(headers(origins=[f"https://{HERE}"]), TOKEN, 0, "a").cookie


def test_over_tls_the_cookie_is_bound_to_the_host_and_the_address_is_https():
    assert cookie_name("127.0.0.1:8609", is_tls=False) == "flakelog_console_8609"
    assert cookie_name("127.0.0.1:8609", is_tls=True) == "__Host-flakelog_console_8609"
    config = ServerConfig(http_ssl_enable=True, console_token=TOKEN)
    assert console_address(config, "0.0.0.0:8609", "pc") == "https://pc:8609/"


@pytest.mark.parametrize(
    "headers, peer, is_tls, is_plain",
    [
        (headers(), "127.0.0.1", False, False),
        (headers(), "::1", False, False),
        (headers(), "10.0.0.7", False, True),
        (headers(), "10.0.0.7", True, False),
        (headers(is_forwarded=True), "127.0.0.1", False, True),
        (headers(is_forwarded=True, origins=["https://console.example"]), "127.0.0.1", False, False),
    ],
)
def test_a_visit_is_in_plain_text_without_tls_from_another_machine(headers, peer, is_tls, is_plain):
    assert is_in_plain_text(headers, peer, is_tls=is_tls) is is_plain
