"""A browser for the tests of the console: Debian's Chromium, driven by Playwright."""

import pytest

from tests.compat.console.browser_checks import CHROMIUM
from tests.patience import MS


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def allowed():
    """Parts of the errors that the pages of a test may report."""
    return []


@pytest.fixture
def open_page(browser, server, allowed):
    """Return a function that opens a page; the test fails if one reports an error."""
    contexts, errors = [], []

    def opened(path, width=1280, height=800, scheme="light", script=True, address=None):
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, java_script_enabled=script
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(MS)
        page.on("console", lambda each: errors.append(each.text) if each.type in ("error", "warning") else None)
        page.on("pageerror", lambda each: errors.append(str(each)))
        page.goto(f"http://{address or server.http}{path}")
        return page

    yield opened
    for each in contexts:
        each.close()
    assert not [error for error in errors if not any(part in error for part in allowed)]
