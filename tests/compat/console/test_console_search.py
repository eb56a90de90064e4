"""A search of the web console in a real browser: it goes on by itself, is stopped, and works without its script."""

from broker.record.records import BatchRecord, encode_batch
from tests.compat.console import test_console_browser as pages
from tests.compat.console.console_data import TIME_MS
from tests.patience import until

# A server with something for each page.
client, server = pages.client, pages.server


def fill_hay(client, topic, batches):
    """Make a topic of many megabytes, with a needle in each batch."""
    client.create_topic(topic)
    for number in range(batches):
        records = [
            BatchRecord(0, 0, b"%d" % number, b"x" * 900_000),
            BatchRecord(1, 0, None, b"<b>needle</b> %d" % number),
        ]
        client.produce(topic, 0, encode_batch(records, base_timestamp_ms=TIME_MS))


def test_a_search_goes_on_by_itself_and_shows_what_it_finds(open_page, client):
    fill_hay(client, "hay", 30)
    page = open_page("/console/topics/hay", width=390)
    page.get_by_role("link", name="Search").click()
    page.get_by_label("Text").fill("<b>needle")
    page.get_by_role("button", name="Search").click()
    told = page.locator("#search-told")
    until(lambda: "All is searched" in told.inner_text())
    assert told.inner_text().startswith("30 found in 60 messages, 27")
    assert page.locator("#found tr").count() == page.locator("#found mark").count() == 30
    assert page.locator("[data-stop]").is_hidden() and page.locator("[data-go-on]").count() == 0
    assert page.evaluate(pages.OVERFLOW) == [0, 0] and page.evaluate(pages.CONTRAST) == []
    page.get_by_role("region", name="Found messages").get_by_role("link", name="1", exact=True).click()
    assert page.locator("h1").inner_text() == "Offset 1"


def test_a_search_is_stopped_and_goes_on(open_page, client, allowed):
    allowed.append("net::ERR_FAILED")
    fill_hay(client, "long-hay", 30)
    page = open_page("/console/topics/long-hay/search")
    held = []
    page.route("**/search?*at=*", lambda route: held.append(route))
    page.get_by_label("Text").fill("needle")
    page.get_by_role("button", name="Search").click()
    until(lambda: page.evaluate("1") and held)
    page.get_by_role("button", name="Stop").click()
    until(lambda: "Stopped." in page.locator("#search-told").inner_text())
    shown = page.locator("#found tr").count()
    assert 0 < shown < 30 and page.locator("[data-stop]").is_hidden()
    page.unroute("**/search?*at=*")
    page.get_by_role("link", name="Go on").click()
    until(lambda: "All is searched" in page.locator("#search-told").inner_text())
    assert page.locator("#found tr").count() == 30


def test_a_search_without_its_script_goes_on_by_a_link(open_page, client):
    fill_hay(client, "plain-hay", 12)
    page = open_page("/console/topics/plain-hay/search?text=needle", script=False)
    found = page.locator("#found tr").count()
    while page.get_by_role("link", name="Go on").count():
        assert page.get_by_role("button", name="Stop").count() == 0, "it is hidden"
        page.get_by_role("link", name="Go on").click()
        found += page.locator("#found tr").count()
    assert found == 12 and "All is searched" in page.locator("main").inner_text()


def test_back_returns_to_what_was_found(open_page, client):
    fill_hay(client, "hay-again", 30)
    page = open_page("/console/topics/hay-again/search?text=needle")
    told = page.locator("#search-told")
    until(lambda: "All is searched" in told.inner_text())
    state, requested = told.inner_text(), []
    page.on("request", lambda request: requested.append(request.url))
    page.locator("#found a:not(.id)").nth(24).click()
    page.get_by_role("heading", name="Offset 49").wait_for()
    page.go_back()
    page.get_by_role("heading", name="Search in hay-again").wait_for()
    assert page.locator("#found tr").count() == 30 and told.inner_text() == state
    assert page.locator("#found tr").nth(24).evaluate("(row) => row.getBoundingClientRect().top < innerHeight")
    assert not [url for url in requested if "at=" in url], "nothing is searched again"
    page.reload()
    until(lambda: "All is searched" in told.inner_text())
    assert page.locator("#found tr").count() == 30 and [url for url in requested if "at=" in url]


def test_back_goes_on_with_a_search_that_was_left_and_not_with_one_that_was_stopped(open_page, client, allowed):
    allowed.append("net::ERR_FAILED")
    fill_hay(client, "left-hay", 30)
    page = open_page("/console/topics/left-hay")
    held = []
    page.route("**/search?*at=*", lambda route: held.append(route))
    for is_stopped in (True, False):
        held.clear()
        page.goto(page.url.partition("/console")[0] + "/console/topics/left-hay/search?text=needle")
        until(lambda: page.evaluate("1") and held)
        if is_stopped:
            page.get_by_role("button", name="Stop").click()
            until(lambda: "Stopped." in page.locator("#search-told").inner_text())
        shown = page.locator("#found tr").count()
        page.locator("#found a:not(.id)").first.click()
        page.get_by_role("heading", name="Offset 1").wait_for()
        if not is_stopped:
            page.unroute("**/search?*at=*")
        page.go_back()
        page.get_by_role("heading", name="Search in left-hay").wait_for()
        if is_stopped:
            assert page.locator("#found tr").count() == shown < 30 and len(held) == 1
            assert page.get_by_role("link", name="Go on").is_visible()
    until(lambda: "All is searched" in page.locator("#search-told").inner_text())
    assert page.locator("#found tr").count() == 30
