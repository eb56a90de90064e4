"""The web console over HTTPS in a real browser, Debian's Chromium."""

from pathlib import Path

import pytest

from tests.compat.server_process import ServerProcess
from tests.compat.tls_files import TlsFiles
from tests.patience import MS, until

CHROMIUM = Path("/usr/bin/chromium")
if not CHROMIUM.exists():
    pytest.skip(f"no browser at {CHROMIUM}: the console is not tested in one", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: the console is not tested in a browser")

TOKEN = "correct horse battery"


@pytest.fixture
def page():
    """A page that trusts every certificate, because the browser does not know the authority of a test."""
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        made = browser.new_context(ignore_https_errors=True).new_page()
        made.set_default_timeout(MS)
        yield made
        browser.close()


def test_a_visitor_logs_in_acts_sees_live_figures_and_logs_out(page, tmp_path):
    """The cookie's name begins with __Host-, which a browser takes only over TLS and for this host."""
    broker = TlsFiles(tmp_path / "tls").broker
    settings = {"flakelog.http.ssl.enable": "true", "flakelog.console.token": TOKEN}
    settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": broker}
    with ServerProcess(tmp_path / "data", settings) as server:
        page.goto(f"https://{server.http}/console/do/create-topic")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        page.get_by_label("Name").fill("over-https")
        (cookie,) = page.context.cookies()
        assert cookie["name"].startswith("__Host-") and cookie["secure"] and cookie["httpOnly"]
        page.get_by_role("button", name="Create…").click()
        page.get_by_role("button", name="Create it").click()
        page.get_by_role("link", name="Show it").click()
        assert page.locator("h1").inner_text() == "over-https"
        page.goto(f"https://{server.http}/")
        until(lambda: page.evaluate("document.querySelector('.chart').points[0].length >= 2"))
        page.get_by_role("button", name="Log out").click()
        page.get_by_role("heading", name="Log in").wait_for()
        assert page.context.cookies() == []
